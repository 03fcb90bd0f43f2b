from __future__ import annotations

import numpy as np
import pytest
from synthetic import evaluation

from topr_exp.evaluation import intervals as module
from topr_exp.evaluation.intervals import bootstrap_means, intervals, paired_difference, standard_error
from topr_exp.evaluation.majority import ballots, count_votes, majority_score
from topr_exp.evaluation.passk import pass_at_k
from topr_exp.evaluation.verdicts import CORRECT

N = 8


def statistics(rng, problems, easy=None):
    """[problems, 3]: pass@1, pass@4, maj@8 of each problem."""
    verdicts, classes = evaluation(rng, problems, N, easy=easy)
    correct = (verdicts == CORRECT).sum(axis=1)
    voting = ballots(verdicts, classes)
    maj = majority_score(count_votes(voting.candidate, voting.worth.shape[1]), voting.worth)
    return np.stack([correct / N, pass_at_k(correct, N, 4), maj], axis=1)


def test_intervals_over_problems_cover_the_truth_95_times_in_100():
    rng = np.random.default_rng(0)
    truth = statistics(rng, 400_000).mean(axis=0)
    tests, hits, hits_by_se = 1500, np.zeros(3), np.zeros(3)
    for _ in range(tests):
        values = statistics(rng, 200)
        for i, found in enumerate(intervals(values, rng, resamples=600)):
            hits[i] += found.low <= truth[i] <= found.high
            hits_by_se[i] += abs(found.value - truth[i]) <= 1.96 * found.se
    for share in (*hits / tests, *hits_by_se / tests):
        assert 0.93 <= share <= 0.97


def test_paired_differences_cover_the_truth_and_are_narrower_than_unpaired_ones():
    rng = np.random.default_rng(1)
    better = 0.12  # the second model solves 12 % of what the first cannot
    base = rng.beta(0.8, 1.2, size=(400_000, 1))
    truth = better * (1 - base).mean()
    tests, hits, paired, unpaired = 1000, 0, [], []
    for _ in range(tests):
        easy = rng.beta(0.8, 1.2, size=(200, 1))
        first = statistics(rng, 200, easy)[:, 0]
        second = statistics(rng, 200, easy + better * (1 - easy))[:, 0]
        found = paired_difference(first, second, rng, resamples=600)
        hits += found.low <= truth <= found.high
        paired.append(found.se)
        unpaired.append(np.hypot(standard_error(first), standard_error(second)))
    assert 0.93 <= hits / tests <= 0.97
    assert np.mean(paired) < 0.6 * np.mean(unpaired)


def test_the_closed_standard_error_is_that_of_the_bootstrap():
    rng = np.random.default_rng(2)
    values = rng.random((150, 1)) ** 2
    spread = bootstrap_means(values, 20_000, rng).std()
    assert standard_error(values[:, 0]) == pytest.approx(spread, rel=0.02)
    assert standard_error(np.array([0.0, 1.0])) == pytest.approx(0.5)


def test_resampling_in_chunks_changes_nothing(monkeypatch):
    values = np.random.default_rng(3).random((7, 2))
    whole = bootstrap_means(values, 50, np.random.default_rng(4))
    monkeypatch.setattr(module, "CHUNK", 30)
    np.testing.assert_array_equal(bootstrap_means(values, 50, np.random.default_rng(4)), whole)


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    values = np.random.default_rng(5).random((40, 1))
    first, again, other = (intervals(values, np.random.default_rng(seed))[0] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert (first.value, first.se) == (other.value, other.se)


def test_a_single_problem_has_no_uncertainty_to_give():
    assert intervals(np.array([[0.25]]), np.random.default_rng(0))[0].as_dict() == {
        "value": 0.25, "se": None, "low": None, "high": None
    }  # fmt: skip
