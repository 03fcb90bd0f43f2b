"""The state of each run of a sweep, read from its folder and from Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from topr_exp.runs import attempt
from topr_exp.runs.records import Lines
from topr_exp.runtime import leases
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.jsonfiles import MISSING, number, read_object
from topr_exp.sweeps.queue import Queue, query
from topr_exp.sweeps.sweep import Run, Sweep
from topr_exp.types import TOPRError

DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW = "done", "running", "queued", "failed", "stopped", "new"
UNREADABLE = "unreadable"
ACTIVE = (RUNNING, QUEUED)


@dataclass(frozen=True)
class Status:
    """One run."""

    run: Run
    state: str  # one of those above
    stage: str  # with its progress
    accuracy: float | None  # the newest pass@1
    base: float | None  # the base model's
    seconds_left: float | None  # of the stage
    slurm: str | None
    error: str  # what ended the last attempt, or why it waits


def read_statuses(sweep: Sweep, runs: Iterable[Run]) -> tuple[list[Status], Queue]:
    """The present state of some runs of a sweep."""
    chosen = list(runs)
    ids = sweep.slurm_ids()
    finished = {run.number for run in chosen if os.path.exists(sweep.path(run) / "DONE")}
    queue = query(ids[run.number] for run in chosen if run.number in ids and run.number not in finished)
    return [status(sweep.path(run), run, ids.get(run.number), queue) for run in chosen], queue


def status(folder: Path, run: Run, slurm: str | None, queue: Queue) -> Status:
    """The state of a run: from `DONE` and its claim, else from Slurm, else from `state.json`."""
    try:
        with disk_errors(f"read {folder}"):
            return readable_status(folder, run, slurm, queue)
    except TOPRError as error:
        return Status(run, UNREADABLE, "", None, None, None, slurm, str(error))


def readable_status(folder: Path, run: Run, slurm: str | None, queue: Queue) -> Status:
    """The same of a run whose folder this user may read."""
    state, fault = read_object(folder / "state.json")
    entry = queue.entries.get(slurm or "")
    failure = first_line(folder / attempt.ERROR)
    found, error = NEW, ""
    if (folder / "DONE").exists():
        found = DONE
    elif is_running(folder):
        found = RUNNING
    elif entry is not None and entry.active:
        found = QUEUED if entry.pending else RUNNING
        error = entry.reason if entry.pending and entry.reason != "None" else ""
    elif failure:
        found, error = FAILED, failure
    elif entry is not None:
        found, error = STOPPED, f"Slurm: {entry.state}"
    elif state:
        found = STOPPED
        error = "stopped by a signal" if state.get("status") == "stopped" else "its process is gone (killed?)"
    elif fault != MISSING:
        found, error = UNREADABLE if fault.startswith("can't") else STOPPED, f"state.json {fault}"
    accuracy, base = newest_accuracy(folder)
    stage = "" if found in (DONE, NEW) else str(state.get("stage", ""))
    progress, left = state.get("progress"), None
    if found == RUNNING and isinstance(progress, dict):
        stage += f" {progress.get('done')}/{progress.get('total')}"
        left = number(progress.get("seconds_left"))
    return Status(run, found, stage, accuracy, base, left, slurm, error)


def is_running(folder: Path) -> bool:
    """Whether a process of the run is alive."""
    with disk_errors(f"read {folder / attempt.CLAIM}"):
        return leases.living_owner(folder / attempt.CLAIM) is not None


def newest_accuracy(folder: Path) -> tuple[float | None, float | None]:
    """The newest pass@1 and that of the base model, where they were measured."""
    lines = Lines(folder / "eval.jsonl")
    lines.refresh()
    records = lines.records
    if not records:
        return None, None
    newest = records[-1]  # on some problems while training, on all before and after
    base = next(each for each in records if each.get("subset") == newest.get("subset"))
    return number(newest.get("pass@1")), number(base.get("pass@1"))


def first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
    except OSError:
        return ""
