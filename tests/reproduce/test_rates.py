"""`python -m reproduce.rates`: the chosen rates reach conf, and nothing else there changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduce import rates, records
from tests.reproduce.test_learning_rates import runs
from tests.reproduce.test_length import tried


def test_the_choice_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "rates.json"
    conf.write_text(json.dumps({"llama": 5e-7, "tiny": {"topr": 9.0, "dpo": 7.0}, "tiny_long, 2 turns": {"is": 8.0}}))
    monkeypatch.setattr(rates, "LEARNING_RATES", conf)
    levels = {("tiny", "topr"): {1e-4: 60, 1e-3: 40}, ("tiny", "is"): {1e-4: 20, 1e-3: 30},
              ("tiny_noise", "topr"): {1e-4: 20, 1e-3: 30}}  # fmt: skip
    groups = [one for (model, algo), each in levels.items() for one in runs(algo, each, model__name=model)]
    records.write(tmp_path / "learning_rates.json", [record for each in groups for record in each.records()], {})
    best = {"topr": 3e-4, "topr, token ratio": 1e-3, "vespo": 1e-4}
    at_length = [record for each in tried(2, best) for record in each.records()]
    records.write(tmp_path / "length_rates.json", at_length, {})
    assert rates.main([str(tmp_path)]) == 0
    assert json.loads(conf.read_text()) == {
        "llama": 5e-7, "tiny": {"topr": 1e-4, "is": 1e-3, "dpo": 7.0}, "tiny_noise": {"topr": 1e-3},
        "tiny_long, 2 turns": {"is": 8.0, **best},
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
