"""Asynchronous training by a virtual clock: completions of older weights, as a function of the settings and seeds.

An update is one unit of time. Completions are sampled with the weights current when they start, and wait in a queue,
part of each checkpoint, until they are trained on; no old weights are kept. `schedule.lag` sets how long, or their
lengths do: `schedule.concurrency` groups are under way at once, each completion grows by `schedule.tokens_per_update`
tokens a unit, and a group is ready when its longest completion is. With `schedule.in_flight` each token is drawn by the
weights of its moment: when they change, the rest of each completion is drawn again.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from topr_exp.composition.draws import random_generator
from topr_exp.config.groups import MAX_DRAWS
from topr_exp.config.staleness import StalenessPolicy, WaitingGroup
from topr_exp.sampling.generation import table_of_samples, token_count
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample
from topr_exp.store import Ragged
from topr_exp.training.rounds import RoundGroups, Rounds, as_file, read_table
from topr_exp.types import VERDICTS, TOPRError

QUEUE = "queue.arrow"
IN_FLIGHT = 1  # in the seeds of continued completions
ROUNDING = 1e-6  # of the clock, in tokens
MAX_DROPS = 1000  # batches that a policy may drop before one that it trains on


def longest_length(table: pa.Table) -> int:
    """Count the tokens of the longest completion."""
    return int(Ragged(table["tokens"]).lengths().max())


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of a problem, from when they are drawn until they are trained on."""

    table: pa.Table
    born: int  # updates that the weights had seen which drew them, or their first tokens
    due: float  # the update that trains on them; where lengths decide, the time at which the longest is complete


def tables_of(groups: Iterable[Group]) -> list[pa.Table]:
    return [group.table for group in groups]


def waiting_group(group: Group, position: int, number: int) -> WaitingGroup:
    """A group as a policy sees it; position: in the queue; number: of the update."""
    return WaitingGroup(position=position, age=number - group.born, complete_at=group.due, table=group.table)


class Usage(NamedTuple):
    """Completions of a kind so far."""

    dropped: int = 0
    total: int = 0


