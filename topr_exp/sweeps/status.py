"""The state of each run of a sweep, read from its folder and from Slurm."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topr_exp.runs import attempt
from topr_exp.runs.console import say, warn
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import printable
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.jsonfiles import MISSING, number, read_lines, read_object
from topr_exp.sweeps.slurm import Queue, query
from topr_exp.sweeps.sweep import Run
from topr_exp.types import TOPRError

DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW = "done", "running", "queued", "failed", "stopped", "new"
UNREADABLE = "unreadable"
ACTIVE = (RUNNING, QUEUED)
WIDEST = 60  # characters of an error that a table shows
POLL_SECONDS = 5.0  # until Slurm is asked again
QUIET_POLLS = 3  # that must agree before runs without a result count as ended


@dataclass(frozen=True)
class Status:
    """One run."""

    run: Run
    state: str  # one of those above
    error: str = ""  # what ended the last attempt, or why it waits
    stage: str = ""  # with its progress
    left: str = ""  # time, of the stage
    accuracy: str = ""  # pass@1 of the base model, and the newest

    def __str__(self) -> str:
        detail = f"pass@1 {self.accuracy}" if self.state == DONE else self.error
        return f"run {self.run.number} {self.state} ({self.run.folder.name})" + (f": {detail}" if detail else "")


def read_statuses(runs: Sequence[Run]) -> tuple[list[Status], Queue]:
    """The present state of some runs of a sweep."""
    queue = query(run.slurm for run in runs if run.slurm and not os.path.exists(run.folder / "DONE"))
    return [read_status(run, queue) for run in runs], queue


def read_status(run: Run, queue: Queue) -> Status:
    """The state of a run; a folder that this user may not read is one too."""
    try:
        with disk_errors(f"read {run.folder}"):
            return readable_status(run, queue)
    except TOPRError as error:
        return Status(run, UNREADABLE, str(error))


def readable_status(run: Run, queue: Queue) -> Status:
    """The state of a run: from `DONE` and its claim, else from Slurm, else from `error.txt` and `state.json`."""
    state, fault = read_object(run.folder / "state.json")
    entry, failure = queue.entries.get(run.slurm or ""), attempt.last_error(run.folder)
    found, error = NEW, ""
    if (run.folder / "DONE").exists():
        found = DONE
    elif is_running(run.folder):
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
    stage, left = "" if found in (DONE, NEW) else str(state.get("stage", "")), ""
    if found == RUNNING and isinstance(progress := state.get("progress"), dict):
        stage += f" {progress.get('done')}/{progress.get('total')}"
        left = format_duration(number(progress.get("seconds_left")))
    return Status(run, found, error, stage, left, accuracy(run.folder, found == DONE))


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


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def status_table(statuses: Sequence[Status]) -> str:
    """One line a run and a line that counts them."""
    rows = [["run", "state", "stage", "left", "pass@1", "slurm", "folder", ""]]
    for each in statuses:
        error = each.error if len(each.error) <= WIDEST else each.error[: WIDEST - 3] + "..."
        cells = (str(each.run.number), each.state, each.stage, each.left, each.accuracy, each.run.slurm or "")
        rows.append([printable(cell, keep="") for cell in (*cells, each.run.folder.name, error)])
    if not any(each.run.slurm for each in statuses):
        rows = [row[:5] + row[6:] for row in rows]
    return "\n".join([*aligned(rows), count_states(statuses)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def count_states(statuses: Sequence[Status]) -> str:
    number = Counter(each.state for each in statuses)
    order = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW, UNREADABLE)
    parts = [f"{number[state]} {state}" for state in order if number[state]]
    return f"{len(statuses)} runs: {', '.join(parts)}" if len(statuses) != 1 else f"1 run: {parts[0]}"


def report(run: Run, error: Any) -> None:
    """Say how a run of this machine ended."""
    now = read_status(run, Queue())
    say_change(replace(now, error=str(error or now.error)))


def say_change(status: Status) -> None:
    say(f"{time.strftime('%H:%M:%S')} {status}")


def wait_for_slurm(runs: Sequence[Run]) -> None:
    """Wait for runs in Slurm, telling every change, until none of them is queued or running.

    Submitit's own waiting ends with the first job that was cancelled, and never where accounting is off.
    """
    seen, told = {run.number: QUEUED for run in runs}, ""
    quiet = 0
    # A shared file system may show the end of a run later than Slurm does: ask more than once.
    while quiet < QUIET_POLLS:
        statuses, queue = read_statuses(runs)
        if queue.note not in ("", told):
            warn(queue.note)
            told = queue.note
        for each in statuses:
            if seen[each.run.number] != each.state:
                say_change(each)
            seen[each.run.number] = each.state
        if all(each.state in (DONE, FAILED) for each in statuses):
            return
        quiet = 0 if not queue.answered or any(each.state in ACTIVE for each in statuses) else quiet + 1
        time.sleep(POLL_SECONDS)
