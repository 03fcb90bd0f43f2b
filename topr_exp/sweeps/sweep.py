"""A sweep on disk: the folders of its runs, each with a `launch.json` that says how to start the run.

Only the holder of `sweep.claim` writes these files. How a run stands is read from what the run itself writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runs import attempt
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import warn
from topr_exp.runtime.files import MISSING, disk_errors, read_object, write_json
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.runs.plan import Job

FILE = attempt.LAUNCH
CLAIM = "sweep.claim"
LOG = attempt.LOG
SCRIPTS = ".submitit"  # Submitit's scripts, pickles and logs


@dataclass
class Run:
    """A run of a sweep."""

    folder: Path
    number: int  # from 1, in the order of the first launch
    overrides: list[str]
    settings: dict[str, Any]  # resolved: editing a YAML while jobs are queued changes nothing
    cwd: str  # where it was launched: relative paths among the settings count from here
    arguments: list[str]  # of the command that launched it: cluster settings of a resumed sweep come from them
    launched: float  # seconds since 1970
    job: str | None = None  # in Slurm: the array's name and the place there
    fault: str = ""  # why its launch file can't be read: such a run is shown, and nothing else

    def save(self) -> None:
        with disk_errors(f"write in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, {key: value for key, value in vars(self).items() if key != "folder"})

    def enter(self) -> Config:
        """Change to the folder that relative paths count from; returns the settings, checked once more."""
        from omegaconf import OmegaConf

        from topr_exp.config.load import load
        from topr_exp.runs.preflight import check_files

        with disk_errors(f"enter {self.cwd}, where the sweep was launched"):
            os.chdir(self.cwd)
        config = load(OmegaConf.create(self.settings))
        check_files(config)
        return config


def read_run(folder: Path) -> Run | None:
    """The run that a folder's `launch.json` describes; a damaged one is a warning."""
    stored, fault = read_object(folder / FILE)
    with suppress(TypeError):  # not these keys
        return Run(folder, **stored)
    if fault.startswith("can't"):  # another user's
        return Run(folder, 0, [], {}, "", [], 0.0, fault=f"{FILE} {fault}")
    if fault != MISSING:
        warn(f"{folder / FILE} {fault or 'is damaged'}; the same launch writes it again")
    return None


def read_runs(sweep: Path, *, every: bool = False) -> list[Run]:
    """The runs of a sweep by number, [] where there is none; every: those too whose launch file can't be read."""
    with disk_errors(f"read {sweep}"):
        folders = [folder for folder in sweep.iterdir() if folder.is_dir()] if sweep.is_dir() else []
    found = sorted(filter(None, map(read_run, folders)), key=lambda run: (run.number, run.folder))
    for run in found:
        if run.fault and not every:
            warn(f"{run.folder}: {run.fault}; the run is left out")
    return [run for run in found if every or not run.fault]


def open_sweep(sweep: Path, *, every: bool = False) -> list[Run]:
    """The runs of a sweep; TOPRError where there are none."""
    if runs := read_runs(sweep, every=every):
        return runs
    raise TOPRError(
        f"no sweep in {sweep} (no run has a {FILE} that can be read); give output_dir/name of a sweep (a run without "
        "-m is none)"
    )


def runs_of(jobs: Iterable[Job], arguments: list[str], known: Iterable[Run]) -> list[Run]:
    """The runs of a launch, with its settings; those that are known keep their number and their job in Slurm."""
    from topr_exp.config.schema import plain

    before = {run.folder.name: run for run in known}
    runs, count = [], max((run.number for run in before.values()), default=0)
    for job in jobs:
        folder, settings = job.config.folder, plain(job.config)
        run = Run(folder, count + 1, job.overrides, settings, os.getcwd(), arguments, time.time())
        if old := before.get(folder.name):
            run.number, run.job = old.number, old.job
        count = max(count, run.number)
        runs.append(run)
    return runs


def find(runs: Sequence[Run], name: str) -> Run:
    """A run by its number or the beginning of its folder's name; TOPRError when it is not one."""
    named = [run for run in runs if name == str(run.number)]
    named = named or [run for run in runs if run.folder.name.startswith(name)]
    if len(named) == 1:
        return named[0]
    raise TOPRError(
        f"{name}: {'several runs' if named else 'no run'} of {runs[0].folder.parent}; give a number from 1 to "
        f"{len(runs)} or a folder's name"
    )


def lock_sweep(sweep: Path) -> locks.Lock:
    """Keep other launchers out of a sweep's folder; TOPRError while one is active in it."""
    with disk_errors(f"write in {sweep}"):
        sweep.mkdir(parents=True, exist_ok=True)
    return attempt.lock_run_folder(sweep, CLAIM, "launched")
