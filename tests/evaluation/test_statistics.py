import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import by_hand
from tests.by_hand import evaluation
from topr_exp.evaluation.statistics import (
    ballots,
    count_votes,
    majority_score,
    mean_lengths,
    mean_reward,
    pass_at_k,
    summarise,
)
from topr_exp.types import CORRECT, INCORRECT, INVALID, Problem

C, W, X = CORRECT, INCORRECT, INVALID

VERDICTS = np.array([[C, C, W, X], [W, W, W, C], [X, X, X, X], [C, C, C, C]])


def test_mean_lengths_by_verdict():
    tokens = np.arange(16).reshape(4, 4)
    found = mean_lengths(VERDICTS, tokens)
    assert found["length"] == 7.5
    assert found["length_correct"] == pytest.approx((0 + 1 + 7 + 12 + 13 + 14 + 15) / 7)
    assert found["length_incorrect"] == pytest.approx((2 + 4 + 5 + 6) / 4)
    assert found["length_invalid"] == pytest.approx((3 + 8 + 9 + 10 + 11) / 5)
    assert mean_lengths(VERDICTS[3:], tokens[3:])["length_invalid"] is None


@pytest.mark.parametrize(("n", "name"), [(1, "maj@1"), (3, "maj@2"), (7, "maj@4"), (8, "maj@8"), (20, "maj@8")])
def test_the_headline_majority_is_named_by_its_k(n, name):
    found = summarise(*evaluation(np.random.default_rng(0), 5, n), trials=5, resamples=10)
    assert [key for key in found if key.startswith("maj@") and key[-1].isdigit()] == [name]
    assert found[name] == found["maj@k"][name[4:]]["value"]


def test_every_k_against_enumeration():
    verdicts, classes = evaluation(np.random.default_rng(1), problems=40, n=8)
    found = summarise(verdicts, classes, trials=2000, resamples=50)
    assert list(found["pass@k"]) == list(found["maj@k"]) == ["1", "2", "4", "8"]
    for k in (1, 2, 4, 8):
        passed = np.mean([by_hand.pass_at_k(v, k) for v in verdicts])
        voted = np.mean([by_hand.maj_at_k(v, c, k) for v, c in zip(verdicts, classes, strict=True)])
        exact = 1e-12 if k in (1, 8) else 4 * 0.5 / math.sqrt(2000 * 40)
        assert found["pass@k"][str(k)]["value"] == pytest.approx(passed, abs=1e-12)
        assert found["maj@k"][str(k)]["value"] == pytest.approx(voted, abs=exact)


def test_problems_made_from_one_are_counted_as_sources():
    given = evaluation(np.random.default_rng(0), 5, 2)
    problems = [Problem(str(i), "Q", "A", source=source) for i, source in enumerate(["a", None, "a", "b", None])]
    assert summarise(*given, problems, resamples=10)["sources"] == 4
    assert "sources" not in summarise(*given, problems[1:2] * 5, resamples=10)


def test_the_summary_is_json_without_nan_and_always_the_same():
    verdicts, classes = evaluation(np.random.default_rng(3), problems=30, n=16)
    first, again, other = (summarise(verdicts, classes, trials=trials) for trials in (100, 100, 101))
    assert json.loads(json.dumps(first, allow_nan=False)) == first == again
    assert first["maj@8"] != other["maj@8"]  # the draws of 8 out of 16
    assert first["pass@k"]["16"]["value"] == other["pass@k"]["16"]["value"]
    json.dumps(summarise(verdicts[:1], classes[:1]), allow_nan=False)


def test_counting_verdicts():
    classes = np.where(VERDICTS == X, -1, VERDICTS)
    found = summarise(VERDICTS, classes, resamples=10)
    assert (found["correct"], found["incorrect"], found["invalid"]) == (7 / 16, 4 / 16, 5 / 16)
    assert summarise(VERDICTS[:, :2], classes[:, :2], resamples=10)["correct_histogram"] == [2, 0, 2]


def test_the_mean_reward_and_its_error_over_problems_and_over_what_they_were_made_from():
    rewards = np.array([[1.0, 0.0], [3.0, 2.0], [0.5, 0.5], [1.0, 2.0]])
    each = np.array([0.5, 2.5, 0.5, 1.5])
    found = mean_reward(rewards)
    assert found == {"mean_reward": 1.25, "mean_reward_se": pytest.approx(each.std(ddof=1) / 2)}
    assert mean_reward(rewards[:1]) == {"mean_reward": 0.5, "mean_reward_se": None}
    two = mean_reward(rewards, ["a", "a", "b", "b"])["mean_reward_se"]
    assert two == pytest.approx(np.array([1.5, 1.0]).std(ddof=1) / 2**0.5)


# ---- pass@K and maj@K against enumeration of every set of completions


def majority_of_all(verdicts, classes):
    """[P] the exact maj@n."""
    candidate, worth = ballots(np.array(verdicts), np.array(classes))
    return majority_score(count_votes(candidate, worth.shape[1]), worth)


def completions(n):
    """One problem's (verdict, class) pairs: an answer may be graded both ways, and what is invalid has no vote."""
    answer = st.sampled_from([(C, 0), (W, 0), (W, 1), (W, 2), (X, -1), (X, 1)])
    return st.lists(answer, min_size=n, max_size=n)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.lists(completions(n), min_size=1, max_size=6)), st.randoms())
def test_exact_majority_equals_brute_force_in_any_order_and_numbering(problems, random):
    expected = [by_hand.majority(problem) for problem in problems]
    names = {-1: -1, **dict(zip(range(4), random.sample(range(1000), 4), strict=True))}
    shuffled = [random.sample(problem, len(problem)) for problem in problems]
    verdicts = np.array([[v for v, _ in problem] for problem in shuffled])
    classes = np.array([[names[c] for _, c in problem] for problem in shuffled])
    np.testing.assert_allclose(majority_of_all(verdicts, classes), expected, atol=1e-14)


@pytest.mark.parametrize("n", range(1, 9))
def test_closed_form_equals_listing_every_draw(n):
    for k in range(1, n + 1):
        got = pass_at_k(np.arange(n + 1), n, k)
        expected = [by_hand.pass_at_k([0] * c + [1] * (n - c), k) for c in range(n + 1)]
        np.testing.assert_allclose(got, expected, atol=1e-14)


def test_large_n_and_k_do_not_overflow():
    # Four of n = 100000, K = 50000: one minus about 1/16.
    got = pass_at_k(np.array([0, 4, 50_001, 100_000]), 100_000, 50_000)
    np.testing.assert_allclose(got, [0, 1 - 1 / 16, 1, 1], atol=1e-4)
