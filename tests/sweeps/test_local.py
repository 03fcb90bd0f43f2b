"""Sweeps in processes of this machine: results, failures, kills, and what is refused before anything starts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of
from tests.sweep_tools import SLOW, TINY, answer, attempts, launch, launched, result, results, start, steps, wait_for
from topr_exp.__main__ import main as topr_exp
from topr_exp.pipeline import run as run_pipeline
from topr_exp.sweeps.__main__ import main

FOUR = ["compose=proportion", "compose.positive_share=0.1", "compose.n_examples=10,1000"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, two at once, two of which fail; the launcher's words are beside them."""
    output = tmp_path_factory.mktemp("local")
    done = launch(output, "name=four", "cluster.jobs=2", *FOUR, "algo=topr,sft")
    (output / "printed.json").write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    return output / "four"


def test_a_failed_run_hides_no_other_and_each_writes_its_state_output_and_error(sweep: Path) -> None:
    code, out, err = json.loads((sweep.parent / "printed.json").read_text())
    assert code == 1, err
    assert len(results(sweep)) == 2
    assert "4 runs: 2 done, 2 failed" in out
    assert out.count("needs 100 correct completions; 8 are available") == 2
    assert f"resume {sweep}" in out
    for run in launched(sweep):
        state, log = (json.loads((run["folder"] / "state.json").read_text()), (run["folder"] / "log.txt").read_text())
        assert state["attempt"]["number"] == 1
        assert log.startswith("==== ")
        if "compose.n_examples=10" in run["overrides"]:
            assert state["status"] == "done"
            assert not (run["folder"] / "error.txt").exists()
            assert "[ ]: 95 % over" in log
        else:
            assert (state["status"], state["stage"]) == ("failed", "composition")
            error = (run["folder"] / "error.txt").read_text()
            assert "needs 100 correct completions" in error.splitlines()[0]
            assert "Traceback (most recent call last)" in error


def test_a_run_of_a_sweep_is_the_same_as_a_single_run(sweep: Path, tmp_path: Path) -> None:
    run = launched(sweep)[0]
    arguments = [text for text in run["overrides"] if not text.startswith(("output_dir", "cluster"))]
    run_pipeline(config_of(*arguments, f"output_dir={tmp_path}", "cluster.threads=1"))
    assert result(tmp_path / "four" / run["folder"].name) == result(run["folder"])


def test_the_same_sweep_again_starts_only_what_failed(sweep: Path) -> None:
    before = attempts(sweep)
    moved = launched(sweep)[2]["folder"] / "launch.json"
    text = moved.read_text()
    moved.write_text(json.dumps({**json.loads(text), "cwd": str(sweep / "gone")}))
    done = answer("topr_exp.sweeps", "resume", sweep, "cluster.jobs=1")
    assert f"launched in {ROOT}; code beyond topr_exp: none\n" in done.stdout
    moved.write_text(text)
    assert done.returncode == 1
    assert "4 runs: 2 done, 2 failed; 2 to start" in done.stdout
    reason = f"cannot enter {sweep / 'gone'}, where the sweep was launched: No such file or directory"
    assert f"run 3 failed ({moved.parent.name}): {reason}" in done.stdout
    assert reason in (moved.parent / "log.txt").read_text()
    assert (moved.parent / "error.txt").read_text().startswith(reason)
    again = launched(sweep)[3]["folder"].name
    assert attempts(sweep) == {name: 2 if name == again else 1 for name in before}


def test_status_and_logs(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status loads nothing heavy, so that it answers within a second even beside runs at work."""
    heavy = {"torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "hydra"}
    code = "import sys; from topr_exp.sweeps.__main__ import main; code = main(sys.argv[1:]); "
    code += f"print(code, {heavy} & {{*sys.modules}})"
    words = [sys.executable, "-c", code, "status", str(sweep)]
    lines = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300).stdout.splitlines()
    assert lines[0].split() == ["run", "settings", "state", "stage", "left", "pass@1", "slurm", "folder"]
    assert [line.split()[:4] for line in lines[1:5]] == [
        ["1", "compose.n_examples=10", "algo=topr", "done"],
        ["2", "compose.n_examples=10", "algo=sft", "done"],
        ["3", "compose.n_examples=1000", "algo=topr", "failed"],
        ["4", "compose.n_examples=1000", "algo=sft", "failed"],
    ]
    assert lines[5].startswith("models of 2 runs: ")
    assert lines[6:] == ["4 runs: 2 done, 2 failed", "0 set()"]
    assert main(["logs", str(sweep), "3"]) == 0
    logs = capsys.readouterr().out
    assert f"==> {launched(sweep)[2]['folder'] / 'log.txt'}\n" in logs
    assert "Traceback" in logs.partition("error.txt\n")[2]


def test_a_killed_launcher_takes_its_runs_along_and_resume_finishes_them(tmp_path: Path) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOW, "cluster.jobs=2", "seed=0,1", "optim.epochs=10", "name=killed"]
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
    silent = answer("topr_exp.sweeps", "resume", sweep)
    told = "its settings run code that is not installed; if you trust it, say so"
    assert (silent.returncode, silent.stderr) == (
        2,
        f"error: {sweep}: {told}: python -m topr_exp.sweeps resume {sweep} {SLOW[0]}\n",
    )
    assert set(attempts(sweep).values()) == {1}
    done = answer("topr_exp.sweeps", "resume", sweep, SLOW[0])
    assert done.returncode == 0, done.stderr
    assert f"launched in {ROOT}; code beyond topr_exp: {SLOW[0]}\n" in done.stdout
    assert set(attempts(sweep).values()) == {2}
    assert all([record["step"] for record in each["updates"]] == list(range(1, 21)) for each in results(sweep).values())


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit status, standard output and error of the main command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["topr_exp", "-m", *TINY, *map(str, words)])
        return topr_exp(), *capsys.readouterr()


def test_a_mistake_is_refused_and_a_dry_run_tells_before_anything_starts(sweep, tmp_path, monkeypatch, capsys):
    code, out, _ = said(capsys, f"output_dir={sweep.parent}", "name=four", *FOUR, "algo=topr,ppo", "dry_run=true")
    states = [line.split()[1] for line in out.rpartition("\n\n")[2].splitlines()[:4]]
    assert (code, states) == (0, ["done", "new", "failed", "new"])
    assert "nothing started" in out
    monkeypatch.setenv("PATH", "/nonexistent")
    for wrong, message in (("baseline=0,3", "baseline must be"), ("cluster=slurm", "no sbatch on PATH")):
        code, _, error = said(capsys, f"output_dir={tmp_path}", wrong)
        assert (code, error.count("\n")) == (2, 1), error
        assert message in error
    assert not list(tmp_path.glob("*/*"))
