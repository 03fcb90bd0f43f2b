"""Requeueing of stopped runs: which jobs come back, and which end."""

import signal

import pytest

from tests.conftest import refused
from tests.sweeps.fake_scheduler import FakeScheduler, bare_run
from topr_exp.runs import attempt
from topr_exp.runtime.json_files import write_json
from topr_exp.sweeps.jobs import JobState
from topr_exp.sweeps.requeue import MAX_TIME_LIMITS, requeue_stopped_run
from topr_exp.sweeps.sweep import SCRIPTS
from topr_exp.types import TOPRError


@pytest.fixture
def run(tmp_path):
    """A run in a job."""
    (tmp_path / SCRIPTS).mkdir()
    (tmp_path / "run").mkdir()
    return bare_run(tmp_path / "run", job="array_0")


@pytest.fixture
def scheduler(clock):
    """A scheduler whose job runs; nobody waits before a requeue."""
    return FakeScheduler({"array_0": JobState("17_0", "running")})


PREEMPTED = signal.SIGUSR1
OUT_OF_TIME = signal.SIGUSR2
ENDED = signal.SIGTERM


def test_preemptions_are_no_time_limits_which_are_counted(run, scheduler):
    for reason in [PREEMPTED] * 30 + [OUT_OF_TIME] * MAX_TIME_LIMITS + [ENDED]:
        requeue_stopped_run(scheduler, run, reason)
    assert scheduler.requeues == 31 + MAX_TIME_LIMITS

    with refused("out of time"):
        requeue_stopped_run(scheduler, run, OUT_OF_TIME)
    assert scheduler.requeues == 31 + MAX_TIME_LIMITS
    assert attempt.last_error(run.folder).startswith("out of time")


@pytest.mark.parametrize("phase", ["ending", "queued", None])
def test_a_job_that_was_cancelled_or_is_requeued_already_is_left_alone(phase, run, scheduler):
    scheduler.jobs.clear()
    if phase is not None:
        scheduler.jobs["array_0"] = JobState("17_0", phase)

    requeue_stopped_run(scheduler, run, ENDED)

    assert scheduler.requeues == 0


def test_a_task_whose_neighbour_failed_does_not_requeue_the_job(run, scheduler):
    attempt.record_error(run.folder, TOPRError("out of memory"))

    requeue_stopped_run(scheduler, run, ENDED)

    assert scheduler.requeues == 0
    assert attempt.last_error(run.folder) == "out of memory"


@pytest.mark.parametrize(
    "refusals, attempts, error",
    [(2, 3, ""), (9, 5, "saved, but not queued again (busy): resume the sweep")],
)
def test_a_refused_requeue_is_tried_again(refusals, attempts, error, run, scheduler):
    scheduler.requeue_problems = ["busy"] * refusals

    requeue_stopped_run(scheduler, run, PREEMPTED)

    assert scheduler.requeues == attempts
    assert attempt.last_error(run.folder) == error


def test_a_job_that_sigterm_ends_at_one_place_again_and_again_is_given_up(run, scheduler):
    """As where a task is killed without a word; a run that gets on is requeued each time."""
    for step in (*range(9), 8, 8, 8):
        write_json(run.folder / "state.json", {"stage": "sampling", "progress": {"done": step}})
        requeue_stopped_run(scheduler, run, ENDED)

    with refused("SIGTERM 5 times in a row at sampling 8"):
        requeue_stopped_run(scheduler, run, ENDED)
    assert "in a row at sampling 8" in attempt.last_error(run.folder)
