"""Sweeps in processes of this machine: results, failures, kills, and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, config_of
from tests.sweep_tools import SLOW, TINY, attempts, command, launch, manifest, result, results, start, steps, wait_for
from topr_exp.pipeline import run as run_pipeline
from topr_exp.sweeps import local


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, two at once, two of which fail, and the launcher's words beside them."""
    output = tmp_path_factory.mktemp("local")
    done = launch(
        output, "name=four", "cluster.jobs=2", "compose=proportion",
        "compose.positive_share=0.1", "compose.n_examples=10,1000", "algo=topr,sft",
    )  # fmt: skip
    (output / "printed.json").write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    return output / "four"


def test_a_failed_run_hides_no_other(sweep: Path) -> None:
    code, out, err = json.loads((sweep.parent / "printed.json").read_text())
    assert code == 1, err
    assert len(results(sweep)) == 2
    assert "4 runs: 2 done, 2 failed" in out
    assert out.count("needs 100 correct completions; 8 are available") == 2
    assert f"resume {sweep}" in out


def test_every_run_writes_its_state_its_output_and_its_error_with_the_traceback(sweep: Path) -> None:
    for run in manifest(sweep)["runs"]:
        folder = sweep / run["folder"]
        state = json.loads((folder / "state.json").read_text())
        assert state["attempt"]["number"] == 1
        log = (folder / "log.txt").read_text()
        if "compose.n_examples=10" in run["overrides"]:
            assert state["status"] == "done"
            assert not (folder / "error.txt").exists()
            assert "pass@1 ± 2 standard errors" in log
        else:
            assert (state["status"], state["stage"]) == ("failed", "composition")
            error = (folder / "error.txt").read_text()
            assert "needs 100 correct completions" in error.splitlines()[0]
            assert "Traceback (most recent call last)" in error


def test_a_run_of_a_sweep_is_the_same_as_a_single_run(sweep: Path, tmp_path: Path) -> None:
    run = manifest(sweep)["runs"][0]
    arguments = [text for text in run["overrides"] if not text.startswith(("output_dir", "cluster"))]
    run_pipeline(config_of(*arguments, f"output_dir={tmp_path}", "cluster.threads=1"))
    assert result(tmp_path / "four" / run["folder"]) == result(sweep / run["folder"])


def test_the_same_sweep_again_starts_only_what_failed(sweep: Path) -> None:
    before = attempts(sweep)
    done = command("topr_exp.sweeps", "resume", sweep, "cluster.jobs=1")
    assert done.returncode == 1
    assert "4 runs: 2 done, 2 failed; 2 to start" in done.stdout
    finished = {mark.parent.name for mark in sweep.glob("*/DONE")}
    assert attempts(sweep) == {name: 1 if name in finished else 2 for name in before}


def test_status_and_logs(sweep: Path) -> None:
    done = command("topr_exp.sweeps", "status", sweep)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["run", "state", "stage", "left", "pass@1", "folder"]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "done"], ["2", "done"], ["3", "failed"], ["4", "failed"]]
    assert lines[5] == "4 runs: 2 done, 2 failed"
    logs = command("topr_exp.sweeps", "logs", sweep, "3", "--lines", "3")
    assert logs.returncode == 0
    assert "error.txt" in logs.stdout
    assert "Traceback" in logs.stdout
    missing = command("topr_exp.sweeps", "logs", sweep, "9")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "no run of" in missing.stderr


