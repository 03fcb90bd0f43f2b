"""Asynchronous training by a virtual clock: completions of older weights, as a function of the settings and seeds.

An update of the trainer is one unit of time. Completions are drawn by the weights of the moment at which they begin,
and wait in a queue, part of each checkpoint, until they are trained on; old weights are not kept. `schedule.lag` says
how long, or their lengths do: `schedule.concurrency` groups are under way at once, each completion grows by
`schedule.tokens_per_update` tokens a unit, and a group is ready when its longest completion is.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from topr_exp.composition.candidates import random_generator
from topr_exp.grading.verdicts import Verdicts
from topr_exp.store import Ragged
from topr_exp.training.examples import Examples
from topr_exp.training.on_policy import Rounds, as_file, read_table
from topr_exp.types import TOPRError

QUEUE = "queue.arrow"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of a problem, from when they are drawn until they are trained on."""

    columns: pa.Table
    born: int  # updates that the weights had seen which drew them
    due: float  # the update that trains on them; where lengths decide, the time at which the longest is complete


@dataclass
class AsyncRounds(Rounds):
    """Updates on completions of older weights; with a lag of 0 the same bits as on-policy."""

    queue: list[Group] = field(default_factory=list)  # in the order in which they began
    begun: int = 0  # groups so far, where lengths decide
    now: float = 0.0
    idle: dict[str, float] = field(default_factory=dict)  # units of time since the last update
    ages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # of the groups of the update

    def sample_round(self, number: int) -> bool:
        """Sample what begins before update `number`, and choose what it trains on; True where some of it is older."""
        self.idle = {"trainer_idle": 0.0, "sampler_idle": 0.0}
        batch, dropped = self.by_length(number) if self.schedule.concurrency else (self.by_lag(number), [])
        self.fill_round([group.columns for group in batch], number)
        self.ages = np.array([number - group.born for group in batch])
        low, middle, high = np.quantile(self.ages, [0.05, 0.5, 0.95]).tolist()
        self.seen |= {"age": float(self.ages.mean()), "age_q05": low, "age_q50": middle, "age_q95": high}
        if self.schedule.concurrency:
            self.seen |= {"virtual_time": self.now, **self.idle}
        if self.schedule.when_stale == "drop":
            self.seen |= self.describe_dropped(dropped)
        return bool(self.ages.any())

    def examples_of_round(self) -> Examples:
        return dataclasses.replace(super().examples_of_round(), age=self.ages)

    # ---- a lag that is given

    def by_lag(self, number: int) -> list[Group]:
        """Draw all that has the current weights, for this update and later ones; returns what is due."""
        assert self.schedule.prompts is not None
        assert self.schedule.rounds is not None
        shards = self.schedule.prompts * self.compose.max_draws  # of one draw at most
        for due in range(number, min(number + len(self.schedule.lags), self.schedule.rounds)):
            begins = np.maximum(due - self.lags_of(due), 0) == number
            if begins.any():
                indices, _ = self.choose_prompts(due)
                first = 0 if begins.all() else (due - number) * shards  # as on-policy, where all begin at once
                drawn = self.sample_groups(indices[begins], due, first)
                self.queue += [Group(columns, number, due) for columns in drawn]
        batch = [group for group in self.queue if group.due == number]
        self.queue = [group for group in self.queue if group.due != number]
        return batch

    def lags_of(self, due: int) -> np.ndarray:
        """The lag of each problem of an update."""
        shares = self.schedule.lags
        rng = random_generator(self.seed, self.iteration, f"lags {due}")
        return np.asarray(rng.choice(len(shares), size=self.schedule.prompts, p=shares))

    # ---- lags by lengths

    def by_length(self, number: int) -> tuple[list[Group], list[Group]]:
        """Let time pass until a batch is ready and while the update is computed; returns the batch and what is dropped.

        wait: groups are trained on in the order in which they began, and so few are under way that none gets older
        than `schedule.max_lag`. Else the first that are ready come first, and sampling pauses while as many groups wait
        as can be under way; drop: those that are older are left out.
        """
        schedule = self.schedule
        assert schedule.prompts is not None
        assert schedule.rounds is not None
        assert schedule.concurrency is not None
        waits, limit = schedule.when_stale == "wait", schedule.max_lag
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
        if number + 1 < schedule.rounds:
            end = self.now + 1
            room -= schedule.prompts if waits else 0
            self.begin(number, room)
            while self.next_end() <= end:
                self.pass_time(self.next_end(), number, room)
            self.pass_time(end, number, 0)
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
            length = max(len(tokens) for tokens in Ragged(columns["tokens"]))
            self.queue.append(Group(columns, number, self.now + length / self.schedule.tokens_per_update))

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

    def describe_dropped(self, groups: list[Group]) -> dict[str, float]:
        """Count the groups that were dropped, with their mean length, share of correct ones and level."""
        found: dict[str, float] = {"dropped": len(groups)}
        if groups:
            columns = pa.concat_tables([group.columns for group in groups])
            found["dropped_length"] = float(Ragged(columns["tokens"]).lengths().mean())
            found["dropped_correct"] = float(Verdicts("", columns).positive.mean())
            levels = [self.train.problems[i].level for i in columns["question"].to_pylist()]
            if None not in levels:
                found["dropped_level"] = float(np.mean(levels))
        return found

    # ---- checkpoints

    def serialized(self) -> dict[str, bytes]:
        """The queue and the clock; what is trained on is gone when a checkpoint is written."""
        state = {"state": json.dumps({"begun": self.begun, "now": self.now, "seen": self.seen})}
        parts = []
        for group in self.queue:
            columns = group.columns.append_column("born", pa.array([group.born] * self.n, pa.int32()))
            parts.append(columns.append_column("due", pa.array([group.due] * self.n, pa.float64())))
        table = pa.concat_tables(parts) if parts else pa.table({"due": pa.array([], pa.float64())})
        return {QUEUE: as_file(table.replace_schema_metadata(state))}

    def restore(self, checkpoint: Path) -> None:
        table = read_table(checkpoint / QUEUE)
        state = json.loads(table.schema.metadata[b"state"])
        self.begun, self.now, self.seen = state["begun"], state["now"], state["seen"]
        for part in self.groups(table.replace_schema_metadata(None)):
            born, due = part["born"][0].as_py(), part["due"][0].as_py()
            self.queue.append(Group(part.drop_columns(["born", "due"]), born, due))
