"""Runs by their settings, and intervals over seeds alone."""

from __future__ import annotations

import pytest

from reproduce.selection import Runs, collapsed, fell, over_seeds
from tests import by_hand
from tests.reproduce.worlds import group


def test_runs_are_told_apart_by_their_settings() -> None:
    groups = [group("topr", 50, effective_positive=p, compose__positive_share=q) for p in (0.5, 0.02, 0.1)
              for q in (0.1, 0.5)]  # fmt: skip
    runs = Runs([record for each in groups for record in each.records()] + group("topr", 20).records())
    assert {p: len(each) for p, each in runs.split("effective_positive").items()} == {0.02: 6, 0.1: 6, 0.5: 6}
    assert len(runs.where({"effective_positive": 0.1, "compose.positive_share": 0.5})) == 3
    assert len(runs.where({"effective_positive": None})) == 3
    assert runs.seeds == sorted(runs.seeds)


def test_the_interval_over_seeds() -> None:
    values = [0.3, 0.5, 0.1]
    found = over_seeds(values)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx(by_hand.interval(values), abs=1e-3)
    assert over_seeds(values[:1]) is None


def test_a_seed_collapsed_below_half_of_its_base() -> None:
    """The bases are at 40 %: 19 is below half of that, 21 is not."""
    runs = Runs(group("topr", (19.0, 21.0, 5.0), base={"correct": 40.0}).records())
    assert fell(runs) == [True, False, True]
    found = collapsed(runs)
    assert found is not None
    assert (found.value, found.seeds) == (2 / 3, 3)
    assert collapsed(Runs([])) is None
