"""The measurements of a run as lines of JSON: `metrics.jsonl`, one an update, and `eval.jsonl`, one an evaluation.

Nothing that stands in a file raises an error here: damaged lines are counted.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import check_guards, disk_errors, open_own_file, sync, write_text
from topr_exp.runtime.json_files import as_number, read_lines
from topr_exp.runtime.terminal import warn

Record = dict[str, Any]


class Metrics:
    """metrics.jsonl, which grows while the run trains."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.listener: Callable[[Record], None] | None = None  # called with each new record

    @main_process_only
    def rewind(self, iteration: int, step: int) -> None:
        """Drop the lines after `step` of `iteration`, to write them again; a warning counts lost ones before."""
        kept = {place: record for place, record in self.updates().items() if place <= (iteration, step)}
        write_lines(self.path, kept.values())
        if lost := missing_updates(kept, {iteration: step}):
            warn(f"{self.path} lacks {lost}")

    @main_process_only
    def append(self, record: dict[str, float]) -> None:
        """Add the record of an update; null for what is not finite, which JSON does not have."""
        check_guards(self.path)
        known = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with (
            disk_errors(f"write {self.path}"),
            open(self.path, "a", encoding="utf-8", opener=open_own_file) as file,
        ):
            file.write(json.dumps(known) + "\n")
        if self.listener is not None:
            self.listener(known)

    @main_process_only
    def make_durable(self) -> None:
        """Have every line on the disk before this returns."""
        with disk_errors(f"write {self.path}"):
            sync(self.path)

    def of_iteration(self, iteration: int) -> list[Record]:
        """The records of an iteration's updates."""
        return [record for place, record in self.updates().items() if place[0] == iteration]

    def missing(self) -> str:
        """The updates before the last ones recorded whose lines are lost, in words; "" for none."""
        return missing_updates(self.updates(), {})

    def updates(self) -> dict[tuple[int, int], Record]:
        """The records by iteration and number of the update."""
        return {(each["iteration"], each["step"]): each for each in filter(is_update, read_lines(self.path)[0])}


class Evaluations:
    """eval.jsonl: the base model, what was measured while training, and the model of each iteration."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "eval.jsonl"
        self.listener: Callable[[Record], None] | None = None  # called with each new record

    @main_process_only
    def drop_damaged(self) -> None:
        """Drop damaged lines, with a warning: what of them an attempt does not measure again is lost."""
        records, damaged = read_lines(self.path)
        kept = [*filter(is_evaluation, records)]
        if dropped := damaged + len(records) - len(kept):
            warn(f"{self.path}: {dropped} damaged; only evaluations from here on are made again")
            write_lines(self.path, kept)

    @main_process_only
    def add(self, record: Record) -> None:
        """Write an evaluation in place of an earlier one of the same weights and problems."""
        records = {evaluated(each): each for each in read_lines(self.path)[0]}
        records[evaluated(record)] = record  # in its place: a resumed run must not change the order
        write_lines(self.path, records.values())
        if self.listener is not None:
            self.listener(record)

    def missing(self, updates: Iterable[tuple[int, int]], every: int | None, iterations: int) -> int:
        """Count the evaluations that a run of these updates made and whose lines are lost."""
        points = [(iteration, step, True) for iteration, step in updates if every is not None and step % every == 0]
        there = {evaluated(record) for record in read_lines(self.path)[0]}
        return len({*points, *((iteration, None, False) for iteration in range(iterations + 1))} - there)


def write_lines(path: Path, records: Iterable[Record]) -> None:
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def missing_updates(there: Collection[tuple[int, int]], ends: dict[int, int]) -> str:
    """The updates of each iteration that are not there up to its last one (or the end that is given), in words."""
    last = {iteration: max(step for place, step in there if place == iteration) for iteration, _ in there} | ends
    wanted = [(iteration, step) for iteration in sorted(last) for step in range(1, last[iteration] + 1)]
    lost = [f"{step}" if len(last) == 1 else f"{iteration}/{step}" for iteration, step in wanted
            if (iteration, step) not in there]  # fmt: skip
    more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""
    return f"update{'s' * (len(lost) > 1)} {', '.join(lost[:10])}{more}" if lost else ""


def evaluated(record: Record) -> tuple[Any, ...]:
    """Key of an evaluation: the iteration, the update within it (None: its end), and whether a part of the test."""
    return record.get("iteration"), record.get("step"), record.get("subset", False)


def is_update(record: Record) -> bool:
    """Check that a record of metrics.jsonl has its place in the training."""
    return all(type(record.get(name)) is int for name in ("iteration", "step"))


def samples_of(record: Record) -> int:
    """The samples of an update's record, 0 where a damaged line has no number."""
    samples = record.get("samples")
    return samples if type(samples) is int else 0


def is_evaluation(record: Record) -> bool:
    """Check that a record of eval.jsonl names its model."""
    return type(record.get("iteration")) is int


def on_one_axis(metrics: Iterable[Record], evaluations: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Copies of the records with `optimizer_step` and `samples` counted from the run's first update.

    In the files `step`, `samples` and `virtual_time` start anew in each iteration; an evaluation without `step` closes
    it. Records without the numbers that this needs are left out; of two for the same update the later one counts.
    """
    ends: dict[int, tuple[int, int]] = {}  # iteration -> its last step and samples so far
    by_update: dict[tuple[int, int], Record] = {}
    for record in filter(is_update, metrics):
        iteration, step = record["iteration"], record["step"]
        by_update[iteration, step] = record
        ends[iteration] = max(ends.get(iteration, (0, 0)), (step, samples_of(record)))

    @cache
    def start(iteration: int) -> tuple[int, int]:
        before = [end for earlier, end in ends.items() if earlier < iteration]
        return sum(step for step, _ in before), sum(samples for _, samples in before)

    updates, clocks = [], dict[int, float]()  # the clock's last time in each iteration
    for (iteration, step), record in sorted(by_update.items()):
        first, seen = start(iteration)
        updates.append({**record, "optimizer_step": first + step, "samples": seen + samples_of(record)})
        if (now := as_number(record.get("virtual_time"))) is not None:
            updates[-1]["virtual_time"] = now + sum(end for earlier, end in clocks.items() if earlier != iteration)
            clocks[iteration] = now
    tests = []
    for record in filter(is_evaluation, evaluations):
        (first, seen), last = start(record["iteration"]), ends.get(record["iteration"], (0, 0))
        step, samples = record.get("step", last[0]), record.get("samples_seen", last[1])
        tests.append({**record, "optimizer_step": first + step, "samples_seen": seen + samples})
    tests.sort(key=lambda record: (record["optimizer_step"], record["iteration"]))
    return updates, tests
