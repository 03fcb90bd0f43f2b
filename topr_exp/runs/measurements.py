"""What a run measures, as lines of JSON: `metrics.jsonl`, one an update, and `eval.jsonl`, one an evaluation."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import IO, Any

from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import disk_errors, write_text


class Metrics:
    """metrics.jsonl, which grows while the run trains."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self._file: IO[str] | None = None

    @main_process_only
    def rewind(self, iteration: int, step: int) -> None:
        """Drop the lines after `step` of `iteration` (and a half-written one): they will be written again."""
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if (record["iteration"], record["step"]) <= (iteration, step):
                    kept.append(line)
        write_text(self.path, "".join(line + "\n" for line in kept))
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
        records = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        return [record for record in records if record["iteration"] == iteration]


class Evaluations:
    """eval.jsonl: the base model, what was measured while training, and the model of each iteration."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "eval.jsonl"

    @main_process_only
    def add(self, record: dict[str, Any]) -> None:
        """Write an evaluation in place of an earlier one of the same weights and problems."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        keys = [evaluated(json.loads(line)) for line in lines]
        place = keys.index(evaluated(record)) if evaluated(record) in keys else len(lines)
        lines[place : place + 1] = [json.dumps(record)]  # a resumed run must not change the order
        write_text(self.path, "".join(line + "\n" for line in lines))

    def on_all_problems(self) -> list[dict[str, Any]]:
        """The records on the whole test set, one an iteration."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if not record.get("subset")]


def evaluated(record: dict[str, Any]) -> tuple[Any, ...]:
    """What an evaluation is of: the iteration, the update within it (None: its end), and whether a part of the test."""
    return record["iteration"], record.get("step"), record.get("subset", False)
