"""pass@K and maj@K against enumeration of every set of completions; what else is reported of verdicts."""

import json
import math
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import by_hand
from tests.by_hand import evaluation
from tests.conftest import each_row
from topr_exp.evaluation.statistics import (
    TRIALS,
    ballots,
    count_votes,
    majority_score,
    mean_lengths,
    mean_reward,
    measure,
    pass_at_k,
    summarise,
)
from topr_exp.types import CORRECT, INCORRECT, INVALID

C, W, X = CORRECT, INCORRECT, INVALID
VERDICTS = by_hand.verdict_matrix("CCWX WWWC XXXX CCCC")

# ---- against enumeration


def test_every_k_is_that_of_enumeration():
    verdicts, classes = evaluation(np.random.default_rng(1), problems=400, n=8)
    of_draws = 4 * 0.5 / math.sqrt(TRIALS * 400)  # four standard errors
    tolerances = {"1": 1e-12, "2": of_draws, "4": of_draws, "8": 1e-12}

    figures = summarise(verdicts, classes)

    pass_at = figures["pass@k"]
    majority_at = figures["maj@k"]
    assert list(pass_at) == list(majority_at) == list(tolerances)
    for k, tolerance in tolerances.items():
        sizes = repeat(int(k))
        passed = by_hand.mean(map(by_hand.pass_at_k, verdicts, sizes))
        voted = by_hand.mean(map(by_hand.maj_at_k, verdicts, classes, sizes))
        assert pass_at[k]["value"] == pytest.approx(passed, abs=1e-12)
        assert majority_at[k]["value"] == pytest.approx(voted, abs=tolerance)


@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_majority_of_one_k_is_that_of_all(k):
    verdicts, classes = evaluation(np.random.default_rng(2), problems=50, n=8)

    voted = measure(verdicts, classes, [k]).maj_at[k]

    assert np.array_equal(voted, measure(verdicts, classes).maj_at[k])


ANSWERS = st.sampled_from([(C, 0), (W, 0), (W, 1), (W, 2), (X, -1), (X, 1)])  # verdict and class: of one class both


@settings(max_examples=150)
@given(st.integers(1, 9).flatmap(lambda n: st.lists(ANSWERS, min_size=n, max_size=n)), st.randoms())
def test_the_exact_majority_is_that_of_enumeration_in_any_order_and_numbering(votes, rng):
    rng.shuffle(votes)
    verdicts, classes = np.array(votes).T
    class_numbers = np.array([*rng.sample(range(1000), 3), -1])  # of 0, 1, 2 and -1

    candidate, worth = ballots(verdicts[None], class_numbers[classes][None])
    (score,) = majority_score(count_votes(candidate, worth.shape[1]), worth)

    assert score == pytest.approx(by_hand.majority(votes), abs=1e-14)


def test_a_large_n_and_k_do_not_overflow():
    closed_form = pass_at_k(np.array([0, 4, 50_001]), 100_000, 50_000)

    assert closed_form == pytest.approx([0, 1 - 1 / 16, 1], abs=1e-4)  # of four, each is drawn half of the time


# ---- what is reported


HEADLINES = """
1 | "maj@1"
3 | "maj@2"
7 | "maj@4"
8 | "maj@8"
20 | "maj@8"
"""


@each_row("n name", HEADLINES, literals=True)
def test_the_headline_majority_is_named_by_its_k(n, name):
    figures = summarise(*evaluation(np.random.default_rng(0), 5, n))

    assert [key for key in figures if key.startswith("maj@")] == [name, "maj@k"]
    assert figures[name] == figures["maj@k"][name[4:]]["value"]


def test_the_summary_is_json_without_nan_and_always_the_same():
    verdicts, classes = evaluation(np.random.default_rng(3), problems=30, n=16)

    figures = summarise(verdicts, classes)
    figures_of_one_problem = summarise(verdicts[:1], classes[:1])

    text = json.dumps(figures, allow_nan=False)
    assert json.loads(text) == figures == summarise(verdicts, classes)
    json.dumps(figures_of_one_problem, allow_nan=False)


def test_lengths_are_averaged_by_verdict():
    lengths = mean_lengths(VERDICTS, np.arange(16).reshape(4, 4))

    assert lengths == {
        "length": 7.5,
        "length_correct": pytest.approx(62 / 7),  # of 0, 1, 7 and 12 to 15
        "length_incorrect": pytest.approx(17 / 4),  # of 2, 4, 5 and 6
        "length_invalid": pytest.approx(41 / 5),  # of 3 and 8 to 11
    }
    assert mean_lengths(VERDICTS[3:], np.ones((1, 4)))["length_invalid"] is None


def test_the_error_of_the_mean_reward_is_over_problems_and_over_what_they_were_made_from():
    rewards = np.array([[1.0, 0.0], [3.0, 2.0], [0.5, 0.5], [1.0, 2.0]])  # means 0.5, 2.5, 0.5 and 1.5

    by_problem = mean_reward(rewards)
    by_source = mean_reward(rewards, ["a", "a", "b", "b"])  # means 1.5 and 1

    assert by_problem["mean_reward"] == by_source["mean_reward"] == 1.25
    assert by_problem["mean_reward_se"] == pytest.approx(math.sqrt(11 / 12) / 2)
    assert by_source["mean_reward_se"] == pytest.approx(0.25)
    assert mean_reward(rewards[:2])["mean_reward_se"] == pytest.approx(1)
    assert mean_reward(rewards[:1]) == {"mean_reward": 0.5, "mean_reward_se": None}
    assert mean_reward(rewards, ["a"] * 4) == {"mean_reward": 1.25, "mean_reward_se": None}
