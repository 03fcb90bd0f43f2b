"""What a check says: how many runs agree, how far the others are off, and whether a verdict changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from reproduce import records
from reproduce.check import Check, apart
from tests.reproduce.worlds import group, named

CURVE = {"step": [0, 1], "pass@1": [25.0, 50.0]}


@pytest.fixture
def found(tmp_path: Path) -> Check:
    """Figure 1 of two algorithms and three seeds, run again with the same numbers."""
    groups = (group("topr", 75, curve=CURVE), group("ppo", 40, curve=CURVE))
    records.write(tmp_path / "fig1.json", [record for each in groups for record in each.records()], {})
    stored = records.read(tmp_path / "fig1.json")
    return Check(named("fig1"), stored, again=copy.deepcopy(records.known(stored)))


def changed(found: Check, algo: str) -> list[dict[str, Any]]:
    return [each for each in found.again.values() if each["settings"]["algo.name"] == algo]


def test_runs_that_agree_to_the_digit(found: Check) -> None:
    assert found.lines() == ["fig1: the same to the digit in 6 of 6 runs"]
    assert found.agrees
    found.missing.append("a run: did not finish")
    assert found.lines()[0] == "a run: did not finish"
    assert not found.agrees


def test_another_digit_is_counted_and_measured(found: Check) -> None:
    first, second, _ = changed(found, "topr")
    first["curve"]["pass@1"][1] -= 0.04
    second["final"]["pass@1"] += 0.005
    (text, moved) = found.lines()
    assert text == (
        "fig1: the same to the digit in 4 of 6 runs; in the others shares differ by up to 0.5 points in final figures "
        "and 4 in curves, no verdict changes"
    )
    assert moved == f"  {second['run']}: final.pass@1: 0.76 recorded, 0.765 now"
    assert not found.agrees


def test_a_verdict_that_turns_round_is_named(found: Check) -> None:
    for record in changed(found, "topr"):
        record["final"] = group("topr", 31).records()[0]["final"]
    (text, *_) = found.lines()
    claim = "tiny, PPO stalls: it gains less than half of what TOPR gains"
    assert text.endswith(f", 1 verdict changed: {claim}: not shown, was shown")


def test_how_far_apart_shares_are() -> None:
    one = {"final": {"pass@1": 0.25, "invalid": 0.5}, "curve": {"pass@1": [0.5, None]}}
    other = {"final": {"pass@1": 0.5, "invalid": 0.375}, "curve": {"pass@1": [0.25, 0.5]}}
    assert (apart("final", one, other), apart("curve", other, one), apart("final", one, one)) == (0.25, 0.25, 0.0)
    assert apart("curve", {}, one) == 0.0
