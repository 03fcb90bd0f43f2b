"""The papers' Table 1: limits, coefficients and moments of gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import config_of
from topr_exp.paper.variance import LIMITS, coefficients, moments


def test_table_1_s_limits_are_those_of_the_yamls() -> None:
    for name, limits in LIMITS.items():
        algo = config_of(f"algo={name}").algo
        assert (algo.a_pos, algo.b_pos, algo.a_neg, algo.b_neg) == limits


def test_the_moments_of_gradients_are_those_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(3)
    each = rng.normal(0.1, 1, (70, 11))  # more than two blocks
    factors = {name: rng.normal(size=70) for name in ("one", "other")}
    found = moments([torch.tensor(row) for row in each], factors)
    for name, (trace, signal) in found.items():
        weighed = factors[name][:, None] * each
        assert trace == pytest.approx(np.trace(np.cov(weighed.T)), rel=1e-9)
        pairs = weighed @ weighed.T  # of different examples: unbiased for the squared norm of the mean
        assert signal == pytest.approx((pairs.sum() - np.trace(pairs)) / (70 * 69), rel=1e-6)


def test_at_the_start_only_positives_only_differs_and_later_each_limit_does_what_it_says() -> None:
    positive = np.array([True, True, False, False])
    start = coefficients(np.zeros(4), positive)
    assert start.pop("sft").tolist() == [1, 1, 0, 0]
    assert all(each.tolist() == [1, 1, -1, -1] for each in start.values())
    later = coefficients(np.log([4, 0.5, 4, 0.5]), positive)
    assert later["topr"].tolist() == pytest.approx([1, 1, -1, -0.5])
    assert later["tis"].tolist() == pytest.approx([1, 0.5, -1, -0.5])
    assert later["is"].tolist() == pytest.approx([4, 0.5, -4, -0.5])
    assert later["naive"].tolist() == [1, 1, -1, -1]
