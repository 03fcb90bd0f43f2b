"""A check says how many runs agree, how far the others are off, and whether a verdict changes."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reproduce import records
from reproduce.check import compare, write_figure
from reproduce.jobs import Need, Request
from reproduce.page import write_page
from tests.reproduce.worlds import group, named

Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Figure 1 of two algorithms and three seeds as it is recorded, and the same numbers of now."""
    made = [record for each in (group("topr", 75), group("ppo", 40)) for record in each.records()]
    records.write(tmp_path / "fig1.json", made, {})
    stored = records.read(tmp_path / "fig1.json")
    return stored, copy.deepcopy(records.known(stored))


def test_another_digit_is_counted_and_measured(found: Found) -> None:
    stored, again = found
    assert compare(named("fig1"), *found) == (["fig1: the same to the digit in 6 of 6 runs"], True)
    second = next(each for each in again.values() if each["settings"]["algo.name"] == "topr")
    second["training_seconds"] = 1e9
    second["final"]["pass@1"] += 0.005
    (text, moved), agrees = compare(named("fig1"), stored, again)
    assert not agrees
    assert text == (
        "fig1: the same to the digit in 5 of 6 runs; in the others final shares differ by up to 0.5 points, "
        "no verdict changes"
    )
    assert moved.startswith(f"  {second['run']}: final.pass@1: 0.7")


def test_a_verdict_that_turns_round_is_named(found: Found) -> None:
    stored, again = found
    for record in again.values():
        if record["settings"]["algo.name"] == "topr":
            record["final"] = group("topr", 31).records()[0]["final"]
    (text, *_), _ = compare(named("fig1"), stored, again)
    claim = "tiny, PPO stalls: it gains less than half of what TOPR gains"
    assert text.endswith(f", 1 verdict changed: {claim}: not shown, was shown")


def test_a_figure_that_lacks_runs_says_how_many(found: Found, tmp_path: Path) -> None:
    undone = SimpleNamespace(config=SimpleNamespace(folder=tmp_path / "undone"))
    jobs: Any = dict.fromkeys([*found[1], "a", "b"], undone)
    figure, request = named("fig1"), Request([], True, [], 1, False, tmp_path)
    for part, said in ((jobs, "**2 of 8 runs are missing**"), (dict.fromkeys(found[1], undone), "6 runs, seeds 0 1 2")):
        assert write_figure(Need(figure, part), request) == 6
        page = write_page([figure], tmp_path).read_text()
        assert said in page
        assert ("missing" in page) == (len(part) == 8)
