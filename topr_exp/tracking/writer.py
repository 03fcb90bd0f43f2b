"""Interface of a tracker's client: one run, to which records are written in order, each once."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

from topr_exp.runs.records import Record, is_update, on_one_axis
from topr_exp.runtime.json_files import as_number

# "whole": an evaluation on the whole test set, in runs that have others on a part of it.
Kind = Literal["train", "eval", "whole"]

STEPS_PER_UPDATE = 3  # of the tracker: an update, an evaluation on a part of the test set, one on all of it
# Names in the sections train and eval; maj@K is in eval, too, and all others are in the section rest.
CHARTS: dict[Kind, tuple[str, ...]] = {
    "train": ("loss", "ess", "log_ratio_pos", "log_ratio_neg"),
    "eval": ("pass@1", "length"),
    "whole": (),
}
AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")


class Point(NamedTuple):
    """A record and its place among the tracker's steps."""

    step: int
    kind: Kind
    record: Record


class Writer(ABC):
    """One run in a tracker; `open`, `write`, `finish` and `release` are called from one thread, in this order."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.warn = warn
        self.location = ""  # a line for the user: where to find the run
        self.last_step = -1  # that the tracker has
        self._last_updates: dict[int, Record] = {}  # by iteration, whose end `on_one_axis` needs
        self._has_curve = False  # of evaluations on a part of the test set, which come before those on all of it

    @abstractmethod
    def open(self) -> None:
        """Connect to the tracker, and set `location`."""

    @abstractmethod
    def log(self, point: Point) -> None:
        """Send one record."""

    def finish(self, exit_code: int, *, preempted: bool) -> None:  # noqa: B027
        """Send the results of a finished run, and how the attempt ended."""

    @abstractmethod
    def release(self) -> None:
        """Close the client, also after an error."""

    def kill(self) -> None:  # noqa: B027
        """Make a call that hangs fail, from another thread."""

    def write(self, metrics: Sequence[Record], evaluations: Sequence[Record]) -> None:
        """Send records in order, without those that the tracker has.

        Steps are unique and follow from the updates done, so that the tracker's last step says what it has.
        """
        updates, placed_evaluations = on_one_axis([*self._last_updates.values(), *metrics], evaluations)
        points = []
        for record in updates:
            points.append(Point(STEPS_PER_UPDATE * record["optimizer_step"], "train", record))
        self._has_curve |= any(record.get("subset") for record in placed_evaluations)
        points += map(self._evaluation_point, placed_evaluations)
        for point in sorted(points, key=attrgetter("step")):
            if point.step > self.last_step:
                self.log(point)
                self.last_step = point.step
        for record in filter(is_update, metrics):
            self._last_updates[record["iteration"]] = record

    def _evaluation_point(self, record: Record) -> Point:
        first_step = STEPS_PER_UPDATE * record["optimizer_step"]
        if record.get("subset"):
            return Point(first_step + 1, "eval", record)
        kind: Kind = "whole" if self._has_curve else "eval"
        return Point(first_step + 2, kind, record)


def chart_values(kind: Kind, record: Record) -> dict[str, float]:
    """Return a record's numbers by chart: train/loss, eval/pass_at_1 (CHARTS), rest/...; the axes have bare names."""
    samples = record["samples"] if kind == "train" else record["samples_seen"]
    values = {"optimizer_step": record["optimizer_step"], "samples": samples, "iteration": record["iteration"]}
    numbers = dict(record)
    for curve in ("pass", "maj"):  # with the points pass@1, pass@2, ...
        for k, figure in record.get(f"{curve}@k", {}).items():
            numbers[f"{curve}@{k}"] = figure["value"]
    for name, value in numbers.items():
        if as_number(value) is None or name.endswith("_se") or name in (*AXES, "maj@1"):
            continue
        is_headline_majority = name in record and name.startswith("maj@")  # maj@8, or of n below 8; others are points
        is_charted = name in CHARTS[kind] or (kind == "eval" and is_headline_majority)
        if is_charted:
            values[f"{kind}/{name}"] = value
        else:
            values[f"rest/{kind}_{name}"] = value
    return {tracker_name(name): value for name, value in values.items()}


def tracker_name(name: str) -> str:
    """Rewrite a name so that trackers can sort and filter by it: letters, digits, _ and /."""
    return re.sub(r"[^\w/]", "_", name.replace("@", "_at_"))
