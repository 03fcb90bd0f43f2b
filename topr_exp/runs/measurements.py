"""Measurements of a run, as lines of JSON: `metrics.jsonl`, one an update, and `eval.jsonl`, one an evaluation."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from topr_exp.runs.console import warn
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import disk_errors, write_text
from topr_exp.runtime.jsonfiles import read_lines

Listener = Callable[[dict[str, Any]], None]
SHOWN = 10  # most updates that a warning names


class Metrics:
    """metrics.jsonl, which grows while the run trains."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self.listener: Listener | None = None  # called with each new record
        self._file: IO[str] | None = None

    @main_process_only
    def rewind(self, iteration: int, step: int) -> None:
        """Drop the lines after `step` of `iteration` (and damaged ones): they will be written again.

        A warning names the updates before, whose lines are lost.
        """
        records, _ = read_lines(self.path)
        kept = {place: record for record in records if (place := update_of(record)) and place <= (iteration, step)}
        write_lines(self.path, kept.values())
        if lost := missing_updates(kept, iteration, step):
            warn(f"{self.path}: damaged, the records of {lost} are lost")
        self.close()
        with disk_errors(f"write {self.path}"):
            self._file = self.path.open("a", encoding="utf-8")

    @main_process_only
    def append(self, record: dict[str, float]) -> None:
        """Add the record of an update; null for what is not finite, which JSON does not have."""
        assert self._file is not None, "rewind first"
        with disk_errors(f"write {self.path}"):
            known = {name: value if math.isfinite(value) else None for name, value in record.items()}
            self._file.write(json.dumps(known) + "\n")
            self._file.flush()
        if self.listener is not None:
            self.listener(known)

    @main_process_only
    def make_durable(self) -> None:
        """Have every line on the disk before this returns."""
        assert self._file is not None, "rewind first"
        with disk_errors(f"write {self.path}"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # each line was flushed when it was written
                self._file.close()

    def of_iteration(self, iteration: int) -> list[dict[str, Any]]:
        """The records of an iteration's updates."""
        return [record for record in read_lines(self.path)[0] if record.get("iteration") == iteration]

    def missing(self, iterations: int) -> str:
        """The updates before the last ones recorded whose lines are lost, in words; "" for none."""
        return missing_updates(filter(None, map(update_of, read_lines(self.path)[0])), iterations)


class Evaluations:
    """eval.jsonl: the base model, what was measured while training, and the model of each iteration."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "eval.jsonl"
        self.listener: Listener | None = None  # called with each new record

    def damaged(self) -> int:
        """Count the lines that hold no evaluation."""
        records, damaged = read_lines(self.path)
        return damaged + sum(not isinstance(record.get("iteration"), int) for record in records)

    @main_process_only
    def drop_damaged(self) -> None:
        """Drop damaged lines, with a warning: what of them an attempt does not measure again is lost."""
        if dropped := self.damaged():
            whole = [record for record in read_lines(self.path)[0] if isinstance(record.get("iteration"), int)]
            warn(f"{self.path}: {dropped} damaged; only evaluations from here on are made again")
            write_lines(self.path, whole)

    @main_process_only
    def add(self, record: dict[str, Any]) -> None:
        """Write an evaluation in place of an earlier one of the same weights and problems."""
        records, _ = read_lines(self.path)
        keys = list(map(evaluated, records))
        place = keys.index(evaluated(record)) if evaluated(record) in keys else len(records)
        records[place : place + 1] = [record]  # a resumed run must not change the order
        write_lines(self.path, records)
        if self.listener is not None:
            self.listener(record)

    def on_all_problems(self) -> list[dict[str, Any]]:
        """The records on the whole test set, one an iteration."""
        return [record for record in read_lines(self.path)[0] if not record.get("subset")]


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def update_of(record: dict[str, Any]) -> tuple[int, int] | None:
    """The iteration and the number of an update; None where a record does not say them."""
    iteration, step = record.get("iteration"), record.get("step")
    return (iteration, step) if isinstance(iteration, int) and isinstance(step, int) else None


def missing_updates(there: Iterable[tuple[int, int]], iterations: int, end: int | None = None) -> str:
    """The updates of some iterations that are not there, in words; end: the last one of the last iteration."""
    found: dict[int, set[int]] = {iteration: set() for iteration in range(1, iterations + 1)}
    for iteration, step in there:
        found.setdefault(iteration, set()).add(step)
    parts = []
    for iteration, steps in found.items():
        known = end if iteration == iterations else None
        last = max(steps, default=0) if known is None else known
        if lost := [step for step in range(1, last + 1) if step not in steps]:
            shown = ", ".join(map(str, lost[:SHOWN])) + (", ..." if len(lost) > SHOWN else "")
            parts.append(f"{len(lost)} of {last} updates of iteration {iteration} ({shown})")
        elif not steps and known is None:
            parts.append(f"all updates of iteration {iteration}")
    return " and ".join(parts)


def evaluated(record: dict[str, Any]) -> tuple[Any, ...]:
    """Key of an evaluation: the iteration, the update within it (None: its end), and whether a part of the test."""
    return record.get("iteration"), record.get("step"), record.get("subset", False)