def test_status_loads_nothing_heavy(sweep: Path) -> None:
    """So that it answers within a second even beside runs at work."""
    heavy = ["torch", "transformers", "numpy", "pyarrow", "sympy", "datasets", "wandb", "matplotlib", "hydra"]
    code = (
        f"import sys; from topr_exp.sweeps.__main__ import main; code = main(['status', {str(sweep)!r}]);"
        f"print(code, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_a_killed_launcher_takes_its_runs_along_and_resume_finishes_them(tmp_path: Path) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOW, "cluster.jobs=2", "seed=0,1", "optim.epochs=20"]
    launcher = start("topr_exp", "-m", *arguments, "name=killed")
    sweep = tmp_path / "killed"
    folders = wait_for(lambda: [sweep / run["folder"] for run in manifest(sweep)["runs"]])
    refused = command("topr_exp", "-m", *arguments, "name=killed")
    assert refused.returncode == 1
    assert "is being launched by process" in refused.stderr
    assert refused.stderr.count("\n") == 1
    wait_for(lambda: all(steps(folder) >= 2 for folder in folders))
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate(timeout=300)
    wait_for(lambda: all(json.loads((f / "state.json").read_text())["status"] == "stopped" for f in folders))
    assert not list(sweep.glob("*/DONE"))
    done = command("topr_exp.sweeps", "resume", sweep)
    assert done.returncode == 0, done.stderr
    assert set(attempts(sweep).values()) == {2}
    assert all([record["step"] for record in each["updates"]] == list(range(1, 41)) for each in results(sweep).values())


REFUSED = {
    "several places": (["cluster=local,slurm"], "cluster=local,slurm: the runs of a sweep share it"),
    "several folders": (["name=a,b"], "name=a,b: the runs of a sweep share it"),
    "one run twice": (["seed=0,0"], "are the same run"),
    "twice but for tracking": (["tracking=none,wandb"], "are the same run"),
    "twice but for memory": (["optim.micro_batch_size=2,4"], "are the same run"),
    "another launcher": (["hydra.launcher._target_=a.B"], "hydra/launcher is a.B: it must be basic for cluster=local"),
    "one bad run": (["baseline=0,3"], "baseline must be in [-1, 1]; got 3"),
    "no processes": (["cluster.jobs=0"], "cluster.jobs must be 1 or more; got 0"),
    "slurm's own": (["cluster.partition=gpu"], "nothing reads cluster.partition here; cluster=slurm does"),
    "no Slurm": (["cluster=slurm", "seed=0,1"], "no sbatch on PATH"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_refused_in_one_line_before_anything_starts(case: str, tmp_path: Path) -> None:
    arguments, message = REFUSED[case]
    done = launch(tmp_path, *arguments, PATH="/nonexistent")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not list(tmp_path.glob("*/topr*"))


def test_a_dry_run_tells_and_starts_nothing(sweep: Path, tmp_path: Path) -> None:
    arguments = ["compose=proportion", "compose.positive_share=0.1", "compose.n_examples=10,1000", "algo=topr,ppo"]
    done = launch(sweep.parent, "name=four", *arguments, "dry_run=true")
    states = [line.split()[1] for line in done.stdout.rpartition("\n\n")[2].splitlines()[:4]]
    assert (done.returncode, states) == (0, ["done", "new", "resumable", "new"])
    assert "nothing started" in done.stdout
    assert launch(tmp_path / "new", "seed=0,1", "dry_run=true").returncode == 0
    assert not (tmp_path / "new").exists()


def test_a_folder_of_another_experiment_is_refused_with_the_difference(sweep: Path) -> None:
    run = manifest(sweep)["runs"][0]
    path = sweep / run["folder"] / "config.json"
    stored = path.read_text()
    changed = json.loads(stored)
    changed["identity"]["optim"]["lr"] = 0.5
    try:
        path.write_text(json.dumps(changed))
        arguments = [text for text in run["overrides"] if not text.startswith("output_dir")]
        done = command("topr_exp", "-m", *arguments, f"output_dir={sweep.parent}")
    finally:
        path.write_text(stored)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "holds another experiment (optim.lr: 0.5 -> 0.0001)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["status", "nowhere"], 1, "no sweep in nowhere"),
        (["resume", "SWEEP", "seed=3"], 2, "only cluster settings can change"),
        (["resume", "SWEEP", "cluster.jobs=x"], 2, "cluster.jobs=x: expected a whole number"),
        (["cancel", "SWEEP", "77"], 1, "77: no run of"),
    ],
)
def test_mistakes_of_the_command_line_of_sweeps(sweep: Path, arguments: list[str], code: int, message: str) -> None:
    done = command("topr_exp.sweeps", *(str(sweep) if text == "SWEEP" else text for text in arguments))
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert message in done.stderr


def test_the_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    from topr_exp.sweeps.child import threads_per_run

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_per_run(jobs) for jobs in (1, 2, 3, 16, 40)] == [None, 8, 5, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_per_run(3) == 2


def test_the_share_of_a_run_s_process_counts_all_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at once, of two processes each, on eight cores; three runs, one after the other ended."""
    begun: list[tuple[int | None, int]] = []

    class Started:
        def __init__(self, call: Any, run: Any, path: Path, threads: int | None, share: int | None, slot: int) -> None:
            begun.append((share, slot))

        def ending(self) -> None:
            return None

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local, "Child", Started)
    monkeypatch.setattr(local.child, "wait", lambda working, seconds: [next(iter(working))])
    runs: list[Any] = [SimpleNamespace(settings={"cluster": {"processes": 2}}, number=i) for i in range(3)]
    ended: list[int] = []
    sweep: Any = SimpleNamespace(path=lambda run: Path())
    local.run_locally(sweep, runs, 2, None, lambda run, message: ended.append(run.number))  # type: ignore[union-attr]
    assert begun == [(2, 0), (2, 1), (2, 0)]
    assert ended == [0, 1, 2]


def test_each_slot_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(slot: int, count: int, names: list[str]) -> str:
        monkeypatch.setattr(local.distributed, "visible_gpus", lambda: names)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
        local.choose_gpus(slot, count)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    five = ["0", "1", "4", "5", "7"]
    assert [seen(slot, 1, five) for slot in range(6)] == ["0", "1", "4", "5", "7", "0"]
    assert [seen(slot, 2, five) for slot in range(3)] == ["0,1", "4,5", "0,1"]
    assert seen(1, 5, five) == "all"
