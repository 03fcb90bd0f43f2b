"""The state of each run of a sweep, read from its folder and from Slurm, as a table that may be followed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from topr_exp.runs import attempt
from topr_exp.runs.console import say, warn
from topr_exp.runs.records import Lines
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import printable
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
    """Check that a process of the run is alive."""
    with disk_errors(f"read {folder / attempt.CLAIM}"):
        return locks.living_owner(folder / attempt.CLAIM) is not None


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


WIDEST = 60  # characters of an error that a table shows


def status_table(statuses: Sequence[Status]) -> str:
    """One line a run and a line that counts them."""
    has_slurm = any(each.slurm for each in statuses)
    titles = ["run", "state", "stage", "left", "pass@1", *(["slurm"] if has_slurm else []), "folder", ""]
    rows = []
    for each in statuses:
        cells = [str(each.run.number), each.state, each.stage]
        cells += [format_duration(each.seconds_left), format_accuracy(each)]
        cells += [each.slurm or ""] if has_slurm else []
        rows.append([printable(cell, keep="") for cell in (*cells, each.run.folder, shorten(each.error))])
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]]
    return "\n".join([*(line.rstrip() for line in lines), count_states(statuses)])


def count_states(statuses: Sequence[Status]) -> str:
    """Count the runs in each state."""
    number = Counter(each.state for each in statuses)
    order = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW, UNREADABLE)
    parts = [f"{number[state]} {state}" for state in order if number[state]]
    return f"{len(statuses)} runs: {', '.join(parts)}" if len(statuses) != 1 else f"1 run: {parts[0]}"


def format_accuracy(each: Status) -> str:
    """The base model's pass@1 and the newest one, in percent."""
    if each.accuracy is None or each.base is None:
        return ""
    if each.state == DONE or each.accuracy != each.base:
        return f"{100 * each.base:.1f} -> {100 * each.accuracy:.1f}"
    return f"{100 * each.base:.1f}"


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shorten(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def time_of_day() -> str:
    """The time of day, for lines that report a change."""
    return time.strftime("%H:%M:%S")


POLL_SECONDS = (2.0, 15.0)  # until runs in Slurm are asked about again: at first, and at most
QUIET_POLLS = 3  # that must agree before runs without a result count as ended


def report(sweep: Sweep, run: Run | None, message: str) -> None:
    """Say how a run ended; with no run, how the sweep stands while nothing ends."""
    if run is None:
        working = [each for each in read_statuses(sweep, sweep.runs)[0] if each.state == RUNNING]
        shown = ", ".join(f"run {each.run.number} {each.stage}" for each in working[:4])
        say(f"{time_of_day()} {len(working)} running: {shown}{' ...' if len(working) > 4 else ''}")
        return
    say(f"{time_of_day()} {describe(status(sweep.path(run), run, None, Queue()), message)}")


def describe(each: Status, message: str = "") -> str:
    """Describe a run's state in one line."""
    text = f"run {each.run.number} {each.state} ({each.run.folder})"
    if each.state == DONE:
        return f"{text}: pass@1 {format_accuracy(each)}"
    return f"{text}: {message or each.error}" if message or each.error else text


def wait_for_slurm(sweep: Sweep, runs: Sequence[Run]) -> None:
    """Wait for runs in Slurm, telling every change, until none of them is queued or running.

    Submitit's own waiting ends with the first job that was cancelled, and never where accounting is off.
    """
    seen: dict[int, str] = {}
    told: set[str] = set()
    pause, quiet = POLL_SECONDS[0], 0
    while True:
        statuses, queue = read_statuses(sweep, runs)
        for note in [note for note in queue.notes if note not in told]:
            warn(note)
            told.add(note)
        for each in statuses:
            if seen.get(each.run.number, QUEUED) != each.state:
                say(f"{time_of_day()} {describe(each)}")
                pause = POLL_SECONDS[0]
            seen[each.run.number] = each.state
        if all(each.state in (DONE, FAILED) for each in statuses):
            return
        # A shared file system may show the end of a run later than Slurm does: ask more than once.
        quiet = 0 if not queue.answered or any(each.state in ACTIVE for each in statuses) else quiet + 1
        if quiet == QUIET_POLLS:
            return
        time.sleep(POLL_SECONDS[0] if quiet else pause)
        pause = min(pause * 1.2, POLL_SECONDS[1])
