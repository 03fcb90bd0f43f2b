"""pass@K and maj@K against enumeration of every set of completions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation import brute_force
from topr_exp.evaluation.draws import (
    CORRECT,
    INCORRECT,
    INVALID,
    ballots,
    count_votes,
    majority_score,
    pass_at_k,
    powers_of_two,
)

C, W, X = CORRECT, INCORRECT, INVALID


def majority_of_all(verdicts, classes):
    """[P] the exact maj@n."""
    voting = ballots(np.array(verdicts), np.array(classes))
    return majority_score(count_votes(voting.candidate, voting.worth.shape[1]), voting.worth)


def completions(n):
    """One problem's (verdict, class) pairs: an answer may be graded both ways, and what is invalid has no vote."""
    answer = st.sampled_from([(C, 0), (W, 0), (W, 1), (W, 2), (X, -1), (X, 1)])
    return st.lists(answer, min_size=n, max_size=n)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.lists(completions(n), min_size=1, max_size=6)), st.randoms())
def test_exact_majority_equals_brute_force_in_any_order_and_numbering(problems, random):
    expected = [brute_force.majority(problem) for problem in problems]
    names = {-1: -1, **dict(zip(range(4), random.sample(range(1000), 4), strict=True))}
    shuffled = [random.sample(problem, len(problem)) for problem in problems]
    verdicts = np.array([[v for v, _ in problem] for problem in shuffled])
    classes = np.array([[names[c] for _, c in problem] for problem in shuffled])
    np.testing.assert_allclose(majority_of_all(verdicts, classes), expected, atol=1e-14)


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


def test_k_runs_over_powers_of_two():
    assert [powers_of_two(n) for n in (1, 2, 7, 8, 9)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8]]
