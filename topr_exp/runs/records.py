"""The records of a run on one axis: optimizer steps and samples, counted through all its iterations.

They may be read while the run writes them, or after it died: a half-written line is left for the next time, a damaged
one is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import parse_object

Record = dict[str, Any]


@dataclass
class Lines:
    """A growing file of JSON objects, one a line, as far as its lines are complete."""

    path: Path
    records: list[Record] = field(default_factory=list)
    damaged: int = 0  # lines that are no JSON object
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
        self._read += len(whole)
        for line in whole.splitlines():
            record = parse_object(line)
            if record is None:
                self.damaged += 1
            else:
                self.records.append(record)


def on_one_axis(metrics: Iterable[Record], evaluations: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Copies of the records with `optimizer_step` and `samples` counted from the run's first update.

    In the files `step` and `samples` start anew in each iteration. An evaluation without `step` closes its iteration.
    Records without the numbers that this needs are left out; of two for the same update the later one counts.
    """
    ends: dict[int, tuple[int, int]] = {}  # iteration -> its last step and samples so far
    by_update: dict[tuple[int, int], Record] = {}
    for record in metrics:
        iteration, step = record.get("iteration"), record.get("step")
        if not isinstance(iteration, int) or not isinstance(step, int):
            continue
        by_update[iteration, step] = record
        ends[iteration] = max(ends.get(iteration, (0, 0)), (step, int(record.get("samples") or 0)))
    starts = {0: (0, 0)}
    for iteration in range(1, max(ends, default=0) + 2):
        before, last = starts[iteration - 1], ends.get(iteration - 1, (0, 0))
        starts[iteration] = (before[0] + last[0], before[1] + last[1])
    updates = []
    for (iteration, step), record in sorted(by_update.items()):
        samples = starts[iteration][1] + int(record.get("samples") or 0)
        updates.append({**record, "optimizer_step": starts[iteration][0] + step, "samples": samples})
    tests = []
    for record in evaluations:
        iteration = record.get("iteration")
        if isinstance(iteration, int) and iteration in starts:
            first, last = starts[iteration], ends.get(iteration, (0, 0))
            step, samples = record.get("step", last[0]), record.get("samples_seen", last[1])
            tests.append({**record, "optimizer_step": first[0] + step, "samples_seen": first[1] + samples})
    tests.sort(key=lambda record: (record["optimizer_step"], record["iteration"]))
    return updates, tests
