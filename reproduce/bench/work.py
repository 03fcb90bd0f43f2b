"""The work on a row of the bench: runs what its cells lack and keeps the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reproduce.bench.cells import Cell, read_cell_record
from reproduce.bench.conditions import Row
from reproduce.bench.row_files import RowFile
from reproduce.jobs import is_stopped
from reproduce.rates import Trial, describe_choice, error_of
from topr_exp import ConfigError, Job

RUNS_BETWEEN_RECORDS = 6  # for each run at once
Launcher = Callable[[Sequence[Job], Sequence[str]], int]


class RowWork:
    """The work on a row: runs what its cells lack, a chunk at a time, and records it."""

    def __init__(self, row: Row, cells: Sequence[Cell], folder: Path, parallel_runs: int, launch: Launcher) -> None:
        self.row = row
        self.file = RowFile(folder, row)
        self.parallel_runs = parallel_runs
        self.launch = launch
        self.cells = self.possible_cells(cells)
        self.failed: set[Cell] = set()

    def possible_cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells whose runs can be composed, the others noted; ConfigError where none can."""
        refusals: dict[str, ConfigError] = {}
        possible = []
        for cell in cells:
            try:
                assert cell.settings
            except ConfigError as error:
                refusals[cell.condition.name] = error
            else:
                possible.append(cell)
        if not possible:
            raise next(iter(refusals.values()))
        without = self.file.note["without"]
        for cell in cells:
            without.pop(cell.condition.name, None)
        for name, refusal in refusals.items():
            without[name] = str(refusal)
            print(f"{self.row.name}, {name}: left out; {refusal}", flush=True)
        return possible

    def run(self) -> int:
        """Run until no cell lacks anything; returns the exit code, at once where a signal stopped a sweep."""
        while True:
            began = time.monotonic()
            missing = self.missing_runs()
            self.file.write()
            if not missing:
                return int(bool(self.failed))
            chunk = missing[: RUNS_BETWEEN_RECORDS * self.parallel_runs]
            code = self.run_chunk(chunk)
            self.file.note["seconds"] += round(time.monotonic() - began, 1)
            self.file.write()
            if is_stopped(code):
                return code

    def run_chunk(self, runs: Sequence[tuple[Cell, Trial]]) -> int:
        """Run some runs as one sweep and record them; returns its exit code."""
        trials_of_cell: dict[Cell, list[Trial]] = {}
        for cell, trial in runs:
            trials_of_cell.setdefault(cell, []).append(trial)
        folder_of_run: dict[tuple[Cell, Trial], Path] = {}
        job_of_folder: dict[Path, Job] = {}  # of the smallest runs some are the same
        for cell, trials in trials_of_cell.items():
            for trial, job in cell.jobs(trials).items():
                folder = job.config.folder
                folder_of_run[cell, trial] = folder
                job_of_folder[folder] = job
        jobs = list(job_of_folder.values())
        code = self.launch(jobs, self.cells[0].words)
        for (cell, trial), folder in folder_of_run.items():
            self.take_record(cell, trial, folder, is_sweep_stopped=is_stopped(code))
        return code

    def missing_runs(self) -> list[tuple[Cell, Trial]]:
        """The runs that cells lack; records that no cell needs any more are dropped."""
        runs = []
        for cell in self.cells:
            if cell in self.failed:
                continue
            self.file.forget_outdated(cell)
            runs += [(cell, trial) for trial in cell.missing(self.file.by_identity)]
        return runs

    def take_record(self, cell: Cell, trial: Trial, folder: Path, *, is_sweep_stopped: bool) -> None:
        """Record a run that ended; note the error of one that failed for another reason than its rate."""
        record = read_cell_record(cell, trial, folder)
        if record is not None:
            self.file.by_identity[cell.identity(trial)] = record
        elif not is_sweep_stopped:
            self.failed.add(cell)
            error = error_of(folder) or f"{folder} did not end"
            self.file.note["without"][cell.condition.name] = error

    def print_cells(self) -> None:
        """Say which runs each cell lacks, as RATE/SEED; or its rate, where it is complete."""
        recorded = self.file.by_identity
        for cell in self.cells:
            state = describe_choice(cell.tried(recorded), cell.missing(recorded))
            print(f"{self.row.name:40} {cell.condition.name:14} {state}", flush=True)
