"""Measurements of a run as lines of JSON: `metrics.jsonl`, one per update, and `eval.jsonl`, one per evaluation.

Damaged lines raise no error: they are counted.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeGuard

from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import check_guards, disk_errors, open_own_file, sync, write_text
from topr_exp.runtime.json_files import as_number, name_lines, read_lines
from topr_exp.runtime.terminal import warn

MAX_NAMED_UPDATES = 10  # in a line on lost ones
MAX_COUNT = 1 << 53  # a larger number of updates or samples is damage

Record = dict[str, Any]
Listener = Callable[[Record], None]


class UpdateKey(NamedTuple):
    """Place of an update in a run."""

    iteration: int
    step: int


class EvaluationKey(NamedTuple):
    """Weights and problems of an evaluation."""

    iteration: int
    step: int | None  # None: the end of the iteration
    is_subset: bool  # a part of the test problems


class Position(NamedTuple):
    """Progress of training: updates and samples."""

    steps: int = 0
    samples: int = 0


class RecordFile:
    """A file of records in a run's folder, with a listener to new ones."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.name
        self._listener: Listener = lambda record: None

    def listen(self, listener: Listener) -> None:
        """Call `listener` with each new record."""
        self._listener = listener


class Metrics(RecordFile):
    """metrics.jsonl, which grows during training."""

    name = "metrics.jsonl"

    @main_process_only
    def rewind(self, iteration: int, step: int) -> None:
        """Drop the records after an update, which is repeated from there; warn of lost ones before it."""
        end = UpdateKey(iteration, step)
        _, damaged_lines = read_lines(self.path, is_update)
        records = {key: record for key, record in self.updates().items() if key <= end}
        write_lines(self.path, records.values())
        lost_updates = describe_missing_updates(records, {iteration: step})
        if lost_updates:
            cause = f" ({name_lines(damaged_lines)} damaged)" if damaged_lines else ""
            warn(f"{self.path} lacks {lost_updates}{cause}")

    @main_process_only
    def append(self, record: dict[str, float]) -> None:
        """Add the record of an update; numbers that are not finite, which JSON lacks, become null."""
        check_guards(self.path)
        line: Record = {}
        for name, value in record.items():
            line[name] = value if math.isfinite(value) else None
        with (
            disk_errors(f"write {self.path}"),
            open(self.path, "a", encoding="utf-8", opener=open_own_file) as file,
        ):
            file.write(json_line(line))
        self._listener(line)

    @main_process_only
    def make_durable(self) -> None:
        """Flush all lines to the disk."""
        with disk_errors(f"write {self.path}"):
            sync(self.path)

    def of_iteration(self, iteration: int) -> list[Record]:
        """Return the records of an iteration's updates."""
        return [record for key, record in self.updates().items() if key.iteration == iteration]

    def updates(self) -> dict[UpdateKey, Record]:
        """Return the records by update."""
        records, _ = read_lines(self.path, is_update)
        return {update_key(record): record for record in records}


class Evaluations(RecordFile):
    """eval.jsonl: the base model, evaluations during training, and the model of each iteration."""

    name = "eval.jsonl"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._lines: dict[EvaluationKey, str] | None = None  # of the file, from the first `add` on

    @main_process_only
    def drop_damaged(self) -> None:
        """Drop damaged lines with a warning: evaluations that this attempt does not repeat are lost."""
        evaluations, damaged_lines = read_lines(self.path, is_evaluation)
        if damaged_lines:
            warn(f"{self.path}: {len(damaged_lines)} damaged; only evaluations from here on are made again")
            write_lines(self.path, evaluations)

    @main_process_only
    def add(self, record: Record) -> None:
        """Write an evaluation, in the place of an earlier one of the same weights and problems if there is one."""
        if self._lines is None:
            self._lines = {key: json_line(stored_record) for key, stored_record in self.evaluations().items()}
        # A dict keeps the place: a resumed run must not change the order.
        self._lines[evaluation_key(record)] = json_line(record)
        write_text(self.path, "".join(self._lines.values()))
        self._listener(record)

    def count_missing(self, updates: Iterable[UpdateKey], every: int | None, iterations: int) -> int:
        """Count the evaluations that a run of these updates made and whose lines are lost."""
        expected = {EvaluationKey(iteration, None, is_subset=False) for iteration in range(iterations + 1)}
        for iteration, step in updates:
            if every is not None and step % every == 0:
                expected.add(EvaluationKey(iteration, step, is_subset=True))
        return len(expected - self.evaluations().keys())

    def evaluations(self) -> dict[EvaluationKey, Record]:
        """Return the records by weights and problems."""
        records, _ = read_lines(self.path, is_evaluation)
        return {evaluation_key(record): record for record in records}


def write_lines(path: Path, records: Iterable[Record]) -> None:
    write_text(path, "".join(map(json_line, records)))


def json_line(record: Record) -> str:
    return json.dumps(record) + "\n"


