"""Asynchronous training by a virtual clock: completions of older weights, as a function of the settings and seeds.

An update is one unit of time. Completions are drawn by the weights of the moment at which they begin, and wait in a
queue, part of each checkpoint, until they are trained on; no old weights are kept. `schedule.lag` says how long, or
their lengths do: `schedule.concurrency` groups are under way at once, each completion grows by
`schedule.tokens_per_update` tokens a unit, and a group is ready when its longest completion is. With
`schedule.in_flight` each token is drawn by the weights of its moment: when they change, what is left is drawn anew.
"""

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from topr_exp.composition.draws import random_generator
from topr_exp.sampling.generation import table_of_samples, token_count
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample
from topr_exp.store import Ragged
from topr_exp.training.rounds import Rounds, as_file, read_table
from topr_exp.types import VERDICTS, TOPRError

QUEUE = "queue.arrow"
IN_FLIGHT = 1  # in the seeds of what goes on, beside those of what begins
ROUNDING = 1e-6  # of the clock, in tokens


def longest(columns: pa.Table) -> int:
    """Count the tokens of the longest completion."""
    return int(Ragged(columns["tokens"]).lengths().max())


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of a problem, from when they are drawn until they are trained on."""

    columns: pa.Table
    born: int  # updates that the weights had seen which drew them, or their first tokens
    due: float  # the update that trains on them; where lengths decide, the time at which the longest is complete


@dataclass
class AsyncRounds(Rounds):
    """Updates on completions of older weights; with a lag of 0 the same bits as on-policy."""

    queue: list[Group] = field(default_factory=list)  # in the order in which they began
    begun: int = 0  # groups so far, where lengths decide
    now: float = 0.0
    idle: dict[str, float] = field(default_factory=dict)  # units of time since the last update
    # Completions of each kind (VERDICT, lengthN from N tokens to twice as many, levelN) so far: dropped, and all.
    used: dict[str, tuple[int, int]] = field(default_factory=dict)

    def sample_round(self, number: int) -> bool:
        """Sample what begins before update `number`, and choose what it trains on; True where some of it is older."""
        self.idle = {"trainer_idle": 0.0, "sampler_idle": 0.0}
        batch, dropped = self.by_length(number) if self.schedule.concurrency else (self.by_lag(number), [])
        self.fill_round([group.columns for group in batch], number)
        ages = self.ages = np.array([number - group.born for group in batch])
        low, middle, high = np.quantile(ages, [0.05, 0.5, 0.95]).tolist()
        self.seen |= {"age": float(ages.mean()), "age_q05": low, "age_q50": middle, "age_q95": high}
        if self.schedule.concurrency:
            self.seen |= {"virtual_time": self.now, **self.idle}
        if self.schedule.when_stale == "drop":
            self.count(dropped, 1)
            self.count(batch, 0)
            self.seen |= {f"dropped_share{kind}": part / whole for kind, (part, whole) in sorted(self.used.items())}
        return bool(ages.any())

    # ---- a lag that is given

    def by_lag(self, number: int) -> list[Group]:
        """Draw all that has the current weights, for this update and later ones; returns what is due."""
        assert self.schedule.prompts is not None
        assert self.schedule.rounds is not None
        shards = self.schedule.prompts * self.compose.max_draws  # of one draw at most
        for due in range(number, min(number + len(self.schedule.lags), self.schedule.rounds)):
            rng, shares = random_generator(self.seed, self.iteration, f"lags {due}"), self.schedule.lags
            lags = rng.choice(len(shares), size=self.schedule.prompts, p=shares)
            begins = np.maximum(due - lags, 0) == number
            if begins.any():
                indices, _ = self.choose_prompts(due)
                first, further = 0, None  # as on-policy, where all begin at once
                if not begins.all():  # what begins at another time draws other problems
                    rest = np.setdiff1d(np.arange(len(self.train.prompts)), indices)
                    first, further = (due - number) * shards, rest[due - number :: len(self.schedule.lags)]
                drawn = self.sample_groups(indices[begins], due, first, further=further)
                self.queue += [Group(columns, number, due) for columns in drawn]
        batch = [group for group in self.queue if group.due == number]
        self.queue = [group for group in self.queue if group.due != number]
        return batch

    # ---- lags by lengths

    def by_length(self, number: int) -> tuple[list[Group], list[Group]]:
        """Let time pass until a batch is ready and while the update is computed; returns the batch and what is dropped.

        wait: groups come in the order in which they began, so few under way that none gets older than `max_lag`. Else
        the first ready ones, and sampling pauses while as many wait as can be under way; drop: none above `max_lag`.
        """
        schedule = self.schedule
        assert schedule.prompts is not None
        assert schedule.rounds is not None
        assert schedule.concurrency is not None
        waits, limit = schedule.when_stale == "wait", schedule.max_lag
        if schedule.in_flight:
            self.go_on(number)
        room = schedule.concurrency + max(schedule.concurrency, schedule.prompts)
        if waits and limit is not None:
            room = schedule.prompts * (limit + 1)
        dropped: list[Group] = []
        while True:
            if schedule.when_stale == "drop" and limit is not None:
                stale = [group for group in self.queue if group.due <= self.now and number - group.born > limit]
                dropped += stale
                self.queue = [group for group in self.queue if group not in stale]
            self.begin(number, room)
            order = self.queue if waits else sorted(self.queue, key=lambda group: group.due)
            batch = order[: schedule.prompts]
            if len(batch) == schedule.prompts and all(group.due <= self.now for group in batch):
                break
            self.pass_time(self.next_end(), number, room, "trainer_idle")
        self.queue = [group for group in self.queue if group not in batch]
        end = self.now + 1
        if number + 1 < schedule.rounds:
            room -= schedule.prompts if waits else 0
            self.begin(number, room)
            while self.next_end() <= end:
                self.pass_time(self.next_end(), number, room)
            self.pass_time(end, number, 0)
        self.now = end
        if schedule.in_flight:
            self.drawn = [group.columns for group in batch]  # the rest of what was drawn may be drawn again
        return batch, dropped

    def next_end(self) -> float:
        """The time at which the next group is complete."""
        return min((group.due for group in self.queue if group.due > self.now), default=math.inf)

    def under_way(self) -> int:
        return sum(group.due > self.now for group in self.queue)

    def pass_time(self, to: float, number: int, room: int, idle: str | None = None) -> None:
        """Move the clock, and begin new groups in place of those that are complete."""
        assert self.schedule.concurrency is not None
        free = 1 - self.under_way() / self.schedule.concurrency
        self.idle["sampler_idle"] += free * (to - self.now)
        if idle is not None:
            self.idle[idle] += to - self.now
        self.now = to
        self.begin(number, room)

    def begin(self, number: int, room: int) -> None:
        """Draw groups with the current weights, until enough are under way and as long as there is room."""
        assert self.schedule.concurrency is not None
        assert self.schedule.tokens_per_update is not None
        while self.under_way() < self.schedule.concurrency and len(self.queue) < room:
            columns = self.next_group()
            self.queue.append(Group(columns, number, self.now + longest(columns) / self.schedule.tokens_per_update))

    def next_group(self) -> pa.Table:
        """The completions of the next problem; with `compose.pass_rate`, of the next that it keeps."""
        total = len(self.train.prompts)
        for _ in range(total):
            epoch, place = divmod(self.begun, total)
            order = random_generator(self.seed, self.iteration, f"prompts {epoch}").permutation(total)
            drawn = self.sample_groups(order[place : place + 1], self.begun, draws=1)
            self.begun += 1
            if drawn:
                return drawn[0]
        raise TOPRError(f"compose.pass_rate={self.compose.pass_rate}: none of {total} problems is solved so often")

    def go_on(self, number: int) -> None:
        """Have the current weights draw what the completions under way grow by from now on."""
        rate = self.schedule.tokens_per_update
        assert rate is not None
        left = [math.floor((group.due - self.now) * rate + ROUNDING) for group in self.queue]
        going = [place for place, tokens in enumerate(left) if tokens > 0]
        size = self.sampler.config.prompts_per_shard
        for start in range(0, len(going), size):
            places = going[start : start + size]
            lengths = [longest(self.queue[place].columns) for place in places]
            kept = [length - left[place] for place, length in zip(places, lengths, strict=True)]
            old = pa.concat_tables([self.queue[place].columns for place in places]).combine_chunks()
            columns = self.draw_rest(old, np.repeat(kept, self.n), (self.iteration, number, start, IN_FLIGHT))
            for place, part, length, tokens in zip(places, self.groups(columns), lengths, kept, strict=True):
                group, later = self.queue[place], (longest(part) - length) / rate
                self.queue[place] = Group(part, group.born if tokens else number, group.due + later)

    def draw_rest(self, old: pa.Table, kept: np.ndarray, seed: tuple[int, ...]) -> pa.Table:
        """Draw completions again from token `kept` on; log μ of a token is by the weights that drew it."""
        assert isinstance(self.sampler, HFSampler)
        indices = old["question"].to_numpy()
        rows = zip(old["tokens"].to_pylist(), old["sampler_logp"].to_pylist(), old["finish"].to_pylist(), strict=True)
        samples = [
            Sample(tokens[:keep], logp[:keep], "length" if len(tokens) > keep else finish)
            for (tokens, logp, finish), keep in zip(rows, kept, strict=True)
        ]
        going = [row for row, tokens in enumerate(Ragged(old["tokens"])) if len(tokens) > kept[row]]
        prompts, begun = [self.train.prompts[indices[row]].tolist() for row in going], [samples[row] for row in going]
        groups = [samples[start : start + self.n] for start in range(0, len(samples), self.n)]
        with self.present_policy() as policy:
            with self.timed("sampling"):
                self.sampler.sample(policy, prompts, 1, (self.sampler.config.seed, *seed), self.train.stop, begun)
            columns = table_of_samples(policy, groups, self.train.stop)
            columns = self.judged(columns, policy, indices[:: self.n])
        parts = zip(Ragged(old["logp"]), Ragged(columns["logp"]), kept, strict=True)
        mu = pa.array([np.concatenate([was[:keep], new[keep:]]) for was, new, keep in parts], pa.list_(pa.float32()))
        self.trainer.sampled += token_count(columns) - token_count(old)
        return columns.set_column(columns.column_names.index("logp"), "logp", mu)

    def count(self, groups: list[Group], dropped: int) -> None:
        """Add groups to the completions of each kind: all, by verdict, by length and by difficulty."""
        for group in groups:
            lengths = Ragged(group.columns["tokens"]).lengths()
            kinds = [[""] * self.n, [f"_{VERDICTS[code]}" for code in group.columns["verdict"].to_pylist()]]
            kinds.append([f"_length{1 << int(length).bit_length() - 1}" for length in lengths])
            level = self.train.problems[group.columns["question"][0].as_py()].level
            kinds.append([] if level is None else [f"_level{level}"] * self.n)
            for kind, number in Counter(itertools.chain(*kinds)).items():
                part, whole = self.used.get(kind, (0, 0))
                self.used[kind] = part + dropped * number, whole + number

    def serialized(self) -> dict[str, bytes]:
        """The queue and the clock; what is trained on is gone when a checkpoint is written."""
        known = {"begun": self.begun, "now": self.now, "used": self.used, "seen": self.seen}
        parts = []
        for group in self.queue:
            columns = group.columns.append_column("born", pa.array([group.born] * self.n, pa.int32()))
            parts.append(columns.append_column("due", pa.array([group.due] * self.n, pa.float64())))
        table = pa.concat_tables(parts) if parts else pa.table({"due": pa.array([], pa.float64())})
        return {QUEUE: as_file(table.replace_schema_metadata({"state": json.dumps(known)}))}

    def restore(self, checkpoint: Path) -> None:
        table = read_table(checkpoint / QUEUE)
        state = json.loads(table.schema.metadata[b"state"])
        self.begun, self.now, self.used = state["begun"], state["now"], state["used"]
        self.seen = state["seen"]  # its names, where an update samples nothing
        for part in self.groups(table.replace_schema_metadata(None)):
            born, due = part["born"][0].as_py(), part["due"][0].as_py()
            self.queue.append(Group(part.drop_columns(["born", "due"]), born, due))
