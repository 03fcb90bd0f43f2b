"""Runs that break off and are given again: the same records, weights and counts; and learning rates in the meantime."""

import math
from pathlib import Path

import pytest

from tests.conftest import config_of, needs_peft, overrides
from tests.training.broken_runs import records, run_twice
from tests.training.test_trainer import optim
from topr_exp.config.groups import Schedule
from topr_exp.pipeline import run
from topr_exp.training.optimizers import learning_rate
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

# By hand: a warm-up of 3 and five updates after it.
CURVES = {
    Schedule.constant: [0.25, 0.5, 0.75, 1, 1, 1, 1, 1],
    Schedule.linear: [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2],
    Schedule.cosine: [0.25, 0.5, 0.75, *((1 + math.cos(math.pi * i / 5)) / 2 for i in range(5))],
}
CURVE = ["optim.lr=1e-3", "optim.warmup_steps=3", "optim.schedule=cosine"]
LORA = ["model.lora={rank: 4, alpha: 8, targets: all-linear}", "optim.lr=1e-3", "iterations=2"]
ROUNDS = ["schedule=on_policy", "schedule.prompts=4"]


TWO_UPDATES = ["optim=paper", "schedule.rounds=4", "schedule.updates=2", "optim.batch_size=8"]
CASES = {  # settings, and the iteration and its update before which the run breaks off
    "within a round": ([*CURVE, *ROUNDS, *TWO_UPDATES, "algo=rloo"], 1, 5),
    "replay": ([*ROUNDS, "algo=agro", "schedule.rounds=6", "schedule.replay=0.6"], 1, 4),
    "lora": ([*LORA, "algo=agro", "evaluation.every=2"], 2, 1),
    "offline": ([*CURVE, "algo=topr", "iterations=2", "optim.epochs=2"], 1, 4),
    "lora in rounds": ([*LORA, *ROUNDS, "algo=rloo", "schedule.rounds=2"], 2, 1),
}
MARKS = {"lora": [needs_peft], "offline": [pytest.mark.extended], "lora in rounds": [needs_peft, pytest.mark.extended]}


@pytest.mark.parametrize("case", [pytest.param(name, marks=MARKS.get(name, [])) for name in CASES])
def test_a_run_that_broke_off_goes_on_bit_for_bit(tmp_path: Path, case: str) -> None:
    settings, iteration, step = CASES[case]

    def breaks_off(trainer: Trainer) -> bool:
        return trainer.step == step and f"iteration {iteration}" in trainer.policy.fingerprint

    every = ["checkpoint.every_seconds=0", *settings]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *every)) for name in ("a", "b"))
    whole, again = run(undisturbed), run_twice(broken, breaks_off)
    assert records(broken.folder) == records(undisturbed.folder)
    assert again["tokens"] == whole["tokens"]
    if CURVE[1] in settings:
        curve = [1e-3 * share for share in CURVES[Schedule.cosine]] * undisturbed.iterations
        assert [line["lr"] for line in records(broken.folder)] == pytest.approx(curve, rel=1e-12)
    files = [path for path in (undisturbed.folder / "model").rglob("*") if path.suffix in (".safetensors", ".json")]
    assert files
    for path in files:
        same = broken.folder / path.relative_to(undisturbed.folder)
        assert same.read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("schedule", Schedule)
def test_every_rate_is_the_formulas(schedule: Schedule) -> None:
    config = optim(lr=1e-2, warmup_steps=3, schedule=schedule)
    found = [learning_rate(config, done, 8) for done in range(8)]
    assert found == pytest.approx([1e-2 * share for share in CURVES[schedule]], rel=1e-12)


def test_by_default_every_rate_is_lr_bit_for_bit() -> None:
    assert {learning_rate(optim(lr=1e-4), done, 7) for done in range(7)} == {1e-4}


def test_a_warm_up_that_never_ends_is_refused() -> None:
    assert learning_rate(optim(warmup_steps=3), 3, 4) == 1e-2
    with pytest.raises(TOPRError, match=r"^optim.warmup_steps must be below 3, the updates of an iteration; got 3$"):
        learning_rate(optim(warmup_steps=3), 0, 3)
