"""Learning rates that warm up and fall: of every update, in every iteration, and of a run that broke off."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from tests.training.broken_runs import run_twice
from tests.training.test_trainer import optim
from topr_exp.config.groups import Schedule
from topr_exp.pipeline import run
from topr_exp.training.optimizers import learning_rate
from topr_exp.types import TOPRError

# By hand: a warm-up of 3 and five updates after it.
CURVES = {
    Schedule.constant: [0.25, 0.5, 0.75, 1, 1, 1, 1, 1],
    Schedule.linear: [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2],
    Schedule.cosine: [0.25, 0.5, 0.75, *((1 + math.cos(math.pi * i / 5)) / 2 for i in range(5))],
}
OFFLINE = ["algo=topr", "iterations=2", "optim.epochs=2"]  # of 64 completions in batches of 16
ROUNDS = ["algo=rloo", "schedule.rounds=4", "schedule.prompts=4", "schedule.updates=2", "optim.batch_size=8"]


def rates(folder: Path) -> list[float]:
    return [json.loads(line)["lr"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


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


@pytest.mark.parametrize("settings", [OFFLINE, ROUNDS], ids=["offline", "rounds"])
@pytest.mark.parametrize("optimizer", ["tiny", "paper"])
def test_a_run_that_broke_off_goes_on_with_the_rates_it_would_have_had(
    tmp_path: Path, settings: list[str], optimizer: str
) -> None:
    schedule = [f"optim={optimizer}", "optim.lr=1e-3", "optim.warmup_steps=3", "optim.schedule=cosine"]
    settings = [*schedule, "checkpoint.every_seconds=0", *settings]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *settings)) for name in ("a", "b"))
    run(undisturbed)
    run_twice(broken, lambda trainer: trainer.step == 4)
    curve = [1e-3 * share for share in CURVES[Schedule.cosine]]
    assert rates(undisturbed.folder) == pytest.approx(curve * undisturbed.iterations, rel=1e-12)
    assert rates(broken.folder) == rates(undisturbed.folder)
    weights = [(config.folder / "model" / "model.safetensors").read_bytes() for config in (undisturbed, broken)]
    assert weights[0] == weights[1]
