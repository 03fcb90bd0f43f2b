"""What a verifier's run prints: every figure in its own row and column, every difference the right way round."""

from __future__ import annotations

import re
from typing import Any

import pytest

from topr_exp.verifier.table import COLUMNS, cell, evaluation_table, run_table

NUMBER = r"-?\d+\.\d"


def figures(start: float, **more: float) -> dict[str, Any]:
    """Figures in percent that are all different, from `start` on, with ends 2 below and 3 above."""
    names = ("accuracy", "balanced_accuracy", "invalid", "weighted_sc", "maj", "oracle", "solved")
    values = {name: start + 0.1 * i for i, name in enumerate(names)} | more
    found: dict[str, Any] = {
        name: {"value": value / 100, "low": (value - 2) / 100, "high": (value + 3) / 100}
        for name, value in values.items()
    }
    return {**found, "problems": 40, "solutions": 8, "verifications": 4}


def rows(lines: list[str]) -> dict[str, list[list[float]]]:
    """Value, low and high of each column; an empty list for a dash."""
    found = {}
    for line in lines:
        name = line[:18].strip()
        cells = re.findall(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?|–", line[18:])
        found[name] = [[float(value) for value in each if value] for each in cells]
    return found


def test_a_run_s_table() -> None:
    base = figures(10, **{"weighted_sc - maj": 1.5})
    final = figures(70, **{"weighted_sc - maj": 2.5, "weighted_sc - base": 4.5, "maj": 99.0, "oracle": 98.0})
    lines = run_table(base, final)
    assert lines[0].split("  ")[0] == "%"
    heads = [title for title in re.split(r"\s{2,}", lines[0]) if title][1:]
    assert heads == [*COLUMNS.values()] == ["accuracy", "balanced", "invalid", "weighted SC"]
    found = rows(lines[1:5])
    assert list(found) == ["none (maj@8)", "base", "trained", "oracle (pass@8)"]
    assert found["none (maj@8)"] == [[], [], [], pytest.approx([10.4, 8.4, 13.4])]
    assert found["oracle (pass@8)"] == [[], [], [], pytest.approx([10.5, 8.5, 13.5])]
    for name, start in (("base", 10), ("trained", 70)):
        values = [start + i / 10 for i in range(4)]
        assert found[name] == [pytest.approx([value, value - 2, value + 3]) for value in values]
    paired = dict(re.findall(rf"(\w+ - \w+) ({NUMBER})", lines[5]))
    assert paired == {"trained - base": "4.5", "trained - none": "2.5", "base - none": "1.5"}
    assert "40 problems; 8 solutions each, 10.6 % of them correct; 4 verifications a solution" in lines[6]
    assert "95 %" in lines[6]


def test_an_evaluation_s_table() -> None:
    lines = evaluation_table(figures(20, **{"weighted_sc - maj": -3.5})).splitlines()
    found = rows(lines[1:4])
    assert list(found) == ["none (maj@8)", "model", "oracle (pass@8)"]
    assert [each[0] for each in found["model"]] == pytest.approx([20, 20.1, 20.2, 20.3])
    assert "model - none -3.5" in lines[4]


def test_a_cell_without_a_value_or_without_an_interval() -> None:
    assert cell(None) == cell({"value": None, "low": None, "high": None}) == "–"
    assert cell({"value": 0.5, "low": None, "high": None}) == "50.0"
    assert cell({"value": 0.5, "low": 0.25, "high": 0.75}) == "50.0 [25.0, 75.0]"
