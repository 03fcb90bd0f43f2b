"""Launch, preview, status and cancel of a sweep on a cluster, with a fake scheduler."""

import os
import shutil
import socket

import pytest

from tests.conftest import plan_of, refused
from tests.sweep_tools import answer
from topr_exp.runs import run_lock
from topr_exp.runs.attempt import record_error
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.launch import launch, preview
from topr_exp.sweeps.sweep import CLAIM, read_runs
from topr_exp.types import TOPRError


@pytest.fixture
def words(tmp_path):
    """A sweep of four runs on a cluster."""
    return ["-m", "algo=topr,tis,ppo,grpo", "cluster=slurm", f"output_dir='{tmp_path}/a b'", "name=sweep"]


def start(words, *settings):
    return launch(plan_of(*words, *settings).jobs, [*words, *settings])


@pytest.fixture
def sweep(tmp_path):
    """Its folder."""
    return tmp_path / "a b/sweep"


@pytest.fixture
def queued_runs(scheduler, words, sweep):
    """The four runs after a launch."""
    start(words)
    return read_runs(sweep)


def test_a_launch_submits_all_runs_and_a_second_one_those_that_need_it(scheduler, words, queued_runs, sweep, capsys):
    finished, running, queued, failed = queued_runs
    (finished.folder / "DONE").touch()
    record_error(failed.folder, TOPRError("too few"))
    for run in (finished, running, failed):
        del scheduler.jobs[run.job]

    with run_lock.lock_run_folder(running.folder):
        assert start(words) == 0

    assert scheduler.submissions == [[1, 2, 3, 4], [failed.number]]
    assert "4 runs: 1 done, 1 running, 1 queued, 1 failed; 1 to start" in capsys.readouterr().out
    assert read_runs(sweep)[2].job == queued.job


def test_the_jobs_of_a_launcher_that_was_killed_are_found(scheduler, words, sweep, capsys):
    scheduler.submit_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        start(words)
    scheduler.submit_error = None

    assert start(words) == 0

    out = capsys.readouterr().out
    assert "4 runs: 4 queued; 0 to start" in out
    assert out.endswith(f"follow it: python -m topr_exp.sweeps status '{sweep}'\n")


def test_a_launch_of_a_finished_sweep_says_how_to_look_at_it(words, queued_runs, sweep, capsys):
    for run in queued_runs:
        (run.folder / "DONE").touch()

    assert start(words) == 0

    last_lines = f"next: python -m topr_exp.report '{sweep}'\n      python -m topr_exp.compare '{sweep}'\n"
    assert capsys.readouterr().out.endswith(f"4 runs: 4 done\n{last_lines}")


@pytest.fixture
def unsubmitted_run(scheduler, queued_runs):
    """The last of the runs, of which there is no job."""
    *_, run = queued_runs
    del scheduler.jobs[run.job]
    run.job = None
    run.save()
    return run


def test_a_launch_changes_no_settings_of_runs_that_may_be_active(words, unsubmitted_run, sweep):
    """A job that starts, or is requeued, reads its settings: cluster.nodes must be what it was submitted with."""
    start(words, "cluster.nodes=2")

    first, *_, last = read_runs(sweep)
    assert first.settings["cluster"]["nodes"] == 1
    assert last.settings["cluster"]["nodes"] == 2


def test_nothing_is_launched_while_the_scheduler_is_silent(scheduler, words, unsubmitted_run):
    scheduler.problem = "silent"

    with refused("silent: some runs may be queued already"):
        start(words, "cluster.nodes=2")

    assert len(scheduler.submissions) == 1


def test_a_resume_that_misses_a_run_is_no_success_though_all_others_are_queued(queued_runs, sweep, capsys):
    shutil.rmtree(queued_runs[-1].folder)

    assert main(["resume", str(sweep)]) == 1

    assert f"why: python -m topr_exp.sweeps logs '{sweep}' RUN; " in capsys.readouterr().out


def test_a_preview_shows_the_queue_and_how_the_others_would_be_submitted(scheduler, words, queued_runs, capsys):
    for run in queued_runs[1:]:
        del scheduler.jobs[run.job]

    *rows, submission, total = preview(plan_of(*words).jobs).splitlines()

    assert [row.split()[1] for row in rows] == ["queued", "new", "new", "new"]
    assert submission == "3 jobs"
    assert total == "4 runs on a cluster; nothing started"
    assert len(scheduler.submissions) == 1
    capsys.readouterr()
    scheduler.problem = "silent"
    preview(plan_of(*words).jobs)
    assert capsys.readouterr().err == "warning: silent\n"


def test_status_and_logs_show_what_the_scheduler_has_of_a_run(scheduler, queued_runs, sweep):
    queued, ended, *_ = queued_runs
    del scheduler.jobs[ended.job]
    (sweep / "job.log").write_text("no such module\n")

    table = answer("topr_exp.sweeps", "status", sweep).stdout
    logs = answer("topr_exp.sweeps", "logs", sweep, "2").stdout

    _, first_line, second_line, *_ = table.splitlines()
    assert first_line.split() == ["1", "algo=topr", "queued", "17_0", queued.folder.name, "Priority"]
    assert second_line.endswith("its job is over, or was never there: see logs")
    assert "no such module" in logs


def test_logs_lead_to_the_script_of_a_job_that_printed_nothing(queued_runs, sweep):
    scripts = sweep / ".submitit"
    scripts.mkdir()

    outcome = answer("topr_exp.sweeps", "logs", sweep, "1")

    assert outcome.returncode == 1
    assert f"({queued_runs[0].folder.name}) has printed nothing yet; if its job is over" in outcome.stderr
    assert outcome.stderr.endswith(f"its script is in {scripts}\n")


def test_status_names_the_process_that_is_still_launching(scheduler, queued_runs, sweep):
    scheduler.jobs.clear()
    owner = f"{socket.gethostname()}:{os.getpid()}"

    with run_lock.lock_run_folder(sweep, CLAIM, "launched"):
        launching = answer("topr_exp.sweeps", "status", sweep).stdout
    launched = answer("topr_exp.sweeps", "status", sweep).stdout

    assert launching == f"{launched}being launched by process {owner}: new runs are still to start\n"
    assert launched.endswith("4 runs: 4 new\n")


def test_cancel_takes_named_runs_from_the_queue(scheduler, queued_runs, sweep):
    _, second, third, fourth = queued_runs

    outcome = answer("topr_exp.sweeps", "cancel", sweep, "1", second.folder.name)

    assert (outcome.returncode, outcome.stdout) == (0, "cancelled: run 1 (17_0), run 2 (17_1)\n")
    assert [*scheduler.jobs] == [third.job, fourth.job]
