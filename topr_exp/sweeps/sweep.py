"""A sweep on disk: the folders of its runs, each with a `launch.json` that says how to start the run.

`sweep.json` lists all that were ever launched, so that a folder that was removed by hand is missed. Only the holder of
`sweep.claim` writes these files. A run's state is read from what the run writes, and from Slurm.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from topr_exp.runs import attempt, run_lock
from topr_exp.runs.finished import MARK, bytes_of_models
from topr_exp.runs.run_files import LAUNCH, read_run_file
from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.json_files import MISSING, as_number, read_lines, read_typed_object, write_json
from topr_exp.runtime.terminal import plural, printable, readable_size, warn
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.runs.plan import Job

FILE = LAUNCH
RECORD = "sweep.json"
CLAIM = "sweep.claim"
LOG = attempt.LOG
SCRIPTS = ".submitit"  # Submitit's scripts, pickles and logs
SLURM_SECONDS = 10.0  # that an answer of Slurm may take, before it counts as none
DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW = "done", "running", "queued", "failed", "stopped", "new"
UNREADABLE, REMOVED = "unreadable", "removed"
ACTIVE = (RUNNING, QUEUED)
WIDEST = 60  # characters of an error that a table shows


class LaunchedRun(TypedDict):
    """A run in sweep.json."""

    number: int
    overrides: list[str]


class SweepRecord(TypedDict):
    """sweep.json: the runs of a sweep by the names of their folders, written before any of them is."""

    runs: dict[str, LaunchedRun]


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

    def save(self) -> None:
        with disk_errors(f"write in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, {key: value for key, value in vars(self).items() if key != "folder"})

    def config(self) -> Config:
        """The settings, checked."""
        from omegaconf import OmegaConf

        from topr_exp.config.load import load
        from topr_exp.schema import literal

        return load(OmegaConf.create(literal(self.settings)))

    def enter(self) -> Config:
        """Change to the folder that relative paths count from; returns the settings, checked once more.

        What goes wrong is the run's error, which no attempt would write down.
        """
        from topr_exp.runs.preflight import check_files

        folder = self.folder.resolve()
        try:
            with disk_errors(f"enter {self.cwd}, where the sweep was launched"):
                os.chdir(self.cwd)
            check_files(config := self.config())
        except Exception as error:
            attempt.record_error(folder, error)
            raise
        return config


def read_run(folder: Path) -> Run | None:
    """The run that a folder's `launch.json` describes; a damaged one, or another user's, is a warning."""
    stored, fault = read_run_file(folder / FILE, unreadable_is_damage=True)
    with suppress(TypeError):  # not these keys
        return Run(folder, **stored)
    if fault != MISSING:
        warn(f"{folder / FILE} {fault or 'is damaged'}; the run is left out (the same launch writes the file again)")
    return None


def read_runs(sweep: Path) -> list[Run]:
    """The runs of a sweep by number, [] where there is none."""
    with disk_errors(f"read {sweep}"):
        folders = [folder for folder in sweep.iterdir() if folder.is_dir()] if sweep.is_dir() else []
    return sorted(filter(None, map(read_run, folders)), key=lambda run: (run.number, run.folder))


def open_sweep(sweep: Path) -> list[Run]:
    """The runs of a sweep; TOPRError where there are none."""
    if runs := read_runs(sweep):
        return runs
    raise TOPRError(
        f"no sweep in {sweep} (no run has a {FILE} that can be read); give output_dir/name of a sweep (a run without "
        "-m is none)"
    )


def runs_of(jobs: Iterable[Job], arguments: list[str], known: Iterable[Run]) -> list[Run]:
    """The runs of a launch, with its settings; those that are known keep their number and their job in Slurm."""
    from topr_exp.schema import plain

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


def record_runs(sweep: Path, runs: Iterable[Run]) -> None:
    """Add runs to the sweep's record, before anything else is written of them."""
    stored, fault = read_typed_object(sweep / RECORD, SweepRecord)
    if fault and fault != MISSING:
        warn(f"{sweep / RECORD} {fault}, and is written again: runs whose folders were removed are forgotten")
    listed = dict(stored.get("runs", {}))
    for run in runs:
        listed[run.folder.name] = {"number": run.number, "overrides": run.overrides}
    if listed != stored.get("runs"):
        write_json(sweep / RECORD, {"runs": listed})


