"""Whole runs in several processes: the real command, its files, its kills and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.conftest import ROOT, config_of, overrides
from tests.sweep_tools import SLOW, wait_for
from topr_exp.pipeline import run
from topr_exp.types import ConfigError

pytestmark = pytest.mark.timeout(1800)
LONG = ["optim.epochs=10", "checkpoint.every_seconds=0", *SLOW]  # 40 updates, four seconds at least
ON_POLICY = ["algo=rloo", "schedule.rounds=3", "schedule.prompts=8", "schedule.replay=0.3", "evaluation.every=2",
             "optim.batch_size=32"]  # fmt: skip


def command(*arguments: str, launcher: tuple[str, ...] = ("-m",)) -> list[str]:
    return [sys.executable, *launcher, "topr_exp", *arguments]


def launch(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*overrides(folder, *arguments), **more), cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def measured(folder: Path) -> dict[str, Any]:
    """What a run found, without what depends on the clock."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    del summary["seconds"]
    return summary


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Equal summaries, figures and steps; weights to rounding."""
    assert_close(measured(ours), measured(theirs))
    for name in ("eval.jsonl", "metrics.jsonl"):
        lines = [(path / name).read_text().splitlines() for path in (ours, theirs)]
        assert_close(*([json.loads(line) for line in part] for part in lines))
    weights = [load_file(path / "model" / "model.safetensors") for path in (ours, theirs)]
    assert set(weights[0]) == set(weights[1])
    for name, weight in weights[0].items():
        gap = (weight - weights[1][name]).abs()
        # AdamW moves a weight whose gradient is little more than rounding by up to the learning rate, 1e-4.
        assert float(gap.max()) < 1e-4, name
        assert float((gap > 1e-6).float().mean()) < 1e-3, name


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal but for rounding, and for places and speed."""
    if isinstance(ours, dict):
        assert set(ours) == set(theirs)
        for key in set(ours) - {"tokens_per_second", "rollouts", "verdicts"}:
            assert_close(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("arguments", "parallel"), [([], "ddp"), (ON_POLICY, "fsdp")], ids=["offline ddp", "rounds fsdp"]
)
def test_two_processes_make_the_run_that_one_makes(tmp_path: Path, arguments: list[str], parallel: str) -> None:
    alone = config_of(*overrides(tmp_path / "one", *arguments))
    run(alone)
    both = [*arguments, "cluster.processes=2", f"cluster.parallel={parallel}"]
    done = launch(tmp_path / "two", *both)
    assert done.returncode == 0, done.stderr
    folder = config_of(*overrides(tmp_path / "two", *both)).folder
    assert folder.name == alone.folder.name
    assert_same_run(folder, alone.folder)
    assert done.stdout.count("pass@1 ± 2") == 1
    assert ", 2 processes" in done.stdout
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2


def others(leader: int) -> list[int]:
    """The processes of a run beside the leading one."""
    parent = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if int(child) != leader]


def training(folder: Path, process: subprocess.Popen[str]) -> int:
    """Wait for a run to have done some updates; the process that leads it."""
    end = time.monotonic() + 600
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < end:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 3:
            return int(json.loads((folder / "state.json").read_text())["attempt"]["pid"])
        time.sleep(0.05)
    raise AssertionError(f"no updates; exit code {process.poll()}")


@pytest.mark.parametrize("blow", ["kill one", "stop all"])
def test_a_run_that_lost_a_process_or_was_stopped_goes_on_as_if_nothing_was(tmp_path: Path, blow: str) -> None:
    arguments = [*LONG, "cluster.processes=2", "cluster.parallel=fsdp"]
    undisturbed = config_of(*overrides(tmp_path / "one", *LONG))
    run(undisturbed)
    folder = config_of(*overrides(tmp_path / "two", *arguments)).folder
    process = subprocess.Popen(
        command(*overrides(tmp_path / "two", *arguments)),
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    leader = training(folder, process)
    if blow == "kill one":
        (other,) = others(leader)
        os.kill(other, signal.SIGKILL)
    else:
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=500)
    last = said.splitlines()[-1]
    if blow == "kill one":
        assert process.returncode == 1
        assert last == "error: process 1 of 2 was killed by SIGKILL (out of memory?)"
        assert (folder / "error.txt").read_text().startswith("process 1 of 2 was killed by SIGKILL")
    else:
        assert process.returncode == 128 + signal.SIGTERM
        assert last == "error: stopped by SIGTERM; the same command goes on from there"
    assert not (folder / "DONE").exists()
    again = launch(tmp_path / "two", *arguments)
    assert again.returncode == 0, again.stderr
    assert_same_run(folder, undisturbed.folder)


def test_all_processes_stop_within_an_evaluation(tmp_path: Path) -> None:
    long = ["evaluation.every=2", "data.eval_n=96", "sampler.max_new_tokens=128", "sampler.prompts_per_shard=1"]
    arguments = [*long, "checkpoint.every_seconds=600", "cluster.processes=2"]
    folder = config_of(*overrides(tmp_path, *arguments)).folder
    process = subprocess.Popen(
        command(*overrides(tmp_path, *arguments)),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: list(folder.glob("store/rollouts/*/shard-*.arrow")))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=500)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert len(list(folder.glob("store/rollouts/*/shard-*.arrow"))) <= 4, "each left its shard or made it, of 8 shards"
    assert [path.name for path in (folder / "checkpoints" / "1").iterdir()] == ["step-00000002"]
    again = launch(tmp_path, *arguments)
    assert again.returncode == 0, again.stderr
    points = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points if "step" in point] == [2, 4]


def test_what_all_processes_refuse_is_said_once(tmp_path: Path) -> None:
    asked = ["compose=proportion", "compose.positive_share=0.9", "compose.n_examples=60", "cluster.processes=2"]
    done = launch(tmp_path, *asked)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert errors[0].startswith("error: compose.positive_share=0.9")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_torchrun_starts_a_run_too(tmp_path: Path) -> None:
    alone = config_of(*overrides(tmp_path / "one"))
    run(alone)
    done = launch(
        tmp_path / "two", launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    )
    assert done.returncode == 0, done.stderr
    assert_same_run(config_of(*overrides(tmp_path / "two")).folder, alone.folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster.processes=3"], r"cluster.processes must divide optim.batch_size=16, .*\(1, 2, 4, 8, 16\); got 3"),
        (["cluster.processes=0"], "cluster.processes must be 1 or more; got 0"),
        (["cluster.parallel=tp"], "cluster.parallel=tp: expected one of ddp, fsdp, hsdp or null"),
        (
            ["cluster=slurm", "cluster.nodes=3", "cluster.gpus_per_node=4"],
            r"cluster.nodes times cluster.gpus_per_node must divide optim.batch_size=16, .*; got 12",
        ),
    ],
    ids=["three", "none", "another way", "slurm"],
)
def test_numbers_of_processes_that_do_not_go_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(*overrides(tmp_path, *arguments))
