"""Curves of single runs, and bands over repetitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests import by_hand
from topr_exp.report.curves import band, thin, to_frame


def updates(*values: object) -> list[dict[str, object]]:
    return [{"iteration": 1, "step": i, "optimizer_step": i, "samples": 8 * i, "loss": value, "loss_se": 1.0}
            for i, value in enumerate(values, 1)]  # fmt: skip


def test_thinning_keeps_means_and_ends() -> None:
    logged = updates(*map(float, range(1, 1001)))
    found = thin(to_frame(logged), points=100)
    assert list(found.columns) == ["loss"]
    assert (len(found), found.index[-1]) == (63, 1000)
    np.testing.assert_allclose(found["loss"][:-1], np.arange(1, 993).reshape(62, 16).mean(1))
    fewer = thin(to_frame(logged[:900]), points=100)
    assert {*fewer.index[:-1]} < {*found.index}, "runs of other lengths have places in common"
    np.testing.assert_allclose(thin(to_frame(logged[:7]), points=100)["loss"], np.arange(1, 8))


def test_thinning_passes_over_what_is_missing_or_not_finite() -> None:
    found = thin(to_frame(updates(1.0, math.nan, None, "x", 3.0, math.inf, True, {"a": 1})), points=2)
    np.testing.assert_allclose(found["loss"], [1.0, 3.0])
    assert thin(to_frame([])).empty


def test_a_band_has_at_each_place_the_interval_of_the_values_there() -> None:
    """It has only places that all curves were measured at."""
    x, values = np.array([0.0, 10.0, 20.0]), [[0.3, 0.5, 0.4], [0.2, 0.6, 0.5], [0.35, 0.4, 0.45]]
    first, second, third = map(np.array, values)
    found = band([(x, first), (x, second), (x[[0, 2]], third[[0, 2]]), (np.zeros(0), np.zeros(0))], share=True)
    assert found is not None
    assert (found.x.tolist(), found.curves) == ([0, 20], 3)
    for place, i in enumerate((0, 2)):
        mean, low, high = by_hand.interval([first[i], second[i], third[i]])
        shown = (found.mean[place], found.low[place], found.high[place])
        assert shown == pytest.approx((mean, max(0.0, low), high), abs=1e-3)
    ends = band([(x, first), (x[:2], second[:2])])  # of two their range, up to where the shorter one ends
    assert ends is not None
    np.testing.assert_allclose([ends.x, ends.low, ends.high], [[0, 10], [0.2, 0.5], [0.3, 0.6]])
    assert band([]) is None
    between = band([(x, first), (x[[0, 2]], second[[0, 2]])], between=True)
    assert between is not None
    np.testing.assert_allclose(between.mean, [0.25, 0.425, 0.45])
