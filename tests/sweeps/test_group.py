"""Whole runs in several processes: the real command, its files, its kills and its errors."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests import sweep_tools
from tests.conftest import config_of, lines_of, overrides
from tests.sweep_tools import SLOW, wait_for
from topr_exp.pipeline import run

pytestmark = pytest.mark.timeout(1800)
LONG = ["optim.epochs=5", "checkpoint.every_seconds=0", *SLOW]  # 20 updates, two seconds at least
ON_POLICY = ["algo=rloo", "schedule.rounds=3", "schedule.prompts=8", "schedule.replay=0.3", "evaluation.every=2",
             "optim.batch_size=32"]  # fmt: skip
LATE = ["schedule=async", "schedule.lag=1", "schedule.rounds=3", "schedule.prompts=8", "optim.batch_size=32"]


def start(folder: Path, *arguments: str) -> sweep_tools.Command:
    return sweep_tools.start("topr_exp", *overrides(folder, *arguments))


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return sweep_tools.command("topr_exp", *overrides(folder, *arguments))


def folder_of(output: Path, *arguments: str) -> Path:
    folder: Path = config_of(*overrides(output, *arguments)).folder
    return folder


def measured(folder: Path) -> dict[str, Any]:
    """What a run found, without what depends on the clock."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    del summary["seconds"]
    return summary


def assert_same_run(first: Path, second: Path) -> None:
    """Equal summaries, figures and steps; weights to rounding."""
    assert_close(measured(first), measured(second))
    for name in ("eval.jsonl", "metrics.jsonl"):
        lines = [(path / name).read_text().splitlines() for path in (first, second)]
        assert_close(*([json.loads(line) for line in part] for part in lines))
    weights = [load_file(path / "model" / "model.safetensors") for path in (first, second)]
    assert set(weights[0]) == set(weights[1])
    for name, weight in weights[0].items():
        gap = (weight - weights[1][name]).abs()
        # AdamW moves a weight whose gradient is little more than rounding by up to the learning rate, 1e-4.
        assert float(gap.max()) < 1e-4, name
        assert float((gap > 1e-6).float().mean()) < 1e-3, name


def assert_close(first: Any, second: Any) -> None:
    """Equal but for rounding, and for places and speed."""
    if isinstance(first, dict):
        assert set(first) == set(second)
        for key in set(first) - {"tokens_per_second", "rollouts", "verdicts"}:
            assert_close(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for first_item, second_item in zip(first, second, strict=True):
            assert_close(first_item, second_item)
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=1e-3, abs=1e-5, nan_ok=True)
    else:
        assert first == second


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        pytest.param([], "ddp", marks=pytest.mark.extended),
        (ON_POLICY, "fsdp"),
        pytest.param(LATE, "fsdp", marks=pytest.mark.extended),
    ],
    ids=["offline ddp", "rounds fsdp", "lag fsdp"],
)
def test_two_processes_make_the_run_that_one_makes(tmp_path: Path, arguments: list[str], parallel: str) -> None:
    single_config = config_of(*overrides(tmp_path / "one", *arguments))
    run(single_config)
    arguments_of_two = [*arguments, "cluster.processes=2", f"cluster.parallel={parallel}"]
    outcome = launch(tmp_path / "two", *arguments_of_two)
    assert outcome.returncode == 0, outcome.stderr
    folder = folder_of(tmp_path / "two", *arguments_of_two)
    assert folder.name == single_config.folder.name
    assert_same_run(folder, single_config.folder)
    assert outcome.stdout.count("[ ]: 95 % over") == 1
    assert ", 2 processes" in outcome.stdout
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2


def leader_and_other(folder: Path) -> list[int]:
    """The two processes of a run, the one that writes its folder first."""
    leader = int(json.loads((folder / "state.json").read_text())["attempt"]["pid"])
    parent = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [leader, *(int(child) for child in children if int(child) != leader)]


@pytest.mark.parametrize("blow", ["kill one", pytest.param("stop all", marks=pytest.mark.extended)])
def test_a_run_that_lost_a_process_or_was_stopped_goes_on_as_if_nothing_was(tmp_path: Path, blow: str) -> None:
    arguments = [*LONG, "cluster.processes=2", "cluster.parallel=fsdp"]
    undisturbed = config_of(*overrides(tmp_path / "one", *LONG, "algo.seconds=0"))
    run(undisturbed)
    folder, process = folder_of(tmp_path / "two", *arguments), start(tmp_path / "two", *arguments)
    wait_for(lambda: len((folder / "metrics.jsonl").read_text().splitlines()) >= 3)
    if blow == "kill one":
        os.kill(leader_and_other(folder)[1], signal.SIGKILL)
        code, message = 1, "process 1 of 2 was killed by SIGKILL (out of memory?)"
    else:
        process.send_signal(signal.SIGTERM)
        code, message = 128 + signal.SIGTERM, "stopped by SIGTERM; the same command goes on from there"
    _, printed = process.communicate(timeout=500)
    assert (process.returncode, printed.splitlines()[-1]) == (code, f"error: {message}")
    if blow == "kill one":
        assert (folder / "error.txt").read_text().startswith(message)
    assert not (folder / "DONE").exists()
    second_outcome = launch(tmp_path / "two", *arguments)
    assert second_outcome.returncode == 0, second_outcome.stderr
    assert_same_run(folder, undisturbed.folder)


@pytest.mark.extended
def test_all_processes_stop_within_an_evaluation(tmp_path: Path) -> None:
    long = ["evaluation.every=2", "data.eval_n=96", "sampler.max_new_tokens=128", "sampler.prompts_per_shard=1"]
    arguments = [*long, "checkpoint.every_seconds=600", "cluster.processes=2"]
    folder, process = folder_of(tmp_path, *arguments), start(tmp_path, *arguments)
    wait_for(lambda: list(folder.glob("store/rollouts/*/shard-*.arrow")))
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=500)
    assert process.returncode == 128 + signal.SIGTERM, message
    assert len(list(folder.glob("store/rollouts/*/shard-*.arrow"))) <= 4, "each left its shard or made it, of 8 shards"
    assert [path.name for path in (folder / "checkpoints" / "1").iterdir()] == ["step-00000002"]
    second_outcome = launch(tmp_path, *arguments)
    assert second_outcome.returncode == 0, second_outcome.stderr
    assert [point["step"] for point in lines_of(folder / "eval.jsonl") if "step" in point] == [2, 4]


def test_what_all_processes_refuse_is_said_once(tmp_path: Path) -> None:
    settings = ["compose=proportion", "compose.positive_share=0.9", "compose.n_examples=60", "cluster.processes=2"]
    outcome = launch(tmp_path, *settings)
    assert outcome.returncode == 1
    (error,) = [line for line in outcome.stderr.splitlines() if line.startswith("error")]
    assert error.startswith("error: compose.positive_share=0.9")
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
def test_torchrun_starts_a_run_too(tmp_path: Path) -> None:
    single_config = config_of(*overrides(tmp_path / "one"))
    run(single_config)
    torchrun_arguments = ["--standalone", "--nproc-per-node=2", "-m", "topr_exp"]
    words = overrides(tmp_path / "two", "cluster.processes=2")
    process = sweep_tools.start("torch.distributed.run", *torchrun_arguments, *words)
    _, message = process.communicate(timeout=1500)
    assert process.returncode == 0, message
    assert_same_run(folder_of(tmp_path / "two"), single_config.folder)
