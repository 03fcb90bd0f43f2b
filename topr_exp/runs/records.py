"""The records of a run on one axis: optimizer steps and samples, counted through all its iterations.

They may be read while the run writes them, or after it died: a half-written line is left for the next time, a damaged
one is counted. Nothing that stands in a file raises an error here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from topr_exp.runtime.jsonfiles import parse_object

Record = dict[str, Any]


@dataclass
class Lines:
    """A growing file of JSON objects, one a line, as far as its lines are complete."""

    path: Path
    records: list[Record] = field(default_factory=list)
    damaged: int = 0  # lines that are no JSON object
    unended: int = 0  # bytes after the last whole line
    _file: tuple[int, int] = (0, 0)
    _read: int = 0

    def refresh(self) -> None:
        """Read what was added; from the start again where the file was replaced or cut."""
        try:
            with self.path.open("rb") as file:
                status = self.path.stat()
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._read:
                    self.records, self.damaged, self._read = [], 0, 0
                    self._file = (status.st_dev, status.st_ino)
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read, self.unended = self._read + len(whole), len(new) - len(whole)
        for line in whole.splitlines():
            record = parse_object(line)
            if record is None:
                self.damaged += 1
            else:
                self.records.append(record)


def is_update(record: Record) -> bool:
    """Check that a record of metrics.jsonl has its place in the training."""
    return all(type(record.get(n, 0 if n == "samples" else None)) is int for n in ("iteration", "step", "samples"))


def is_evaluation(record: Record) -> bool:
    """Check that a record of eval.jsonl names its model."""
    return type(record.get("iteration")) is int and all(type(record.get(n, 0)) is int for n in ("step", "samples_seen"))


def on_one_axis(metrics: Iterable[Record], evaluations: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Copies of the records with `optimizer_step` and `samples` counted from the run's first update.

    In the files `step` and `samples` start anew in each iteration. An evaluation without `step` closes its iteration.
    Records without the numbers that this needs are left out; of two for the same update the later one counts.
    """
    ends: dict[int, tuple[int, int]] = {}  # iteration -> its last step and samples so far
    by_update: dict[tuple[int, int], Record] = {}
    for record in filter(is_update, metrics):
        iteration, step = record["iteration"], record["step"]
        by_update[iteration, step] = record
        ends[iteration] = max(ends.get(iteration, (0, 0)), (step, record.get("samples", 0)))

    @cache
    def start(iteration: int) -> tuple[int, int]:
        before = [end for number, end in ends.items() if number < iteration]
        return sum(step for step, _ in before), sum(samples for _, samples in before)

    updates = []
    for (iteration, step), record in sorted(by_update.items()):
        first, seen = start(iteration)
        updates.append({**record, "optimizer_step": first + step, "samples": seen + record.get("samples", 0)})
    tests = []
    for record in filter(is_evaluation, evaluations):
        (first, seen), last = start(record["iteration"]), ends.get(record["iteration"], (0, 0))
        step, samples = record.get("step", last[0]), record.get("samples_seen", last[1])
        tests.append({**record, "optimizer_step": first + step, "samples_seen": seen + samples})
    tests.sort(key=lambda record: (record["optimizer_step"], record["iteration"]))
    return updates, tests