class AsyncRounds(Rounds):
    """Updates on completions of older weights; with a lag of 0 the same bits as on-policy."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.policy = self.schedule.policy
        self.concurrency = self.schedule.concurrency or 0  # 0: a lag is given
        self.tokens_per_update = self.schedule.tokens_per_update or 0
        self.may_drop = type(self.policy).drops is not StalenessPolicy.drops
        self.queue: list[Group] = []  # in the order in which they began
        self.begun = 0  # groups so far, where lengths decide
        self.now = 0.0
        self.idle: dict[str, float] = {}  # units of time since the last update
        self.usage: dict[str, Usage] = {}  # by kind: "", _VERDICT, _lengthN from N tokens to twice as many, _levelN

    def draw_groups(self, number: int) -> RoundGroups:
        """Start new groups and pick the batch of this update."""
        self.idle = {"trainer_idle": 0.0, "sampler_idle": 0.0}
        dropped: list[Group] = []
        if self.concurrency:
            batch, dropped = self.by_length(number)
        else:
            batch = self.by_lag(number)
        ages = np.array([number - group.born for group in batch])
        metrics: dict[str, float] = {}
        if batch:
            low, middle, high = np.quantile(ages, [0.05, 0.5, 0.95]).tolist()
            metrics = {"age": float(ages.mean()), "age_q05": low, "age_q50": middle, "age_q95": high}
        if self.concurrency:
            metrics |= {"virtual_time": self.now, **self.idle}
        if self.may_drop:
            self.count_usage(dropped, is_dropped=True)
            self.count_usage(batch, is_dropped=False)
            for kind, usage in sorted(self.usage.items()):
                metrics[f"dropped_share{kind}"] = usage.dropped / usage.total
        return RoundGroups(tables_of(batch), is_stale=bool(ages.any()), ages=ages, metrics=metrics)

    # ---- a given lag

    def by_lag(self, number: int) -> list[Group]:
        """Draw all groups that start with the current weights, for this update and later ones; returns the due ones."""
        max_shards = self.prompts * MAX_DRAWS  # of one call of `sample_groups`: no two share a seed
        lag_shares = self.schedule.lags
        for due in range(number, min(number + len(lag_shares), self.rounds)):
            rng = random_generator(self.seed, self.iteration, f"lags {due}")
            lags = rng.choice(len(lag_shares), size=self.prompts, p=lag_shares)
            is_started_now = np.maximum(due - lags, 0) == number
            if is_started_now.any():
                indices, _ = self.choose_prompts(due)
                first_shard = 0  # as on-policy, where all begin at once
                other_indices = None
                if not is_started_now.all():  # groups that begin at another time take other seeds and problems
                    other_problems = np.setdiff1d(np.arange(self.problem_count), indices)
                    lag = due - number
                    first_shard = lag * max_shards
                    other_indices = other_problems[lag :: len(lag_shares)]
                tables = self.sample_groups(indices[is_started_now], due, first_shard, other_indices=other_indices)
                self.queue += [Group(table, number, due) for table in tables]
        batch = [group for group in self.queue if group.due == number]
        self.remove_groups(batch)
        return batch

    # ---- lags by lengths

    def by_length(self, number: int) -> tuple[list[Group], list[Group]]:
        """Let time pass until a batch is ready and while the update is computed; returns the batch and dropped groups.

        The policy says which groups come first and which are dropped; sampling pauses while no more have room.
        """
        if self.schedule.in_flight:
            self.continue_with_current_weights(number)
        room = self.policy.room(self.prompts, self.concurrency)
        dropped: list[Group] = []
        while True:
            dropped += self.drop_stale(number)
            if len(dropped) > MAX_DROPS * self.prompts:
                raise TOPRError(f"schedule.when_stale drops all: {len(dropped)} groups before update {number + 1}")
            self.begin(number, room)
            batch = self.next_batch(number)
            if batch:
                break
            self.pass_time(self.next_end(), number, room=room, idle_name="trainer_idle")
        self.remove_groups(batch)
        end = self.now + 1
        if number + 1 < self.rounds:
            if self.policy.waits:
                room -= self.prompts  # the batch keeps its places until the update is computed
            self.begin(number, room)
            while self.next_end() <= end:
                self.pass_time(self.next_end(), number, room=room)
            self.pass_time(end, number, room=0)
        self.now = end
        if self.schedule.in_flight:
            # Only the batch is summarized as sampled: the rest of every other group may be drawn again.
            self.drawn = tables_of(batch)
        return batch, dropped

    def next_batch(self, number: int) -> list[Group]:
        """The groups that the policy trains on next; none while too few of them are complete."""
        ranked = []
        for position, group in enumerate(self.queue):
            if self.policy.waits or group.due <= self.now:
                ranked.append((self.policy.rank(waiting_group(group, position, number)), position))
        batch = [self.queue[position] for _, position in sorted(ranked)[: self.prompts]]
        is_complete = len(batch) == self.prompts and all(group.due <= self.now for group in batch)
        return batch if is_complete else []

    def drop_stale(self, number: int) -> list[Group]:
        """Remove the complete groups that the policy drops from the queue."""
        dropped: list[Group] = []
        if not self.may_drop:
            return dropped
        for position, group in enumerate(self.queue):
            if group.due <= self.now and self.policy.drops(waiting_group(group, position, number)):
                dropped.append(group)
        self.remove_groups(dropped)
        return dropped

    def remove_groups(self, groups: list[Group]) -> None:
        """Remove groups from the queue."""
        self.queue = [group for group in self.queue if group not in groups]

    def next_end(self) -> float:
        """The time at which the next group is complete; infinite when none is under way."""
        return min((group.due for group in self.queue if group.due > self.now), default=math.inf)

    def under_way(self) -> int:
        return sum(group.due > self.now for group in self.queue)

    def pass_time(self, end: float, number: int, *, room: int, idle_name: str | None = None) -> None:
        """Move the clock to `end`, and begin new groups in place of complete ones.

        idle_name: counts the time as idle under this name, too.
        """
        free_share = 1 - self.under_way() / self.concurrency
        self.idle["sampler_idle"] += free_share * (end - self.now)
        if idle_name is not None:
            self.idle[idle_name] += end - self.now
        self.now = end
        self.begin(number, room)

    def begin(self, number: int, room: int) -> None:
        """Draw groups with the current weights, until enough are under way and as long as there is room."""
        while self.under_way() < self.concurrency and len(self.queue) < room:
            table = self.next_group()
            due = self.now + longest_length(table) / self.tokens_per_update
            self.queue.append(Group(table, number, due))

    def next_group(self) -> pa.Table:
        """The completions of the next problem; with `compose.pass_rate`, of the next that it keeps."""
        for _ in range(self.problem_count):
            epoch, position = divmod(self.begun, self.problem_count)
            index = self.order_prompts(epoch)[position : position + 1]
            groups = self.sample_groups(index, self.begun, max_draws=1)
            self.begun += 1
            if groups:
                return groups[0]
        raise TOPRError(
            f"compose.pass_rate={self.selection.pass_rate}: none of {self.problem_count} problems is solved so often"
        )

    # ---- completions under way when the weights change

    def continue_with_current_weights(self, number: int) -> None:
        """Draw the rest of all completions under way again, in shards, with the current weights."""
        positions = []
        kept_tokens = []  # of the longest completion of each such group
        for position, group in enumerate(self.queue):
            tokens_left = math.floor((group.due - self.now) * self.tokens_per_update + ROUNDING)
            if tokens_left > 0:
                positions.append(position)
                kept_tokens.append(longest_length(group.table) - tokens_left)
        shard_size = self.collector.sampler.config.prompts_per_shard
        for start in range(0, len(positions), shard_size):
            shard = slice(start, start + shard_size)
            self.continue_shard(positions[shard], kept_tokens[shard], number, start)

    def continue_shard(self, positions: list[int], kept_tokens: list[int], number: int, start: int) -> None:
        """Draw the rest of some groups of the queue again; start: number of groups in the shards before."""
        groups = [self.queue[position] for position in positions]
        previous_table = pa.concat_tables(tables_of(groups)).combine_chunks()
        seed = (self.iteration, number, start, IN_FLIGHT)
        new_table = self.draw_rest(previous_table, np.repeat(kept_tokens, self.n), seed)
        new_tables = self.split_groups(new_table)
        for position, group, table, kept_count in zip(positions, groups, new_tables, kept_tokens, strict=True):
            born = group.born if kept_count else number
            extra_tokens = longest_length(table) - longest_length(group.table)
            self.queue[position] = Group(table, born, group.due + extra_tokens / self.tokens_per_update)

    def draw_rest(self, completions: pa.Table, kept_tokens: np.ndarray, seed: tuple[int, ...]) -> pa.Table:
        """Draw completions again from a token on; log μ of a token is by the weights that drew it.

        kept_tokens: [rows] number of tokens of each completion that stay.
        """
        collector = self.collector
        assert isinstance(collector.sampler, HFSampler)
        problem_index = completions["problem"].to_numpy()
        samples = []
        growing = []  # those of `samples` to continue
        prompts = []
        rows = completions.select(["tokens", "sampler_logp", "finish"]).to_pylist()
        for row, problem, keep in zip(rows, problem_index, kept_tokens, strict=True):
            is_growing = len(row["tokens"]) > keep
            finish = "length" if is_growing else row["finish"]
            sample = Sample(row["tokens"][:keep], row["sampler_logp"][:keep], finish)
            samples.append(sample)
            if is_growing:
                growing.append(sample)
                prompts.append(collector.questions.prompts[problem].tolist())
        groups = [samples[start : start + self.n] for start in range(0, len(samples), self.n)]
        stop = collector.questions.stop
        with collector.present_policy() as policy:
            with collector.stage_timer("sampling"):
                sampler_seed = (collector.sampler.config.seed, *seed)
                collector.sampler.sample(policy, prompts, 1, sampler_seed, stop, growing)  # extends them in place
            table = table_of_samples(policy, groups, stop)
            table = collector.grade_and_score(table, policy, problem_index[:: self.n])
        logprobs = []
        for earlier_logp, logp, keep in zip(
            Ragged(completions["logp"]), Ragged(table["logp"]), kept_tokens, strict=True
        ):
            logprobs.append(np.concatenate([earlier_logp[:keep], logp[keep:]]))
        self.trainer.count_sampled(token_count(table) - token_count(completions))
        position = table.column_names.index("logp")
        return table.set_column(position, "logp", pa.array(logprobs, pa.list_(pa.float32())))

    # ---- records and checkpoints

    def count_usage(self, groups: Iterable[Group], *, is_dropped: bool) -> None:
        """Add groups to the completions of each kind: all, by verdict, by length and by difficulty."""
        for group in groups:
            kinds = [""] * self.n
            kinds += [f"_{VERDICTS[code]}" for code in group.table["verdict"].to_pylist()]
            for length in Ragged(group.table["tokens"]).lengths():
                power_of_two = 1 << (int(length).bit_length() - 1)  # the largest that is no larger
                kinds.append(f"_length{power_of_two}")
            level = self.collector.questions.problems[group.table["problem"][0].as_py()].level
            if level is not None:
                kinds += [f"_level{level}"] * self.n
            for kind, count in Counter(kinds).items():
                usage = self.usage.get(kind, Usage())
                dropped_count = count if is_dropped else 0
                self.usage[kind] = Usage(usage.dropped + dropped_count, usage.total + count)

    def checkpoint_files(self) -> dict[str, bytes]:
        """The queue and the clock; a checkpoint is written when the batch of its update is gone."""
        state = {"begun": self.begun, "now": self.now, "usage": self.usage, "summary": self.summary}
        tables = []
        for group in self.queue:
            table = group.table.append_column("born", pa.array([group.born] * self.n, pa.int32()))
            tables.append(table.append_column("due", pa.array([group.due] * self.n, pa.float64())))
        queue = pa.concat_tables(tables) if tables else pa.table({"due": pa.array([], pa.float64())})
        return {QUEUE: as_file(queue, state)}

    def restore(self, checkpoint: Path) -> None:
        table, state = read_table(checkpoint / QUEUE)
        self.begun = state["begun"]
        self.now = state["now"]
        self.usage = {kind: Usage(*counts) for kind, counts in state["usage"].items()}
        self.summary = state["summary"]  # its names, where an update samples nothing
        for part in self.split_groups(table):
            born = part["born"][0].as_py()
            due = part["due"][0].as_py()
            self.queue.append(Group(part.drop_columns(["born", "due"]), born, due))