def describe_missing_updates(recorded: Collection[UpdateKey], ends: dict[int, int]) -> str:
    """Name the updates that lack a record; "" for none.

    ends: the last update of some iterations; by default the last recorded one.
    """
    recorded_steps: dict[int, set[int]] = defaultdict(set)  # by iteration
    for iteration, step in recorded:
        recorded_steps[iteration].add(step)
    last_steps = {iteration: max(steps) for iteration, steps in recorded_steps.items()} | ends
    names: list[str] = []
    missing_count = 0
    for iteration in sorted(last_steps):
        prefix = f"{iteration}/" if len(last_steps) > 1 else ""
        steps = recorded_steps[iteration] - {0}
        missing_count += last_steps[iteration] - len(steps)
        missing_steps = filterfalse(steps.__contains__, range(1, last_steps[iteration] + 1))
        for step in islice(missing_steps, MAX_NAMED_UPDATES - len(names)):  # a damaged record may be of update 10^15
            names.append(f"{prefix}{step}")
    if not names:
        return ""
    noun = "update" if missing_count == 1 else "updates"
    line = f"{noun} {', '.join(names)}"
    if missing_count > len(names):
        line += f" and {missing_count - len(names)} more"
    return line


def update_key(record: Record) -> UpdateKey:
    return UpdateKey(record["iteration"], record["step"])


def evaluation_key(record: Record) -> EvaluationKey:
    return EvaluationKey(record["iteration"], record.get("step"), record.get("subset", False))


def is_update(record: Record) -> bool:
    """True if a record of metrics.jsonl names its update, and its figures are numbers or null."""
    has_place = is_count(record.get("iteration")) and is_count(record.get("step"))
    return has_place and all(value is None or as_number(value) is not None for value in record.values())


def is_evaluation(record: Record) -> bool:
    """True if a record of eval.jsonl names its weights and problems."""
    has_place = all(is_count(record.get(name, 0)) for name in ("step", "samples_seen"))
    subset = record.get("subset", False)
    return is_count(record.get("iteration")) and has_place and (isinstance(subset, bool) or is_count(subset))


def samples_of(record: Record) -> int:
    """Return the samples of an update's record; 0 for a damaged number."""
    samples = record.get("samples")
    if is_count(samples):
        return samples
    return 0


def is_count(value: Any) -> TypeGuard[int]:
    """True for a whole number that counts iterations, updates or samples."""
    return type(value) is int and 0 <= value <= MAX_COUNT


# ---- one axis through all iterations


def on_one_axis(metrics: Iterable[Record], evaluations: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return copies of the records with `optimizer_step` and `samples` counted from the run's first update.

    In the files `step`, `samples` and `virtual_time` restart in each iteration, which an evaluation without `step`
    ends. Records without the numbers that this needs are left out; the later of two records of an update counts.
    """
    records: dict[UpdateKey, Record] = {}
    ends: dict[int, Position] = {}  # of iterations, counted from their own first update
    for record in filter(is_update, metrics):
        key = update_key(record)
        records[key] = record
        end = Position(key.step, samples_of(record))
        ends[key.iteration] = max(ends.get(key.iteration, Position()), end)
    evaluations = [*filter(is_evaluation, evaluations)]
    iterations = {record["iteration"] for record in evaluations} | {*ends}
    starts = starts_of_iterations(iterations, ends)
    return place_updates(records, starts), place_evaluations(evaluations, starts, ends)


def place_updates(records: dict[UpdateKey, Record], starts: dict[int, Position]) -> list[Record]:
    """Return copies of updates, in their order, counted from the run's first one; starts: of the iterations."""
    updates = []
    iteration_of_time = None  # of the last update with a virtual time
    time_before_iteration = time_in_iteration = 0.0
    for key in sorted(records):
        record = records[key]
        start = starts[key.iteration]
        update = {
            **record,
            "optimizer_step": start.steps + key.step,
            "samples": start.samples + samples_of(record),
        }
        virtual_time = as_number(record.get("virtual_time"))
        if virtual_time is not None:
            if key.iteration != iteration_of_time:
                time_before_iteration += time_in_iteration
                iteration_of_time = key.iteration
            time_in_iteration = virtual_time
            update["virtual_time"] = time_before_iteration + time_in_iteration
        updates.append(update)
    return updates


def place_evaluations(
    evaluations: Iterable[Record], starts: dict[int, Position], ends: dict[int, Position]
) -> list[Record]:
    """Return copies of evaluations, by their place counted from the run's first update."""
    placed_evaluations = []
    for record in evaluations:
        iteration = record["iteration"]
        start = starts[iteration]
        end = ends.get(iteration, Position())
        steps = record.get("step", end.steps)
        samples = record.get("samples_seen", end.samples)
        place = {"optimizer_step": start.steps + steps, "samples_seen": start.samples + samples}
        placed_evaluations.append({**record, **place})
    placed_evaluations.sort(key=lambda record: (record["optimizer_step"], record["iteration"]))
    return placed_evaluations


def starts_of_iterations(iterations: Iterable[int], ends: dict[int, Position]) -> dict[int, Position]:
    """Sum the updates and samples before each iteration."""
    starts = {}
    steps = samples = 0
    for iteration in sorted(iterations):
        starts[iteration] = Position(steps, samples)
        end = ends.get(iteration, Position())
        steps += end.steps
        samples += end.samples
    return starts
