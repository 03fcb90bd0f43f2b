from __future__ import annotations

import math

import numpy as np
import pytest

from tests.evaluation import brute_force
from tests.evaluation.synthetic import evaluation
from topr_exp.evaluation.draws import CORRECT, ballots, draw, pass_at_k, sampling_only_se


def test_draws_agree_with_the_closed_form_and_enumeration_in_expectation():
    rng = np.random.default_rng(0)
    verdicts, classes = evaluation(rng, problems=25, n=8)
    ks, trials = [1, 2, 4, 8], 8000
    drawn = draw(verdicts == CORRECT, ballots(verdicts, classes), ks, rng, trials)
    for i, k in enumerate(ks):
        exact_pass = pass_at_k((verdicts == CORRECT).sum(axis=1), 8, k).mean()
        exact_maj = [brute_force.maj_at_k(v, c, k) for v, c in zip(verdicts, classes, strict=True)]
        noise = drawn.pass_trials[i].std() / math.sqrt(trials)
        assert drawn.pass_trials[i].mean() == pytest.approx(exact_pass, abs=4 * noise + 1e-12)
        noise = drawn.maj_trials[i].std() / math.sqrt(trials)
        assert drawn.maj_trials[i].mean() == pytest.approx(np.mean(exact_maj), abs=4 * noise + 1e-12)
        # A problem's score lies in [0, 1], so its mean over trials has an error of at most 0.5 / sqrt(trials).
        np.testing.assert_allclose(drawn.maj_problems[i], exact_maj, atol=5 * 0.5 / math.sqrt(trials))


def test_all_n_completions_leave_nothing_to_chance():
    rng = np.random.default_rng(1)
    verdicts, classes = evaluation(rng, problems=30, n=4)
    drawn = draw(verdicts == CORRECT, ballots(verdicts, classes), [4], rng, trials=20)
    np.testing.assert_allclose(drawn.maj_trials.var(axis=1), 0, atol=1e-30)
    assert drawn.pass_trials[0] == pytest.approx((verdicts == CORRECT).any(axis=1).mean())


def test_the_papers_error_is_that_of_new_completions_for_the_same_problems():
    # For K = 1 the formula is exact: its square estimates Var(completions) / n, summed over problems.
    rng = np.random.default_rng(2)
    problems, n = 60, 16
    easy = rng.uniform(0.1, 0.9, size=(problems, 1))
    means, errors = [], []
    for _ in range(300):
        verdicts, classes = evaluation(rng, problems, n, easy=easy)
        means.append((verdicts == CORRECT).mean())
        drawn = draw(verdicts == CORRECT, ballots(verdicts, classes), [1], rng, trials=100)
        errors.append(sampling_only_se(drawn.pass_trials[0], 1, n))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)


def test_the_papers_error_is_given_up_to_half_of_n_only():
    trials = np.array([0.0, 1.0])  # V = 1/2
    assert sampling_only_se(trials, 4, 8) == pytest.approx(math.sqrt(4 * 0.5 / 4))
    assert sampling_only_se(trials, 5, 8) is None
    assert sampling_only_se(trials, 8, 8) is None
