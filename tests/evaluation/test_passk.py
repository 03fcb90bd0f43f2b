from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation import brute_force
from topr_exp.evaluation.draws import pass_at_k, powers_of_two


@pytest.mark.parametrize("n", range(1, 9))
def test_closed_form_equals_listing_every_draw(n):
    for k in range(1, n + 1):
        got = pass_at_k(np.arange(n + 1), n, k)
        expected = [brute_force.pass_at_k([0] * c + [1] * (n - c), k) for c in range(n + 1)]
        np.testing.assert_allclose(got, expected, atol=1e-14)


def test_large_n_and_k_do_not_overflow():
    # Four of n = 100000, K = 50000: one minus about 1/16.
    got = pass_at_k(np.array([0, 4, 50_001, 100_000]), 100_000, 50_000)
    np.testing.assert_allclose(got, [0, 1 - 1 / 16, 1, 1], atol=1e-4)


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n))))
def test_it_is_a_probability_that_grows_with_k_and_correct(case):
    n, k, c = case
    value = pass_at_k(np.array([c]), n, k)[0]
    assert 0 <= value <= 1
    assert value >= c / n - 1e-12
    if c < n:
        assert pass_at_k(np.array([c + 1]), n, k)[0] >= value
    if k < n:
        assert pass_at_k(np.array([c]), n, k + 1)[0] >= value - 1e-12


@pytest.mark.parametrize(
    ("n", "expected"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8])]
)
def test_k_runs_over_powers_of_two(n, expected):
    assert powers_of_two(n) == expected