def missing_runs(sweep: Path, runs: Iterable[Run]) -> list[Status]:
    """The runs of the sweep's record that are not among those that were read, each with what became of it."""
    stored, fault = read_typed_object(sweep / RECORD, SweepRecord, unreadable_is_damage=True)
    if fault and fault != MISSING:
        warn(f"{sweep / RECORD} {fault}: whether a run's folder was removed is not known")
    known = {run.folder.name for run in runs}
    statuses = []
    for name, launched in stored.get("runs", {}).items():
        folder = sweep / name
        if name in known:
            continue
        run = Run(folder, launched["number"], launched["overrides"], {}, "", [], 0.0)
        if folder.exists():
            statuses.append(Status(run, UNREADABLE, f"{FILE} is missing or damaged"))
        else:
            statuses.append(Status(run, REMOVED, "its folder is gone; the same launch makes it again"))
    return sorted(statuses, key=lambda status: status.run.number)


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


# ---- the state of jobs in Slurm


class Entry(NamedTuple):
    """A job that waits or runs."""

    id: str  # as squeue prints it
    state: str  # Slurm's word, as in RUNNING
    reason: str = ""  # why it waits


class Queue(NamedTuple):
    """Slurm's answer about some jobs."""

    entries: dict[str, Entry]  # by a run's job; of those that ended there is none
    note: str = ""  # why there is no answer: then any of them may wait or run


def query(jobs: Iterable[str]) -> Queue:
    """The state of these jobs; never raises."""
    names = {job.rpartition("_")[0] for job in jobs}
    if not names:
        return Queue({})
    rows, problem = run_slurm("squeue", "-h", "-r", "-n", ",".join(sorted(names)), "-o", "%j_%K|%i|%T|%r")
    if problem:
        return Queue({}, f"Slurm does not answer ({problem}); going on by the runs' files")
    return Queue({row[0].replace("_N/A", "_0"): Entry(*row[1:]) for row in rows})  # N/A: a job alone is no array


