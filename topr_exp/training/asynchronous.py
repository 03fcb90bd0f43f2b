"""Asynchronous training: updates on completions of older weights, which wait in a queue.

An update is one unit of time. Completions are sampled with the weights current when they start, and wait in the queue,
part of each checkpoint, until they are trained on; no old weights are kept. How long they wait is given (`lagged.py`)
or follows from their lengths by a virtual clock (`clocked.py`): a function of the settings and seeds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.store import Ragged
from topr_exp.training.rounds import RoundGroups, Rounds, arrow_bytes, read_table

QUEUE = "queue.arrow"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of a problem, from when they are drawn until they are trained on."""

    table: pa.Table
    born: int  # updates that the weights had seen which drew them, or their first tokens
    due: float  # the update that trains on them; by the clock, the time at which the longest is complete


def tables_of(groups: Iterable[Group]) -> list[pa.Table]:
    return [group.table for group in groups]


def longest_length(table: pa.Table) -> int:
    """Count the tokens of the longest completion."""
    return int(Ragged(table["tokens"]).lengths().max())


class AsyncRounds(Rounds, ABC):
    """Rounds of one update each, on groups from a queue."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.queue: list[Group] = []  # in the order in which they began

    def draw_groups(self, update_index: int) -> RoundGroups:
        """Start new groups and pick the batch of this update."""
        batch = self.take_batch(update_index)
        ages = np.array([update_index - group.born for group in batch])
        is_stale = bool(ages.any())
        return RoundGroups(tables_of(batch), is_stale, ages=ages, metrics=age_metrics(ages))

    @abstractmethod
    def take_batch(self, update_index: int) -> list[Group]:
        """Start new groups and remove the batch of this update from the queue."""

    def remove_groups(self, groups: list[Group]) -> None:
        """Remove groups from the queue."""
        removed = set(groups)
        self.queue = [group for group in self.queue if group not in removed]

    # ---- checkpoints

    def checkpoint_files(self) -> dict[str, bytes]:
        """Write the queue; a checkpoint is written when the batch of its update is gone."""
        table = pa.table({})  # of an empty queue
        if self.queue:
            table = pa.concat_tables(tables_of(self.queue))
        born = np.array([group.born for group in self.queue], np.int32)
        due = np.array([group.due for group in self.queue], np.float64)
        born_by_row = born.repeat(self.n)
        due_by_row = due.repeat(self.n)
        table = table.append_column("born", pa.array(born_by_row))
        table = table.append_column("due", pa.array(due_by_row))
        return {QUEUE: arrow_bytes(table, self.state())}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the queue, JSON-ready."""
        return {"summary": self.summary}

    def restore(self, checkpoint: Path) -> None:
        queue_table, state = read_table(checkpoint / QUEUE)
        for rows in self.split_groups(queue_table):
            born = rows["born"][0].as_py()
            due = rows["due"][0].as_py()
            table = rows.drop_columns(["born", "due"])
            self.queue.append(Group(table, born, due))
        self.restore_state(state)

    def restore_state(self, state: dict[str, Any]) -> None:
        self.summary = state["summary"]  # an update that samples nothing records NaN under these names


def age_metrics(ages: NDArray[np.int64]) -> dict[str, float]:
    """Compute mean and quantiles of the ages of a batch's groups; {} for an empty batch."""
    if not len(ages):
        return {}
    low, median, high = np.quantile(ages, [0.05, 0.5, 0.95]).tolist()
    return {
        "age": float(ages.mean()),
        "age_q05": low,
        "age_q50": median,
        "age_q95": high,
    }
