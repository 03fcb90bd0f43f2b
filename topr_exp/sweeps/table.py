"""The states of a sweep's runs, for people: the table of `status`, and the parts of it that lines print too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from topr_exp.runtime.exit_status import printable
from topr_exp.sweeps.status import DONE, FAILED, NEW, QUEUED, RUNNING, STOPPED, UNREADABLE, Status

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
    """How many runs are in each state."""
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
