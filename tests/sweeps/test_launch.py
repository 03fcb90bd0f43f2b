"""Launch, preview, status and cancel of a sweep on a cluster, with a fake scheduler."""

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import answer
from tests.sweeps.fake_scheduler import FakeScheduler
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs import run_lock
from topr_exp.runs.attempt import record_error
from topr_exp.runs.plan import plan
from topr_exp.sweeps.launch import launch, preview
from topr_exp.sweeps.sweep import Run, read_runs
from topr_exp.types import ConfigError, TOPRError

FOUR = ["-m", "algo=topr,tis,ppo,grpo"]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A sweep of four runs on a cluster."""
    return [*FOUR, "cluster=slurm", f"output_dir={tmp_path}", "name=sweep"]


def start(arguments: list[str], *settings: str) -> int:
    words = [*arguments, *settings]
    return launch(plan(parse_arguments(words)), words)


def queued_runs(arguments: list[str], tmp_path: Path) -> list[Run]:
    """The runs after a launch."""
    start(arguments)
    return read_runs(tmp_path / "sweep")


def test_a_launch_submits_all_runs_and_a_second_one_those_that_need_it(scheduler, arguments, tmp_path, capsys):
    finished, running, queued, failed = queued_runs(arguments, tmp_path)
    (finished.folder / "DONE").touch()
    record_error(failed.folder, TOPRError("too few"))
    for run in (finished, running, failed):
        del scheduler.jobs[run.job]
    with run_lock.lock_run_folder(running.folder):
        assert start(arguments) == 0
    assert [numbers for numbers, _ in scheduler.submissions] == [[1, 2, 3, 4], [failed.number]]
    assert "4 runs: 1 done, 1 running, 1 queued, 1 failed; 1 to start" in capsys.readouterr().out
    assert read_runs(tmp_path / "sweep")[2].job == queued.job


def test_while_the_scheduler_is_silent_nothing_is_started(scheduler, arguments, tmp_path):
    queued_runs(arguments, tmp_path)
    scheduler.problem = "silent"
    with pytest.raises(TOPRError, match="silent: some runs may be queued already"):
        start(arguments)
    assert len(scheduler.submissions) == 1


def test_the_jobs_of_a_launcher_that_was_killed_are_found(scheduler, arguments, tmp_path, capsys):
    scheduler.submit_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        start(arguments)
    scheduler.submit_error = None
    start(arguments)
    assert "4 runs: 4 queued; 0 to start" in capsys.readouterr().out


@pytest.mark.parametrize("problem", ["", "silent"])
def test_a_launch_leaves_the_settings_of_runs_that_may_be_active_as_they_are(scheduler, arguments, tmp_path, problem):
    """A job that starts, or is requeued, reads them: cluster.nodes must be what it was submitted with."""
    queued, *_, failed = queued_runs(arguments, tmp_path)
    del scheduler.jobs[failed.job]
    failed.job = None
    failed.save()
    scheduler.problem = problem
    if problem:
        with pytest.raises(TOPRError):
            start(arguments, "cluster.nodes=2")
    else:
        start(arguments, "cluster.nodes=2")
    nodes = {run.number: run.settings["cluster"]["nodes"] for run in read_runs(tmp_path / "sweep")}
    assert (nodes[queued.number], nodes[failed.number]) == (1, 2)


def test_a_preview_shows_the_queue_and_how_the_others_would_be_submitted(scheduler, arguments, tmp_path):
    _, *other_runs = queued_runs(arguments, tmp_path)
    for run in other_runs:
        del scheduler.jobs[run.job]
    *rows, submission, total = preview(plan(parse_arguments(arguments))).splitlines()
    assert [row.split()[1] for row in rows] == ["queued", "new", "new", "new"]
    assert (submission, total) == ("3 jobs", "4 runs, cluster=slurm; nothing started")
    assert len(scheduler.submissions) == 1


def test_a_preview_warns_where_the_scheduler_is_silent(scheduler, arguments, capsys):
    scheduler.problem = "silent"
    preview(plan(parse_arguments(arguments)))
    assert capsys.readouterr().err == "warning: silent\n"


def test_status_and_logs_show_what_the_scheduler_has_of_a_run(scheduler, arguments, tmp_path):
    queued, over, *_ = queued_runs(arguments, tmp_path)
    del scheduler.jobs[over.job]
    lines = answer("topr_exp.sweeps", "status", tmp_path / "sweep").stdout.splitlines()
    assert lines[1].split() == ["1", "algo=topr", "queued", "17_0", queued.folder.name, "Priority"]
    assert lines[2].endswith("its job is over, or was never there: see logs")
    (tmp_path / "sweep" / "job.log").write_text("no such module\n")
    assert "no such module" in answer("topr_exp.sweeps", "logs", tmp_path / "sweep", "2").stdout


# ---- cancel


def test_cancel_takes_named_runs_from_the_queue(scheduler, arguments, tmp_path):
    first, second, *_ = queued_runs(arguments, tmp_path)
    outcome = answer("topr_exp.sweeps", "cancel", tmp_path / "sweep", "1", second.folder.name)
    assert (outcome.returncode, outcome.stdout) == (0, "cancelled: run 1 (17_0), run 2 (17_1)\n")
    assert len(scheduler.jobs) == 2
    assert not {first.job, second.job} & scheduler.jobs.keys()


def test_cancel_names_the_processes_that_it_leaves_alone(scheduler: FakeScheduler, tmp_path: Path) -> None:
    sweep = make_sweep_of_two(tmp_path / "sweep")
    _, run = read_runs(sweep)
    with run_lock.lock_run_folder(run.folder), run_lock.lock_run_folder(sweep, "sweep.claim"):
        claims = [sweep / "sweep.claim", run.folder / "run.claim"]
        for claim in claims:
            claim.write_text("node7:9")
        outcome = answer("topr_exp.sweeps", "cancel", sweep)
    assert (outcome.returncode, outcome.stdout) == (1, "cancelled: run 2\n")
    reason = "process node7:9 is left alone; it is not here, not yours, or at other work"
    assert outcome.stderr == f"error: {claims[0]}: {reason}; {claims[1]}: {reason}\n"


# ---- what is a sweep


def test_a_single_run_on_a_users_own_cluster_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    text = (ROOT / "conf" / "cluster" / "slurm.yaml").read_text()
    (tmp_path / "cluster" / "mine.yaml").write_text(text.partition("\nhydra:")[0])
    assert plan(parse_arguments(["--config-dir", str(tmp_path), "cluster=mine"])).sweep
    assert not plan(parse_arguments([])).sweep


def test_runs_that_are_submitted_together_have_one_cluster() -> None:
    words = ["-m", "cluster=slurm", "cluster.mem_gb=${size:4,128}", "dry_run=true"]
    with pytest.raises(ConfigError, match=r"model=llama3_8b .*: its cluster settings differ; start a sweep for each"):
        plan(parse_arguments([*words, "model=tiny,llama3_8b", "sampler=hf"]))
    assert len(plan(parse_arguments([*words, "seed=0,1"])).jobs) == 2
