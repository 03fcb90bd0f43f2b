"""The state of each run of a sweep, read from its folder and from Slurm."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from topr_exp.runs import attempt
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import plural, printable
from topr_exp.runtime.files import MISSING, disk_errors, number, read_lines, read_object
from topr_exp.sweeps.slurm import Queue, query
from topr_exp.sweeps.sweep import Run
from topr_exp.types import TOPRError

DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW = "done", "running", "queued", "failed", "stopped", "new"
UNREADABLE = "unreadable"
ACTIVE = (RUNNING, QUEUED)
WIDEST = 60  # characters of an error that a table shows


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
    queue = query(run.job for run in runs if run.job and not os.path.exists(run.folder / "DONE"))
    return [read_status(run, queue) for run in runs], queue


def read_status(run: Run, queue: Queue) -> Status:
    """The state of a run: from `DONE` and its claim, else from Slurm, else from `error.txt` and `state.json`."""
    if run.fault:
        return Status(run, UNREADABLE, run.fault)
    state, fault = read_object(run.folder / "state.json")
    entry, failure = queue.entries.get(run.job or ""), attempt.last_error(run.folder)
    found, error = NEW, ""
    try:
        if (run.folder / "DONE").exists():
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
        measured = accuracy(run.folder, found == DONE)
    except (OSError, TOPRError) as denied:  # a folder that this user may not read
        return Status(run, UNREADABLE, str(denied))
    stage, left = "" if found in (DONE, NEW) else str(state.get("stage", "")), ""
    if found == RUNNING and isinstance(progress := state.get("progress"), dict):
        stage += f" {progress.get('done')}/{progress.get('total')}"
        if (seconds := number(progress.get("seconds_left"))) is not None:
            left = str(datetime.timedelta(seconds=int(min(seconds, 1e9))))
    return Status(run, found, error, stage, left, measured, entry.id if entry else "")


def is_running(folder: Path) -> bool:
    """Check that a process of the run is alive."""
    with disk_errors(f"read {folder / attempt.CLAIM}"):
        return locks.living_owner(folder / attempt.CLAIM) is not None


def accuracy(folder: Path, done: bool) -> str:
    """The base model's pass@1 and the newest one on the same problems, in percent."""
    records, _ = read_lines(folder / "eval.jsonl")
    if not records:
        return ""
    newest = records[-1]  # on some problems while training, on all before and after
    base = next(each for each in records if each.get("subset") == newest.get("subset"))
    values = [number(each.get("pass@1")) for each in (base, newest)]
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
        rows.append([str(each.run.number or "?"), *(printable(cell, keep="") for cell in cells)])
    return "\n".join([*aligned(rows), count_states(statuses)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def count_states(statuses: Sequence[Status]) -> str:
    number = Counter(each.state for each in statuses)
    order = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW, UNREADABLE)
    parts = [f"{number[state]} {state}" for state in order if number[state]]
    return f"{plural(len(statuses), 'run')}: {', '.join(parts)}"
