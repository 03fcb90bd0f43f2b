"""State of a sweep's run, read from the files that the run writes and from its scheduler's answer."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from topr_exp.runs import attempt, run_lock
from topr_exp.runs.finished import DONE_FILE
from topr_exp.runs.run_files import LAUNCH, read_run_file
from topr_exp.runtime import locks
from topr_exp.runtime.json_files import MISSING, as_number, read_lines
from topr_exp.sweeps.jobs import NOT_ASKED, JobStates
from topr_exp.sweeps.sweep import Run
from topr_exp.types import TOPRError

MAX_SECONDS_LEFT = 1e9  # more is no estimate


class RunState(StrEnum):
    """What becomes of a run, in the order in which a sweep counts them."""

    DONE = "done"
    RUNNING = "running"
    QUEUED = "queued"
    FAILED = "failed"
    STOPPED = "stopped"
    NEW = "new"
    UNREADABLE = "unreadable"
    REMOVED = "removed"


@dataclass(frozen=True)
class RunStatus:
    """A run's state, and how far it is."""

    run: Run
    state: RunState
    error: str = ""  # that ended the last attempt, or why the run waits
    stage: str = ""  # with its progress
    time_left: str = ""  # of the stage
    pass_at_1: str = ""  # of the base model, and the newest
    job_id: str = ""  # while the scheduler has a job of the run

    def __str__(self) -> str:
        detail = f"pass@1 {self.pass_at_1}" if self.state == RunState.DONE else self.error
        line = f"run {self.run.number} {self.state} ({self.run.folder.name})"
        return f"{line}: {detail}" if detail else line

    @property
    def is_active(self) -> bool:
        """True while the run waits or runs."""
        return self.state in (RunState.RUNNING, RunState.QUEUED)

    @property
    def needs_start(self) -> bool:
        """True for a run that is neither done nor active."""
        return self.state != RunState.DONE and not self.is_active


def read_status(run: Run, jobs: JobStates = NOT_ASKED) -> RunStatus:
    """Read the state of a run. jobs: the answer of its scheduler."""
    stored_state, fault = read_run_file(run.folder / "state.json", unreadable_is_damage=True)
    try:
        state, error = find_state(run, stored_state, fault, jobs)
        pass_at_1 = read_pass_at_1(run.folder, is_done=state == RunState.DONE)
    except (OSError, TOPRError) as unreadable:  # a folder that this user may not read
        return RunStatus(run, RunState.UNREADABLE, str(unreadable))
    stage = time_left = ""
    if state not in (RunState.DONE, RunState.NEW):
        stage = stored_state.get("stage", "")
    progress = stored_state.get("progress")
    if state == RunState.RUNNING and progress is not None:
        stage += f" {progress.get('done')}/{progress.get('total')}"
        time_left = describe_time_left(progress)
    job = jobs.by_job.get(run.job or "")
    return RunStatus(run, state, error, stage, time_left, pass_at_1, job.id if job is not None else "")


def find_state(run: Run, stored_state: Mapping[str, Any], fault: str, jobs: JobStates) -> tuple[RunState, str]:
    """Return a run's state and its error: by `DONE` and its claim, else by its job, else by error.txt and state.json.

    stored_state: state.json, {} for none; fault: why it could not be read.
    """
    if (run.folder / DONE_FILE).exists():
        return RunState.DONE, ""
    owner = run_lock.find_owner(run.folder / run_lock.CLAIM)
    if owner is not None:
        return RunState.RUNNING, describe_stale_claim(run, owner, stored_state, jobs)
    job = jobs.by_job.get(run.job or "")
    if job is not None:
        state = RunState.QUEUED if job.phase == "queued" else RunState.RUNNING
        return state, job.reason
    failure = attempt.last_error(run.folder)
    if failure:
        return RunState.FAILED, failure
    if stored_state.get("status") == "stopped":
        return RunState.STOPPED, "stopped by a signal"
    if stored_state:
        return RunState.STOPPED, "its process is gone (killed?)"
    if fault.startswith("can't"):
        return RunState.UNREADABLE, f"state.json {fault}"
    if fault != MISSING:
        return RunState.STOPPED, f"state.json {fault}"
    if run.job and not jobs.problem:
        return RunState.NEW, "its job is over, or was never there: see logs"
    return RunState.NEW, ""


def missing_status(run: Run) -> RunStatus:
    """Return the state of a run of the sweep's record whose launch.json can't be read."""
    if run.folder.exists():
        return RunStatus(run, RunState.UNREADABLE, f"{LAUNCH} is missing or damaged")
    return RunStatus(run, RunState.REMOVED, "its folder is gone; the same launch makes it again")


def describe_stale_claim(run: Run, owner: locks.Owner, stored_state: Mapping[str, Any], jobs: JobStates) -> str:
    """Say what to do about a claim that a file server may keep for a lost machine (NFS 3 does); "" for others."""
    began_in_job = stored_state.get("attempt", {}).get("job") is not None
    job_is_over = not jobs.problem and run.job not in jobs.by_job
    if began_in_job and job_is_over and not owner.is_on_this_host():
        # What to do comes first: a table shows the beginning.
        return f"its job is over: if its node is lost, remove {run_lock.CLAIM} (of {owner})"
    return ""


def describe_time_left(progress: Mapping[str, Any]) -> str:
    seconds = as_number(progress.get("seconds_left"))
    if seconds is None:
        return ""
    whole_seconds = int(max(0.0, min(seconds, MAX_SECONDS_LEFT)))
    return str(datetime.timedelta(seconds=whole_seconds))


def read_pass_at_1(folder: Path, *, is_done: bool) -> str:
    """Format the base model's pass@1 and the newest one on the same problems, in percent."""
    records, _ = read_lines(folder / "eval.jsonl")
    if not records:
        return ""
    newest = records[-1]  # on a subset of the problems while training, on all before and after
    base = next(record for record in records if record.get("subset") == newest.get("subset"))
    percentages = []
    for record in (base, newest):
        value = as_number(record.get("pass@1"))
        if value is not None:
            percentages.append(f"{100 * value:.1f}")
    if not is_done and percentages[:1] == percentages[1:]:
        percentages = percentages[:1]
    return " -> ".join(percentages)
