"""Rounds that break off: the completions that later rounds replay are part of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp.pipeline import run
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

REPLAY = [
    "algo=agro", "schedule=on_policy", "schedule.rounds=6", "schedule.prompts=4", "schedule.replay=0.6",
    "checkpoint.every_seconds=0", "optim.batch_size=16",
]  # fmt: skip


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


@pytest.mark.parametrize("step", [1, 4])
def test_a_run_that_broke_off_replays_what_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *REPLAY)) for name in ("a", "b"))
    whole = run(undisturbed)
    update = Trainer.update

    def fails(self: Trainer, *arguments: Any, **more: Any) -> dict[str, float]:
        if self.step == step:
            raise TOPRError("on the way")
        return update(self, *arguments, **more)

    monkeypatch.setattr(Trainer, "update", fails)
    with pytest.raises(TOPRError, match="on the way"):
        run(broken)
    monkeypatch.setattr(Trainer, "update", update)
    again = run(broken)
    assert records(broken.folder) == records(undisturbed.folder)
    assert again["tokens"] == whole["tokens"]
    weights = [(config.folder / "model" / "model.safetensors").read_bytes() for config in (undisturbed, broken)]
    assert weights[0] == weights[1]


def test_rounds_count_what_they_sampled_before_a_run_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = ["algo=rloo", "schedule.rounds=3", "schedule.prompts=4", "checkpoint.every_seconds=0"]
    undisturbed = run(config_of(*overrides(tmp_path / "a", *rounds)))["tokens"]
    broken = config_of(*overrides(tmp_path / "b", *rounds))
    update = Trainer.update

    def fails(self: Trainer, *arguments: Any, **more: Any) -> dict[str, float]:
        if self.step == 2:
            raise TOPRError("in the third round")
        return update(self, *arguments, **more)

    monkeypatch.setattr(Trainer, "update", fails)
    with pytest.raises(TOPRError, match="in the third round"):
        run(broken)
    monkeypatch.setattr(Trainer, "update", update)
    assert run(broken)["tokens"]["tokens_sampled"] == undisturbed["tokens_sampled"] > 0
