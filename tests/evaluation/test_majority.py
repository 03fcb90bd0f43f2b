from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation import brute_force
from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID, ballots, count_votes, majority_score

C, W, X = CORRECT, INCORRECT, INVALID


def majority_of_all(verdicts, classes):
    """[P] the exact maj@n."""
    voting = ballots(np.array(verdicts), np.array(classes))
    return majority_score(count_votes(voting.candidate, voting.worth.shape[1]), voting.worth)


@pytest.mark.parametrize(
    ("verdicts", "classes", "score"),
    [
        ([C, C, W], [0, 0, 1], 1),
        ([C, W, W], [0, 1, 1], 0),
        ([C, W, W], [0, 1, 2], 1 / 3),  # three answers tied
        ([C, C, W, W], [5, 5, 3, 3], 1 / 2),
        ([C, C, W, W, W], [0, 0, 1, 1, 2], 1 / 2),
        ([X, X, X, C], [-1, -1, -1, 0], 1),  # the most frequent outcome is invalid and has no vote
        ([X, X, X, W], [-1, -1, -1, 0], 0),
        ([X, X, X, C], [7, 7, 7, 0], 1),  # nor does it with a class
        ([X, X, X], [-1, -1, -1], 0),
        ([C, C, W, W, W], [0, 0, 1, 2, 3], 1),  # equivalent answers count as one
    ],
)
def test_majority_of_one_problem(verdicts, classes, score):
    assert majority_of_all([verdicts], [classes]) == pytest.approx([score])


def completions(n):
    """One problem's (verdict, class) pairs: class 0 is the gold answer, 1 to 3 are wrong, -1 is none."""
    answer = st.sampled_from([(C, 0), (W, 1), (W, 2), (W, 3), (X, -1)])
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


@settings(deadline=None)
@given(st.lists(completions(5), min_size=2, max_size=5))
def test_problems_do_not_touch_one_another(problems):
    verdicts = np.array([[v for v, _ in problem] for problem in problems])
    classes = np.array([[c for _, c in problem] for problem in problems])
    together = majority_of_all(verdicts, classes)
    alone = [majority_of_all(verdicts[i : i + 1], classes[i : i + 1])[0] for i in range(len(problems))]
    np.testing.assert_array_equal(together, alone)


def test_an_answer_graded_both_ways_scores_its_share():
    assert majority_of_all([[C, C, W, W]], [[0, 0, 0, 1]]) == pytest.approx([2 / 3])
