"""How far the runs of a sweep are, by their folders and by what Slurm says, and the table of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp import attempt
from topr_exp.store import claims
from topr_exp.sweeps.queue import Queue, ask
from topr_exp.sweeps.sweep import Run, Sweep

DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW = "done", "running", "queued", "failed", "stopped", "new"
ACTIVE = (RUNNING, QUEUED)
WIDEST = 60  # characters of a folder's name or an error that a table shows


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


def look(sweep: Sweep, runs: Iterable[Run]) -> tuple[list[Status], Queue]:
    """The present state of some runs of a sweep."""
    chosen = list(runs)
    ids = sweep.slurm_ids()
    finished = {run.number for run in chosen if (sweep.path(run) / "DONE").exists()}
    queue = ask(ids[run.number] for run in chosen if run.number in ids and run.number not in finished)
    return [status(sweep.path(run), run, ids.get(run.number), queue) for run in chosen], queue


def status(folder: Path, run: Run, slurm: str | None, queue: Queue) -> Status:
    """The state of a run: `DONE` and the claim say most, Slurm what the files can't know, `state.json` the rest."""
    state = read(folder / "state.json") or {}
    entry = queue.entries.get(slurm or "")
    failure = first_line(folder / attempt.ERROR)
    found, error = NEW, ""
    if (folder / "DONE").exists():
        found = DONE
    elif alive(folder):
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
        error = "stopped by a signal" if state["status"] == "stopped" else "its process is gone (killed?)"
    accuracy, base = figures(folder)
    progress = (state.get("progress") or {}) if found == RUNNING else {}
    stage = "" if found in (DONE, NEW) else state.get("stage", "")
    if progress:
        stage += f" {progress['done']}/{progress['total']}"
    return Status(run, found, stage, accuracy, base, progress.get("seconds_left"), slurm, error)


def alive(folder: Path) -> bool:
    """Whether a process is at work in a run's folder."""
    try:
        seen = claims.look(folder / attempt.CLAIM)
        return seen is not None and claims.is_alive(seen, folder)
    except OSError:
        return False


def figures(folder: Path) -> tuple[float | None, float | None]:
    """The newest pass@1 and that of the base model, where they were measured."""
    try:
        lines = (folder / "eval.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        newest = records[-1]  # on some problems while training, on all before and after
        base = next(each for each in records if each.get("subset") == newest.get("subset"))
        return newest["pass@1"], base["pass@1"]
    except (OSError, ValueError, KeyError, IndexError, StopIteration):
        return None, None


def read(path: Path) -> Any:
    """A JSON file that may be absent, or damaged (which the run itself will report)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return ""


# ---- for people


def table(statuses: Sequence[Status]) -> str:
    """One line a run and a line that counts them."""
    has_slurm = any(each.slurm for each in statuses)
    titles = ["run", "state", "stage", "left", "pass@1", *(["slurm"] if has_slurm else []), "folder", ""]
    rows = []
    for each in statuses:
        cells = [str(each.run.number), each.state, each.stage, duration(each.seconds_left), accuracy(each)]
        cells += [each.slurm or ""] if has_slurm else []
        rows.append([*cells, each.run.folder, shorten(each.error)])
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows]]
    return "\n".join([*(line.rstrip() for line in lines), counts(statuses)])


def counts(statuses: Sequence[Status]) -> str:
    """How many runs are in each state."""
    number = Counter(each.state for each in statuses)
    parts = [f"{number[state]} {state}" for state in (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW) if number[state]]
    return f"{len(statuses)} runs: {', '.join(parts)}" if len(statuses) != 1 else f"1 run: {parts[0]}"


def accuracy(each: Status) -> str:
    """The base model's pass@1 and the newest one, in percent."""
    if each.accuracy is None or each.base is None:
        return ""
    if each.state == DONE or each.accuracy != each.base:
        return f"{100 * each.base:.1f} -> {100 * each.accuracy:.1f}"
    return f"{100 * each.base:.1f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shorten(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def clock() -> str:
    """The time of day, for lines that report a change."""
    return time.strftime("%H:%M:%S")
