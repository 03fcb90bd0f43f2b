"""The state of jobs in Slurm: from squeue for those it still knows, from sacct (accounting) for those long over.

Nothing relies on an answer: Slurm may be slow, down, or without accounting. Then the runs' own files have to do.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

SECONDS = 10.0  # an answer may take, before it counts as none

PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")


@dataclass(frozen=True)
class Entry:
    """A job as Slurm has it."""

    state: str  # Slurm's word, as in RUNNING or CANCELLED
    reason: str = ""  # why it waits

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def active(self) -> bool:
        """True while it waits or runs, so that it may still finish without being started again."""
        return self.pending or self.state in AT_WORK


@dataclass
class Queue:
    """Slurm's answer about some jobs."""

    entries: dict[str, Entry] = field(default_factory=dict)  # by Slurm's id, as in 17_3
    answered: bool = True  # False: a job that is not among the entries may be active all the same
    notes: list[str] = field(default_factory=list)  # what could not be asked, and what follows

    def holds(self, name: str) -> bool:
        """Check that a job is known to wait or run."""
        entry = self.entries.get(name)
        return entry is not None and entry.active


def query(ids: Iterable[str]) -> Queue:
    """The state of these jobs (ids as in 17 or 17_3); never raises."""
    wanted = set(ids)
    queue = Queue()
    if not wanted:
        return queue
    arrays = ",".join(sorted({name.split("_")[0] for name in wanted}))
    rows, problem = run_slurm(["squeue", "-h", "-r", "-t", "all", "-j", arrays, "-o", "%i|%T|%r"])
    if problem and "Invalid job id" not in problem:  # which is what it says when all of them ended long ago
        queue.answered = False
        queue.notes.append(f"Slurm does not answer ({problem}); going on by the runs' files")
        return queue
    queue.entries = {row[0]: Entry(row[1], row[2]) for row in rows if row[0] in wanted}
    gone = wanted - queue.entries.keys()
    if gone:
        arrays = ",".join(sorted({name.split("_")[0] for name in gone}))
        rows, problem = run_slurm(["sacct", "-n", "-P", "-X", "-j", arrays, "-o", "JobID,State"])
        if problem:
            queue.notes.append(f"Slurm's accounting does not answer (sacct: {problem}); going on by the runs' files")
        queue.entries |= {row[0]: Entry(row[1].split(" ")[0]) for row in rows if row[0] in gone}
    return queue


def find_job(name: str) -> tuple[str | None, str]:
    """The id of the job with this name, if Slurm knows one, and why it could not be asked ("" when it answered)."""
    rows, problem = run_slurm(["squeue", "-h", "-t", "all", "-n", name, "-o", "%F"])
    return (rows[0][0] if rows else None), problem


def partitions() -> list[str]:
    """The partitions that there are."""
    rows, _ = run_slurm(["sinfo", "-h", "-o", "%R"])
    return sorted({row[0] for row in rows})


def run_slurm(command: list[str]) -> tuple[list[list[str]], str]:
    """The lines of a command's answer, split at `|`, and what went wrong in one line ("" when nothing did)."""
    if shutil.which(command[0]) is None:
        return [], f"{command[0]} is not on PATH"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"no answer within {SECONDS:g} s"
    except OSError as error:
        return [], str(error)
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [line.split("|") for line in done.stdout.splitlines() if line.strip()], ""
