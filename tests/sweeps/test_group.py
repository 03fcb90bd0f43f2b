"""Whole runs in several processes: the real command, its files, its kills and its errors."""

import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests import sweep_tools
from tests.conftest import lines_of, overrides, read_json, small_config
from tests.sweep_tools import SLOW_LOSS, slow, steps, wait_for
from topr_exp.pipeline import run
from topr_exp.runs.finished import model_folders_of

pytestmark = pytest.mark.timeout(1800)
extended = pytest.mark.extended
LONG = ["optim.epochs=3", "checkpoint.every_seconds=0"]  # 12 updates
ROUNDS = ["schedule.rounds=3", "schedule.prompts=8", "optim.batch_size=32"]
ON_POLICY = ["algo=rloo", *ROUNDS, "schedule.replay=0.3", "evaluation.every=2", "checkpoint.weights_every=2"]
LAGGED = ["schedule=async", "schedule.lag=1", *ROUNDS]


def start(folder, *words):
    return sweep_tools.start("topr_exp", *overrides(folder, *words))


def launch(folder, *words):
    return sweep_tools.command("topr_exp", *overrides(folder, *words))


def run_here(folder, *words):
    """The folder of a run in this process."""
    config = small_config(folder, *words)
    run(config)
    return config.folder


def folder_of(output, *words):
    return small_config(output, *words).folder


def assert_same_run(first, second):
    """Equal summaries, figures and steps; weights to rounding."""
    assert_close(read_json(first / "summary.json"), read_json(second / "summary.json"))
    for name in ("eval.jsonl", "metrics.jsonl"):
        assert_close(lines_of(first / name), lines_of(second / name))
    for folder in model_folders_of(second):
        assert_close_weights(first / folder.relative_to(second), folder)


def assert_close_weights(first, second):
    weights = load_file(first / "model.safetensors")
    other_weights = load_file(second / "model.safetensors")
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        gap = (weight - other_weights[name]).abs()
        # AdamW moves a weight whose gradient is little more than rounding by up to the learning rate, 1e-4.
        assert float(gap.max()) < 1e-4, name
        assert float((gap > 1e-6).float().mean()) < 1e-3, name


def assert_close(first, second):
    """Equal but for rounding, and for places, time and speed."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first.keys() - {"tokens_per_second", "rollouts", "verdicts", "seconds"}:
            assert_close(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for item, other_item in zip(first, second, strict=True):
            assert_close(item, other_item)
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=1e-3, abs=1e-5, nan_ok=True)
    else:
        assert first == second


@pytest.mark.parametrize(
    "words, parallel",
    [
        pytest.param([], "ddp", marks=extended),
        (ON_POLICY, "fsdp"),
        pytest.param(LAGGED, "fsdp", marks=extended),
    ],
    ids=["offline ddp", "rounds fsdp", "lag fsdp"],
)
def test_two_processes_make_the_run_that_one_makes(words, parallel, tmp_path):
    single_folder = run_here(tmp_path / "one", *words)

    outcome = launch(tmp_path / "two", *words, "cluster.processes=2", f"cluster.parallel={parallel}")

    assert outcome.returncode == 0, outcome.stderr
    folder = folder_of(tmp_path / "two", *words)
    assert folder.name == single_folder.name
    assert_same_run(folder, single_folder)
    assert outcome.stdout.count("[ ]: 95 % over") == 1
    assert ", 2 processes" in outcome.stdout
    assert read_json(folder / "environment.json")["processes"] == 2


def follower_of(folder):
    """The process of a run of two that does not write its folder."""
    leader = int(read_json(folder / "state.json")["attempt"]["pid"])
    _, _, numbers = Path(f"/proc/{leader}/stat").read_text().rpartition(")")
    parent = numbers.split()[1]
    children = set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
    (follower,) = children - {leader}
    return follower


@extended
@pytest.mark.parametrize("blow", ["kill one", "stop all"])
def test_a_run_that_lost_a_process_or_was_stopped_goes_on_as_if_nothing_was(blow, tmp_path):
    undisturbed_folder = run_here(tmp_path / "one", *LONG, SLOW_LOSS)
    brake = tmp_path / "brake"
    words = [*LONG, *slow(brake), "cluster.processes=2", "cluster.parallel=fsdp"]
    folder = folder_of(tmp_path / "two", *words)
    process = start(tmp_path / "two", *words)
    wait_for(lambda: steps(folder) >= 3)

    if blow == "kill one":
        os.kill(follower_of(folder), signal.SIGKILL)
        code, message = 1, "process 1 of 2 was killed by SIGKILL (out of memory?)"
    else:
        process.send_signal(signal.SIGTERM)
        code = 128 + signal.SIGTERM
        message = "stopped by SIGTERM; the same command goes on from there"
    _, err = process.communicate(timeout=500)
    brake.unlink()

    assert (process.returncode, err.splitlines()[-1]) == (code, f"error: {message}")
    if blow == "kill one":
        assert (folder / "error.txt").read_text().startswith(message)
    assert not (folder / "DONE").exists()
    outcome = launch(tmp_path / "two", *words)
    assert outcome.returncode == 0, outcome.stderr
    assert_same_run(folder, undisturbed_folder)


def test_what_all_processes_refuse_is_said_once(tmp_path):
    words = ["compose=proportion", "compose.positive_share=0.9", "compose.n_examples=60", "cluster.processes=2"]

    outcome = launch(tmp_path, *words)

    assert outcome.returncode == 1
    (error,) = [line for line in outcome.stderr.splitlines() if line.startswith("error")]
    assert error.startswith("error: compose.positive_share=0.9")
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
def test_torchrun_starts_a_run_too(tmp_path):
    single_folder = run_here(tmp_path / "one")
    words = overrides(tmp_path / "two", "cluster.processes=2")

    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "topr_exp"]
    outcome = sweep_tools.command(*torchrun, *words)

    assert outcome.returncode == 0, outcome.stderr
    assert_same_run(folder_of(tmp_path / "two"), single_folder)
