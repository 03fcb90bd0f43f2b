"""What happens to the runs of a sweep, told while it happens."""

from __future__ import annotations

import time
from collections.abc import Sequence

from topr_exp.runs.console import say, warn
from topr_exp.sweeps.queue import Queue
from topr_exp.sweeps.status import ACTIVE, DONE, FAILED, QUEUED, RUNNING, Status, read_statuses, status
from topr_exp.sweeps.sweep import Run, Sweep
from topr_exp.sweeps.table import format_accuracy, time_of_day

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
    """What became of a run, in one line."""
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
