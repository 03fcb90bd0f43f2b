"""Schedulers by `cluster.name`, and the state of runs that they and the runs' files tell."""

from collections.abc import Sequence

from topr_exp.runs.finished import DONE_FILE
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.local import LocalScheduler
from topr_exp.sweeps.run_status import RunStatus, read_status
from topr_exp.sweeps.scheduler import Scheduler
from topr_exp.sweeps.slurm import SlurmScheduler
from topr_exp.sweeps.sweep import Run

# A sweep may have begun on one and go on on another. Jobs come first: if they can't be cancelled, nothing is.
SCHEDULERS: dict[str, Scheduler] = {"slurm": SlurmScheduler(), "local": LocalScheduler()}


def read_statuses(runs: Sequence[Run]) -> tuple[list[RunStatus], str]:
    """Read the states of runs; returns them and why a scheduler gave no answer, "" if all did."""
    unfinished_runs = [run for run in runs if not (run.folder / DONE_FILE).exists()]
    state_by_job: dict[str, JobState] = {}
    problem = ""
    for scheduler in SCHEDULERS.values():
        answer = scheduler.states(unfinished_runs)
        state_by_job.update(answer.by_job)
        problem = problem or answer.problem
    jobs = JobStates(state_by_job, problem)
    return [read_status(run, jobs) for run in runs], problem
