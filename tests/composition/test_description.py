from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.composition.conftest import compose
from topr_exp.composition.candidates import Candidates, group_statistics
from topr_exp.composition.description import accuracy_bucket
from topr_exp.composition.difficulty import difficulty_weights
from topr_exp.composition.selection import select_examples
from topr_exp.types import TOPRError


def test_a_composed_set_in_numbers():
    candidates = Candidates(
        problem=np.array([0, 0, 1, 1, 2, 2]),
        positive=np.array([True, True, True, False, False, False]),
        truncated=np.array([False, False, True, True, False, False]),
        length=np.array([10, 20, 30, 40, 50, 60]),
        level=np.array([1, 1, 3, 3, 0, 0]),
    )
    found = select_examples(candidates, compose("anna_karenina"), 0, 0).description
    assert (found.compose, found.unit, found.requested, found.n_train) == ("anna_karenina", "examples", None, 5)
    assert (found.n_positive, found.positive_share, found.n_problems, found.n_truncated) == (2, 0.4, 3, 2)
    assert found.levels == {"none": 2, "1": 1, "3": 2}
    assert found.difficulty == [2, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert (found.lengths.mean, found.lengths.median, found.lengths.longest) == (38, 40, 60)
    assert sum(found.lengths.counts) == 5
    assert json.loads(json.dumps(found.as_dict()))["lengths"]["longest"] == 60


def test_columns_that_were_not_given_are_left_open():
    found = select_examples(Candidates(np.array([0]), np.array([True])), compose(), 0, 0).description
    assert (found.n_truncated, found.levels, found.lengths) == (None, {"none": 1}, None)


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_accuracy_buckets_are_a_tenth_wide_without_rounding(case):
    correct, n = case
    bucket = int(accuracy_bucket(np.array([correct]), n)[0])
    assert 0 <= bucket <= 9
    assert bucket * n <= 10 * correct
    assert 10 * correct < (bucket + 1) * n or bucket == 9


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=30))
def test_group_statistics_are_those_of_all_rewards_of_the_problem(rows):
    problem, reward = np.array([q for q, _ in rows]), np.array([r for _, r in rows])
    found = group_statistics(problem, reward)
    for i, (q, _) in enumerate(rows):
        group = [r for other, r in rows if other == q]
        assert found.size[i] == len(group)
        assert found.mean[i] == pytest.approx(statistics.mean(group))
        assert found.std[i] == pytest.approx(statistics.stdev(group) if len(group) > 1 else 0)
        if len(set(group)) == 1:
            assert found.std[i] == 0


def test_difficulty_weights_by_hand():
    # Three problems of 10 completions with 1, 1 and 7 correct: p = 0.3. p~ = 0.3 is c = 0, p~ = 1 is c = -1.
    found = difficulty_weights(np.array([1, 1, 7]), 10, [0.3, 1.0, 0.0])
    assert found.positive_share == pytest.approx(0.3)
    assert found.baseline == pytest.approx([0, -1, 1])
    assert found.n_problems == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(found.share[:, [1, 7]], [[2 / 3, 1 / 3], [2 / 9, 7 / 9], [18 / 21, 3 / 21]])
    np.testing.assert_allclose(found.per_problem[:, [1, 7]], [[1, 1], [1 / 3, 7 / 3], [9 / 7, 3 / 7]])
    assert np.isnan(found.per_problem[:, 0]).all()


def test_difficulty_weights_equal_a_count_completion_by_completion():
    rng = np.random.default_rng(0)
    samples = rng.integers(1, 20, 80)
    correct = rng.binomial(samples, rng.beta(0.7, 0.7, 80))
    found = difficulty_weights(correct, samples, [0.05, 0.5, 0.9])
    for row, (share, c) in enumerate(zip([0.05, 0.5, 0.9], found.baseline, strict=True)):
        weight, positive = [0.0] * 10, 0.0
        for good, n in zip(correct.tolist(), samples.tolist(), strict=True):
            for i in range(n):
                weight[min(10 * good // n, 9)] += 1 - c if i < good else 1 + c
                positive += 1 - c if i < good else 0
        np.testing.assert_allclose(found.share[row], np.array(weight) / sum(weight))
        assert positive / sum(weight) == pytest.approx(share)  # which is what p~ means


def test_a_smaller_effective_proportion_gives_hard_problems_more_weight():
    # The claim of Figure 9.
    rng = np.random.default_rng(1)
    correct = rng.binomial(128, rng.beta(1, 1, 2000))
    found = difficulty_weights(correct, 128, [0.01, 0.1, 0.2, 0.5, 0.8, 1.0])
    np.testing.assert_allclose(found.share.sum(axis=1), 1)
    assert (np.diff(found.share[:, 0]) < 0).all()
    assert (np.diff(found.share[:, 9]) > 0).all()
    assert (np.diff(found.per_problem[0]) < 0).all()
    assert (np.diff(found.per_problem[5]) > 0).all()


def test_difficulty_weights_of_one_kind_are_an_error():
    with pytest.raises(TOPRError, match="all completions of the training set are incorrect"):
        difficulty_weights(np.array([0, 0]), 8, [0.1])
