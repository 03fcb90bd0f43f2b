"""Sweeps in processes of this machine: results, failures, kills, and what is refused before anything starts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of
from tests.sweep_tools import SLOW, TINY, answer, attempts, launch, launched, result, results, start, steps, wait_for
from topr_exp.pipeline import run as run_pipeline

TWO = ["compose=proportion", "compose.positive_share=0.1", "compose.n_examples=10,1000"]


@pytest.fixture(scope="module")
def launched_sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A sweep of two runs at once, the second of which fails, and the launcher's output."""
    output = tmp_path_factory.mktemp("local")
    outcome = launch(output, "name=two", "cluster.jobs=2", *TWO)
    return output / "two", outcome


@pytest.fixture
def sweep(launched_sweep: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    return launched_sweep[0]


def test_a_failed_run_hides_no_other_and_each_writes_its_state_output_and_error(launched_sweep):
    sweep, outcome = launched_sweep
    assert outcome.returncode == 1, outcome.stderr
    assert "2 runs: 1 done, 1 failed" in outcome.stdout
    assert "needs 100 correct completions; 8 are available" in outcome.stdout
    assert f"resume {sweep}" in outcome.stdout
    finished, failed = (run["folder"] for run in launched(sweep))
    states = [json.loads((folder / "state.json").read_text()) for folder in (finished, failed)]
    assert [state["status"] for state in states] == ["done", "failed"]
    assert states[1]["stage"] == "composition"
    log = (finished / "log.txt").read_text()
    assert log.startswith("==== ")
    assert "[ ]: 95 % over" in log
    assert not (finished / "error.txt").exists()
    error = (failed / "error.txt").read_text()
    assert "needs 100 correct completions" in error.splitlines()[0]
    assert "Traceback (most recent call last)" in error


def test_a_run_of_a_sweep_is_the_same_as_a_single_run(sweep: Path, tmp_path: Path) -> None:
    run = launched(sweep)[0]
    arguments = [text for text in run["overrides"] if not text.startswith(("output_dir", "cluster"))]
    run_pipeline(config_of(*arguments, f"output_dir={tmp_path}", "cluster.threads=1"))
    assert result(tmp_path / "two" / run["folder"].name) == result(run["folder"])


def test_a_dry_run_tells_the_states_and_starts_nothing(sweep: Path) -> None:
    outcome = launch(sweep.parent, "name=two", *TWO, "algo=topr,ppo", "dry_run=true")
    lines = outcome.stdout.rpartition("\n\n")[2].splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["done", "new", "failed", "new"]
    assert "nothing started" in lines[-1]


def test_status_loads_nothing_heavy_and_logs_show_the_error(sweep: Path) -> None:
    """So that it answers within a second even beside runs at work."""
    heavy = {"torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "hydra"}
    code = "import sys; from topr_exp.sweeps.__main__ import main; code = main(sys.argv[1:]); "
    code += f"print(code, {heavy} & {{*sys.modules}})"
    words = [sys.executable, "-c", code, "status", str(sweep)]
    lines = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300).stdout.splitlines()
    assert lines[0].split() == ["run", "settings", "state", "stage", "left", "pass@1", "slurm", "folder"]
    assert lines[1].split()[:3] == ["1", "compose.n_examples=10", "done"]
    assert lines[2].split()[:3] == ["2", "compose.n_examples=1000", "failed"]
    assert lines[3].startswith("models of 1 run: ")
    assert lines[4:] == ["2 runs: 1 done, 1 failed", "0 set()"]
    logs = answer("topr_exp.sweeps", "logs", sweep, "2").stdout
    assert f"==> {launched(sweep)[1]['folder'] / 'log.txt'}\n" in logs
    assert "Traceback" in logs.partition("error.txt\n")[2]


def test_resume_starts_only_the_run_that_failed_and_records_why_it_can_t_begin(sweep: Path) -> None:
    failed = launched(sweep)[1]["folder"]
    launch_file = failed / "launch.json"
    stored = json.loads(launch_file.read_text())
    launch_file.write_text(json.dumps({**stored, "cwd": str(sweep / "gone"), "launched": 0.0}))
    outcome = answer("topr_exp.sweeps", "resume", sweep, "cluster.jobs=1")
    assert outcome.returncode == 1
    assert f"launched in {ROOT}; code beyond topr_exp: none\n" in outcome.stdout
    assert "2 runs: 1 done, 1 failed; 1 to start" in outcome.stdout
    reason = f"cannot enter {sweep / 'gone'}, where the sweep was launched: No such file or directory"
    assert f"run 2 failed ({failed.name}): {reason}" in outcome.stdout
    assert reason in (failed / "log.txt").read_text()
    assert (failed / "error.txt").read_text().startswith(reason)
    assert set(attempts(sweep).values()) == {1}


def test_a_killed_launcher_takes_its_runs_along_and_resume_finishes_them(tmp_path: Path) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOW, "cluster.jobs=2", "seed=0,1", "optim.epochs=5", "name=killed"]
    launcher, sweep = start("topr_exp", "-m", *arguments), tmp_path / "killed"
    folders = [run["folder"] for run in wait_for(lambda: len(launched(sweep)) == 2 and launched(sweep))]
    refused = answer("topr_exp", "-m", *arguments)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is being launched by process" in refused.stderr
    wait_for(lambda: all(steps(folder) >= 2 for folder in folders))
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate(timeout=300)
    wait_for(lambda: all(json.loads((f / "state.json").read_text())["status"] == "stopped" for f in folders))
    assert not list(sweep.glob("*/DONE"))
    outcome = answer("topr_exp.sweeps", "resume", sweep, SLOW[0])
    assert outcome.returncode == 0, outcome.stderr
    assert f"launched in {ROOT}; code beyond topr_exp: {SLOW[0]}\n" in outcome.stdout
    assert set(attempts(sweep).values()) == {2}
    for run_result in results(sweep).values():
        assert [record["step"] for record in run_result["updates"]] == list(range(1, 11))


def test_a_mistake_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    outcome = launch(tmp_path, "baseline=0,3")
    assert (outcome.returncode, outcome.stderr.count("\n")) == (2, 1), outcome.stderr
    assert "baseline must be" in outcome.stderr
    without_sbatch = launch(tmp_path, "cluster=slurm", PATH="/nonexistent")
    assert (without_sbatch.returncode, without_sbatch.stderr.count("\n")) == (2, 1), without_sbatch.stderr
    assert "no sbatch on PATH" in without_sbatch.stderr
    assert not list(tmp_path.iterdir())
