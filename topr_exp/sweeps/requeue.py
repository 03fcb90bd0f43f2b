"""Requeueing: the job of a run that was stopped with a checkpoint goes back into the queue, unless it should end."""

import signal
import sys
import time

from topr_exp.runs import attempt
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.files import open_own_file
from topr_exp.runtime.terminal import printable
from topr_exp.sweeps.scheduler import Scheduler
from topr_exp.sweeps.sweep import SCRIPTS, Run
from topr_exp.types import TOPRError

PAUSES_SECONDS = (2.0, 5.0, 10.0, 10.0, 0.0)  # after attempts that fail: many jobs of an array ask at once
MAX_TIME_LIMITS = 20  # of a run; preemptions do not count
MAX_STOPS_AT_ONE_PLACE = 5  # SIGTERMs in a row


def requeue_stopped_run(scheduler: Scheduler, run: Run, reason: signal.Signals) -> None:
    """Requeue the job of a run, in which this process is; TOPRError after too many time limits, or without progress.

    SIGUSR2 announces the time limit, SIGUSR1 that the cluster wants the node back. After SIGTERM a cancelled job must
    not come back, nor one of which another task failed, and one that is preempted at once is requeued by the scheduler
    itself; one that still runs has been given notice.
    """
    if reason == signal.SIGUSR2:
        count_time_limit(run)
    elif reason != signal.SIGUSR1:
        if attempt.last_error(run.folder) or not job_is_running(scheduler, run):
            return
        refuse_standstill(run)
    for pause in PAUSES_SECONDS:
        problem = scheduler.requeue()
        print(printable(problem) or "queued again", file=sys.stderr, flush=True)
        if not problem:
            (run.folder / attempt.ERROR).unlink(missing_ok=True)
            return
        attempt.record_error(run.folder, TOPRError(f"saved, but not queued again ({problem}): resume the sweep"))
        time.sleep(pause)


def job_is_running(scheduler: Scheduler, run: Run) -> bool:
    job = scheduler.states([run]).by_job.get(run.job or "")
    return job is not None and job.phase == "running"


def count_time_limit(run: Run) -> None:
    """Add a stroke to the job's time limits; give up after MAX_TIME_LIMITS."""
    with open(run.folder.parent / SCRIPTS / f"{run.job}.limits", "a", opener=open_own_file) as limits:
        limits.write("|")
        limit_count = limits.tell()
    if limit_count > MAX_TIME_LIMITS:
        give_up(run, f"out of time more than {MAX_TIME_LIMITS} times; raise cluster.timeout_min")


def refuse_standstill(run: Run) -> None:
    """Give up if SIGTERM came at one place again and again, as where a task is killed without a word."""
    state, _ = read_run_file(run.folder / "state.json")
    progress = state.get("progress") or {}
    place = f"{state.get('stage')} {progress.get('done', 0)}"
    with open(run.folder.parent / SCRIPTS / f"{run.job}.places", "a+", opener=open_own_file) as places_file:
        places_file.write(f"{place}\n")
        places_file.seek(0)
        newest_places = places_file.read().splitlines()[-MAX_STOPS_AT_ONE_PLACE:]
    if newest_places == [place] * MAX_STOPS_AT_ONE_PLACE:
        give_up(
            run,
            f"stopped by SIGTERM {len(newest_places)} times in a row at {place}: out of memory? the job's log may say",
        )


def give_up(run: Run, reason: str) -> None:
    """Record and raise the error that keeps a run's job from the queue."""
    error = TOPRError(reason)
    attempt.record_error(run.folder, error)
    raise error
