"""Rounds: what they sample until they are full, and the memory that an engine has beside them."""

from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from tests.training.broken_runs import record_engine
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


def test_a_round_that_keeps_nothing(tmp_path: Path) -> None:
    none = ["compose.pass_rate=[0.9,0.95]", "compose.max_draws=2"]
    with pytest.raises(TOPRError) as caught:
        run(config_of(*overrides(tmp_path, *SOME, *none)))
    assert str(caught.value) == (
        "compose.pass_rate=[0.9, 0.95]: of 8 problems that round 0 drew (compose.max_draws=2) none is solved so often"
    )
