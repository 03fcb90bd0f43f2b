"""Runs by their settings, and intervals over seeds alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reproduce.selection import Runs, over_seeds, wilson_interval
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


def test_wilsons_interval() -> None:
    """Wilson's bounds p are where the score test just rejects: |share - p| = 1.96 sqrt(p (1 - p) / n)."""
    for count, total in ((0, 5), (2, 5), (5, 5), (1, 3), (40, 50)):
        found = wilson_interval(count, total)
        assert found.value == count / total
        for end in (found.low, found.high):
            assert abs(found.value - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / total), abs=1e-9)
    rng = np.random.default_rng(8)
    for share, total in ((0.2, 5), (0.5, 20), (0.1, 50)):
        counts = rng.binomial(total, share, 4000)
        held = np.mean([one.low <= share <= one.high for one in (wilson_interval(int(c), total) for c in counts)])
        assert 0.92 <= held <= 1.0