def run_slurm(*command: str) -> tuple[list[list[str]], str]:
    """The lines of a command's answer, split at `|`, and what went wrong in one line ("" when nothing did)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_SECONDS)
    except FileNotFoundError:
        return [], f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return [], f"no answer within {SLURM_SECONDS:g} s"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [line.split("|") for line in done.stdout.splitlines() if line.strip()], ""


# ---- the state of runs


@dataclass(frozen=True)
class Status:
    run: Run
    state: str  # one of those above
    error: str = ""  # what ended the last attempt, or why it waits
    stage: str = ""  # with its progress
    left: str = ""  # time, of the stage
    accuracy: str = ""  # pass@1 of the base model, and the newest
    slurm: str = ""  # id of its job, while Slurm has it

    def __str__(self) -> str:
        detail = f"pass@1 {self.accuracy}" if self.state == DONE else self.error
        return f"run {self.run.number} {self.state} ({self.run.folder.name})" + (f": {detail}" if detail else "")


def read_statuses(runs: Sequence[Run]) -> tuple[list[Status], Queue]:
    """The present state of some runs of a sweep."""
    queue = query(run.job for run in runs if run.job and not os.path.exists(run.folder / MARK))
    return [read_status(run, queue) for run in runs], queue


def read_status(run: Run, queue: Queue | None = None) -> Status:
    """The state of a run: from `DONE` and its claim, else from Slurm, else from `error.txt` and `state.json`."""
    state, fault = read_run_file(run.folder / "state.json", unreadable_is_damage=True)
    entry, failure = queue.entries.get(run.job or "") if queue else None, attempt.last_error(run.folder)
    found, error = NEW, ""
    try:
        if (run.folder / MARK).exists():
            found = DONE
        elif is_running(run.folder):
            found = RUNNING
        elif entry is not None:
            found = RUNNING if entry.state in ("RUNNING", "COMPLETING") else QUEUED
            error = entry.reason.replace("None", "")
        elif failure:
            found, error = FAILED, failure
        elif state:
            found = STOPPED
            error = "stopped by a signal" if state.get("status") == "stopped" else "its process is gone (killed?)"
        elif fault != MISSING:
            found, error = UNREADABLE if fault.startswith("can't") else STOPPED, f"state.json {fault}"
        elif run.job and queue and not queue.note:
            error = "its job is over, or was never there: see logs"
        measured = accuracy(run.folder, found == DONE)
    except (OSError, TOPRError) as denied:  # a folder that this user may not read
        return Status(run, UNREADABLE, str(denied))
    stage, left = "" if found in (DONE, NEW) else str(state.get("stage", "")), ""
    if found == RUNNING and isinstance(progress := state.get("progress"), dict):
        stage += f" {progress.get('done')}/{progress.get('total')}"
        if (seconds := as_number(progress.get("seconds_left"))) is not None:
            left = str(datetime.timedelta(seconds=int(min(seconds, 1e9))))
    return Status(run, found, error, stage, left, measured, entry.id if entry else "")


def is_running(folder: Path) -> bool:
    """Check that a process of the run is alive."""
    with disk_errors(f"read {folder / run_lock.CLAIM}"):
        return locks.living_owner(folder / run_lock.CLAIM) is not None


def accuracy(folder: Path, done: bool) -> str:
    """The base model's pass@1 and the newest one on the same problems, in percent."""
    records, _ = read_lines(folder / "eval.jsonl")
    if not records:
        return ""
    newest = records[-1]  # on some problems while training, on all before and after
    base = next(each for each in records if each.get("subset") == newest.get("subset"))
    values = [as_number(each.get("pass@1")) for each in (base, newest)]
    shown = [f"{100 * value:.1f}" for value in values if value is not None]
    return " -> ".join(shown if done or shown[:1] != shown[1:] else shown[:1])


def status_table(statuses: Sequence[Status]) -> str:
    """One line a run, with the settings that not all have, and a line that counts them."""
    rows = [["run", "settings", "state", "stage", "left", "pass@1", "slurm", "folder", ""]]
    shared = set.intersection(*({*each.run.overrides} for each in statuses))
    for each in statuses:
        varies, error = " ".join(word for word in each.run.overrides if word not in shared), each.error
        varies, error = (text if len(text) <= WIDEST else text[: WIDEST - 3] + "..." for text in (varies, error))
        cells = (varies, each.state, each.stage, each.left, each.accuracy, each.slurm, each.run.folder.name, error)
        rows.append([str(each.run.number), *(printable(cell, keep="") for cell in cells)])
    return "\n".join([*aligned(rows), *model_sizes(statuses), count_states(statuses)])


def model_sizes(statuses: Sequence[Status]) -> list[str]:
    """A line on the room that the models of a sweep take; none where there are none."""
    sizes = [size for each in statuses if each.state != UNREADABLE and (size := bytes_of_models(each.run.folder))]
    if not sizes:
        return []
    runs = plural(len(sizes), "run")
    return [f"models of {runs}: {readable_size(sum(sizes))}; checkpoint.save_model=false keeps none"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell (p̃ is one letter, of two characters)."""
    widths = [max(len(cell) - cell.count("\u0303") for cell in column) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(n + cell.count("\u0303")) for cell, n in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in padded]


def count_states(statuses: Sequence[Status]) -> str:
    number = Counter(each.state for each in statuses)
    order = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW, UNREADABLE, REMOVED)
    parts = [f"{number[state]} {state}" for state in order if number[state]]
    return f"{plural(len(statuses), 'run')}: {', '.join(parts)}"
