"""Folder of a sweep: the folders of its runs, each with a `launch.json` that says how to start the run.

`sweep.json` lists every run that was ever launched, so that a folder removed by hand is missed. Only the holder of
`sweep.claim` writes these files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from topr_exp.runs import attempt
from topr_exp.runs.run_files import LAUNCH, read_run_file
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.json_files import MISSING, read_typed_object, write_json
from topr_exp.runtime.terminal import warn
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.runs.plan import Job

RECORD = "sweep.json"
CLAIM = "sweep.claim"
SCRIPTS = ".submitit"  # scripts, pickles and logs of jobs


class LaunchedRun(TypedDict):
    """A run in sweep.json."""

    number: int
    overrides: list[str]


class SweepRecord(TypedDict):
    """sweep.json: the runs of a sweep by the names of their folders."""

    runs: dict[str, LaunchedRun]


@dataclass
class Run:
    """A run of a sweep; all but `folder` is in its launch.json."""

    folder: Path
    number: int  # from 1, in the order of the first launch
    overrides: list[str]
    # The others are lost where a run's launch.json is.
    settings: dict[str, Any] = field(default_factory=dict)  # resolved: editing a YAML changes nothing in queued jobs
    cwd: str = ""  # folder of the launch, to which paths in the settings are relative
    # Of the command that launched it; a resumed sweep takes its cluster settings from them.
    arguments: list[str] = field(default_factory=list)
    launched: float = 0.0  # seconds since 1970
    job: str | None = None  # name under which a scheduler knows its job

    @property
    def log(self) -> Path:
        """Output of the run over all attempts."""
        return self.folder / attempt.LOG

    def assign_job(self, name: str | None) -> None:
        """Note the name under which a scheduler knows the run's job; None: there is none."""
        self.job = name

    def save(self) -> None:
        """Write the run's launch.json."""
        with disk_errors(f"write in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        description = dict(vars(self))
        del description["folder"]
        write_json(self.folder / LAUNCH, description)

    def config(self) -> Config:
        """Return the settings, checked."""
        from topr_exp.config.load import load_stored

        return load_stored(self.settings)

    def enter(self) -> Config:
        """Change to the folder of the launch; returns the settings, checked once more.

        Errors are recorded as the run's: no attempt at it has begun that could record them.
        """
        from topr_exp.runs.preflight import check_files

        folder = self.folder.resolve()
        try:
            with disk_errors(f"enter {self.cwd}, where the sweep was launched"):
                os.chdir(self.cwd)
            config = self.config()
            check_files(config)
        except Exception as error:
            attempt.record_error(folder, error)
            raise
        return config


def read_run(folder: Path) -> Run | None:
    """Read a run from its folder's launch.json; None, with a warning, if that is damaged or another user's."""
    description, fault = read_run_file(folder / LAUNCH, unreadable_is_damage=True)
    with suppress(TypeError):  # missing or unknown keys
        return Run(folder, **description)
    if fault != MISSING:
        warn(f"{folder / LAUNCH} {fault or 'is damaged'}; the run is left out (the same launch writes the file again)")
    return None


def read_runs(sweep: Path) -> list[Run]:
    """Read the runs of a sweep, by number; [] if there is no sweep."""
    with disk_errors(f"read {sweep}"):
        if not sweep.is_dir():
            return []
        folders = [path for path in sweep.iterdir() if path.is_dir()]
    runs = filter(None, map(read_run, folders))
    return sorted(runs, key=lambda run: (run.number, run.folder))


def open_sweep(sweep: Path) -> list[Run]:
    """Read the runs of a sweep; TOPRError if there are none."""
    runs = read_runs(sweep)
    if not runs:
        raise TOPRError(
            f"no sweep in {sweep} (no run has a {LAUNCH} that can be read); give output_dir/name of a sweep (a run "
            "without -m is none)"
        )
    return runs


def make_runs(jobs: Iterable[Job], arguments: list[str], earlier_runs: Iterable[Run]) -> list[Run]:
    """Make the runs of a launch; those of earlier launches keep their number and their job."""
    from topr_exp.schema import plain

    earlier_by_name = {run.folder.name: run for run in earlier_runs}
    last_number = max((run.number for run in earlier_by_name.values()), default=0)
    runs = []
    for job in jobs:
        run = Run(
            job.folder,
            last_number + 1,
            overrides=job.overrides,
            settings=plain(job.config),
            cwd=os.getcwd(),
            arguments=arguments,
            launched=time.time(),
        )
        earlier_run = earlier_by_name.get(run.folder.name)
        if earlier_run is not None:
            run = replace(run, number=earlier_run.number, job=earlier_run.job)
        runs.append(run)
        last_number = max(last_number, run.number)
    return runs


def newest_run(runs: Sequence[Run]) -> Run:
    """Return the run that was launched last."""
    return max(runs, key=lambda run: run.launched)


def record_runs(sweep: Path, runs: Iterable[Run]) -> None:
    """Add runs to the sweep's record, before their folders are written."""
    record, fault = read_typed_object(sweep / RECORD, SweepRecord)
    if fault and fault != MISSING:
        warn(f"{sweep / RECORD} {fault}, and is written again: runs whose folders were removed are forgotten")
    recorded_runs = dict(record.get("runs", {}))
    for run in runs:
        recorded_runs[run.folder.name] = {"number": run.number, "overrides": run.overrides}
    if recorded_runs != record.get("runs"):
        write_json(sweep / RECORD, {"runs": recorded_runs})


def missing_runs(sweep: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the sweep's record that are not among `runs`, by number; their settings are lost."""
    record, fault = read_typed_object(sweep / RECORD, SweepRecord, unreadable_is_damage=True)
    if fault:
        warn(f"{sweep / RECORD} {fault}: whether a run's folder was removed is not known")
    names = {run.folder.name for run in runs}
    missing = []
    for name, launched_run in record.get("runs", {}).items():
        if name not in names:
            missing.append(Run(sweep / name, launched_run["number"], launched_run["overrides"]))
    return sorted(missing, key=lambda run: run.number)


def find_run(runs: Sequence[Run], name: str) -> Run:
    """Find a run by its number or by the beginning of its folder's name; TOPRError unless exactly one matches."""
    matches = [run for run in runs if name == str(run.number)]
    if not matches:
        matches = [run for run in runs if run.folder.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    match_count = "several runs" if matches else "no run"
    last_number = max(run.number for run in runs)  # more than there are runs, where one was removed
    raise TOPRError(
        f"{name}: {match_count} of {runs[0].folder.parent}; give a number from 1 to {last_number} or a folder's name"
    )
