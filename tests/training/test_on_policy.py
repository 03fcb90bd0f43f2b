"""Rounds: what they sample until they are full, and the memory that an engine has beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from tests.training.broken_runs import record_engine, records
from topr_exp.pipeline import Experiment, run
from topr_exp.types import TOPRError


def test_an_engine_is_sized_anew_beside_what_rounds_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = record_engine(monkeypatch)

    def reference(self: Experiment) -> None:
        order.append("reference")
        raise TOPRError("far enough")

    monkeypatch.setattr(Experiment, "reference", reference)
    with pytest.raises(TOPRError, match="far enough"):
        run(config_of(*overrides(tmp_path, *SOME)))
    assert order[-3:] == ["sample", "close", "reference"]


SOME = ["algo=grpo", "schedule=on_policy", "schedule.rounds=4", "schedule.prompts=4", "optim.batch_size=16", "data.n=4"]


def test_rounds_draw_more_problems_until_they_are_full(tmp_path: Path) -> None:
    """Of those that the model always or never solves a relative loss learns nothing."""
    config = config_of(*overrides(tmp_path, *SOME, "compose.pass_rate=[0.2,0.8]"))
    run(config)
    lines = records(config.folder)
    assert all(line["samples"] == 16 * line["step"] for line in lines), "every round is full"
    assert all(line["problems_kept"] >= 4 for line in lines)
    assert all(line["problems_drawn"] % 4 == 0 and line["problems_drawn"] <= 40 for line in lines)
    assert max(line["problems_drawn"] for line in lines) > 4
    assert all(0.2 <= line["positive_share"] <= 0.8 for line in lines)
    assert any(abs(line["sampled_correct"] - line["positive_share"]) > 0.05 for line in lines), "of all that were drawn"
    summary = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())
    for name in ("problems_drawn", "problems_kept"):
        assert summary[name] == sum(line[name] for line in lines)


def test_a_round_that_is_not_full_after_all_draws(tmp_path: Path) -> None:
    few = ["compose.pass_rate=[0.2,0.8]", "compose.max_draws=1"]
    config = config_of(*overrides(tmp_path, *SOME, *few))
    run(config)
    lines = records(config.folder)
    assert all(line["problems_drawn"] == 4 for line in lines)
    assert lines[-1]["samples"] == 4 * sum(min(line["problems_kept"], 4) for line in lines) < 4 * 16


def test_a_round_that_keeps_nothing(tmp_path: Path) -> None:
    none = ["compose.pass_rate=[0.9,0.95]", "compose.max_draws=2"]
    with pytest.raises(TOPRError) as caught:
        run(config_of(*overrides(tmp_path, *SOME, *none)))
    assert str(caught.value) == (
        "compose.pass_rate=[0.9, 0.95]: of 8 problems that round 0 drew (compose.max_draws=2) none is solved so often"
    )
