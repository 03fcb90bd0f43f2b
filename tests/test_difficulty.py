"""Figure 9's statistic from a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from topr_exp.difficulty import main
from topr_exp.pipeline import run


def test_weights_by_difficulty_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(*overrides(tmp_path))
    summary = run(config)
    capsys.readouterr()
    assert main([str(config.folder), "--json", "--effective-positive", "0.1", "0.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["positive_share"] == pytest.approx(summary["positive_share"])
    assert sum(found["problems"]) == 16
    assert found["effective_positive"] == [0.1, 0.5]
    assert len(found["share"]) == len(found["baseline"]) == 2
    for row in found["share"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
    # A smaller p~ gives more weight to hard problems (the paper's claim, true of any data).
    hard = [sum(row[:3]) for row in found["share"]]
    assert hard[0] >= hard[1]
    assert main([str(config.folder)]) == 0
    assert "share of the weight in %" in capsys.readouterr().out


def test_a_folder_without_a_training_set_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path} has no composed training set of iteration 1 (a run in rounds has none)\n"
    )
