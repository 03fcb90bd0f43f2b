"""Sweeps in processes of this machine: results, failures, kills, and what is refused before anything starts."""

import signal

import pytest

from tests.conftest import ROOT, column, config_of, read_json, run_python, update_json
from tests.sweep_tools import (
    SLOW_LOSS,
    TINY,
    answer,
    attempts,
    launch,
    launched,
    result,
    results,
    slow,
    start,
    steps,
    wait_for,
)
from topr_exp.pipeline import run as run_pipeline

TWO = ["compose=proportion", "compose.positive_share=0.3", "compose.n_examples=10,30"]
TOO_FEW = "needs 9 correct completions; 8 are available"


@pytest.fixture(scope="module")
def launched_sweep(tmp_path_factory):
    """A sweep of two runs at once, the second of which fails, and the launcher's output."""
    output = tmp_path_factory.mktemp("local")
    outcome = launch(output, "name=two", "cluster.jobs=2", *TWO)
    return output / "two", outcome


@pytest.fixture
def sweep(launched_sweep):
    return launched_sweep[0]


def status_of(folder):
    return read_json(folder / "state.json")["status"]


def test_a_failed_run_hides_no_other_and_each_writes_its_state_output_and_error_which_logs_show(launched_sweep):
    sweep, outcome = launched_sweep
    finished, failed = column(launched(sweep), "folder")

    assert outcome.returncode == 1, outcome.stderr
    for text in ("2 runs: 1 done, 1 failed", TOO_FEW, f"resume {sweep}"):
        assert text in outcome.stdout
    assert status_of(finished) == "done"
    assert status_of(failed) == "failed"
    assert "[ ]: 95 % over" in (finished / "log.txt").read_text()
    assert not (finished / "error.txt").exists()
    error = (failed / "error.txt").read_text()
    assert TOO_FEW in error.splitlines()[0]
    assert "Traceback (most recent call last)" in error
    logs = answer("topr_exp.sweeps", "logs", sweep, "2").stdout
    assert "Traceback" in logs.partition("error.txt\n")[2]


def test_a_run_of_a_sweep_is_the_same_as_a_single_run(sweep, tmp_path):
    run, _ = launched(sweep)
    words = [word for word in run["overrides"] if not word.startswith(("output_dir", "cluster"))]
    config = config_of(*words, f"output_dir={tmp_path}", "cluster.threads=1")

    run_pipeline(config)

    assert result(config.folder) == result(run["folder"])


STATUS = """
import sys
from topr_exp.sweeps.__main__ import main
heavy = {"torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "hydra"}
code = main(["status", sys.argv[1]])
print(code, heavy & {*sys.modules})
"""


def test_status_loads_nothing_heavy(sweep):
    """So that it answers within a second even beside runs at work."""
    outcome = run_python("-c", STATUS, sweep)

    header, first, second, models, *ending = outcome.stdout.splitlines()
    assert header.split() == ["run", "settings", "state", "stage", "left", "pass@1", "slurm", "folder"]
    assert first.split()[:3] == ["1", "compose.n_examples=10", "done"]
    assert second.split()[:3] == ["2", "compose.n_examples=30", "failed"]
    assert models.startswith("models of 1 run: ")
    assert ending == ["2 runs: 1 done, 1 failed", "0 set()"]


def test_resume_starts_only_the_run_that_failed_and_records_why_it_cant_begin(sweep):
    _, failed = column(launched(sweep), "folder")
    place = sweep / "gone"
    update_json(failed / "launch.json", cwd=str(place), launched=0.0)

    outcome = answer("topr_exp.sweeps", "resume", sweep, "cluster.jobs=1")

    assert outcome.returncode == 1
    assert f"launched in {ROOT}; code beyond topr_exp: none\n" in outcome.stdout
    assert "2 runs: 1 done, 1 failed; 1 to start" in outcome.stdout
    reason = f"cannot enter {place}, where the sweep was launched: No such file or directory"
    assert f"run 2 failed ({failed.name}): {reason}" in outcome.stdout
    assert (failed / "error.txt").read_text().startswith(reason)
    assert set(attempts(sweep).values()) == {1}


def test_a_killed_launcher_takes_its_runs_along_and_resume_finishes_them(tmp_path):
    sweep = tmp_path / "killed"
    brake = tmp_path / "brake"
    settings = ["cluster.jobs=2", "seed=0,1", "optim.epochs=10", "name=killed", *slow(brake)]
    words = [*TINY, f"output_dir={tmp_path}", *settings]
    launcher = start("topr_exp", "-m", *words)
    folders = column(wait_for(lambda: len(launched(sweep)) == 2 and launched(sweep)), "folder")
    second_launch = answer("topr_exp", "-m", *words)
    wait_for(lambda: all(steps(folder) >= 2 for folder in folders))

    launcher.send_signal(signal.SIGKILL)
    launcher.communicate(timeout=300)
    wait_for(lambda: list(map(status_of, folders)) == ["stopped", "stopped"])
    brake.unlink()
    resumed = answer("topr_exp.sweeps", "resume", sweep, SLOW_LOSS)

    assert (second_launch.returncode, second_launch.stderr.count("\n")) == (1, 1)
    assert "is being launched by process" in second_launch.stderr
    assert resumed.returncode == 0, resumed.stderr
    assert f"launched in {ROOT}; code beyond topr_exp: {SLOW_LOSS}\n" in resumed.stdout
    assert set(attempts(sweep).values()) == {2}
    for run_result in results(sweep).values():
        assert column(run_result["updates"], "step") == list(range(1, 21))
