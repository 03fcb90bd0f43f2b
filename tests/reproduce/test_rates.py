"""`python -m reproduce.rates`: the chosen rates reach conf, and nothing else there changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduce import rates, records
from reproduce.learning_rates import read_rates
from tests.reproduce.test_learning_rates import runs
from tests.reproduce.test_length import tried


def test_the_choice_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "rates.yaml"
    conf.write_text("loss: ${algo.name}\ntiny: {topr: 9.0, dpo: 7.0}\ntiny_long_2_turns: {is: 8.0}\n")
    monkeypatch.setattr(rates, "LEARNING_RATES", conf)
    levels = {("tiny", "topr"): {1e-4: 60, 1e-3: 40}, ("tiny", "is"): {1e-4: 20, 1e-3: 30},
              ("tiny_noise", "topr"): {1e-4: 20, 1e-3: 30}}  # fmt: skip
    groups = [one for (model, algo), each in levels.items() for one in runs(algo, each, model__name=model)]
    records.write(tmp_path / "learning_rates.json", [record for each in groups for record in each.records()], {})
    best = {"topr": 3e-4, "topr, token ratio": 1e-3, "vespo": 1e-4}
    at_length = [record for each in tried(2, best) for record in each.records()]
    records.write(tmp_path / "length_rates.json", at_length, {})
    assert rates.main([str(tmp_path)]) == 0
    assert read_rates(conf) == {
        "loss": "${algo.name}", "tiny": {"topr": 1e-4, "is": 1e-3, "dpo": 7.0}, "tiny_noise": {"topr": 1e-3},
        "tiny_long_2_turns": {"is": 8.0, "topr": 3e-4, "topr_token_ratio": 1e-3, "vespo": 1e-4},
    }  # fmt: skip


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rates.main([str(tmp_path)]) == 1
    assert (
        f"{tmp_path} records no runs; python -m reproduce learning_rates length_rates --full makes them"
        in capsys.readouterr().err
    )
    uneven = [*runs("topr", {1e-4: 60, 1e-3: 40}), *runs("is", {1e-4: 60})]
    records.write(tmp_path / "learning_rates.json", [record for each in uneven for record in each.records()], {})
    assert rates.main([str(tmp_path)]) == 1
    assert "were not tried with the same learning rates and seeds" in capsys.readouterr().err
