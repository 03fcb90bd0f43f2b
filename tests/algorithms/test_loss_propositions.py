"""TOPR's analysis (Section 3.1): Equation 11 and its gradient, the taper, Propositions 3.1 and 3.2."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.algorithms.tabular_policies import INF, LOGITS, all_completions, limits, load, probability, rng

LIMITS = [(1, 1, 0, 1), (0, 1, 0, 1), (1, 1, 1, 1), (0, INF, 0, INF), (1, 1, 0, 0), (0.5, 1.5, 0.25, 2.0)]


def rho(x, a, b):
    """The paper's taper, branch by branch."""
    if x < a:
        return a * (1 + math.log(x / a))
    if x > b:
        return b * (1 + math.log(x / b)) if b > 0 else 0.0
    return x


@pytest.mark.parametrize("a_pos, b_pos, a_neg, b_neg", LIMITS)
def test_loss_descends_equation_11(a_pos, b_pos, a_neg, b_neg):
    """The gradient of the expected loss without length normalisation is −∇J, J = E_μ[ρ(r) R] by central differences."""
    case = all_completions(0, baseline=0.3)
    mu = probability(case.mu)
    loss = load("topr", **limits(a_pos, b_pos, a_neg, b_neg), length_normalize=False)

    def J(logits):
        total = 0.0
        for ratio, mu_y, R in zip(probability(logits) / mu, mu, case.R, strict=True):
            tapered = rho(ratio, a_pos, b_pos) if R > 0 else rho(ratio, a_neg, b_neg)
            total += mu_y * R * tapered
        return total

    gradient = case.gradient(loss)

    slopes = []
    for step in 1e-5 * np.eye(LOGITS):
        difference = J(case.logits + step) - J(case.logits - step)
        slopes.append(difference / 2e-5)
    assert_allclose(gradient, -np.array(slopes), atol=1e-9)


def kl(p, q):
    is_possible = p > 0
    log_ratio = np.log(p[is_possible] / q[is_possible])
    return float(p[is_possible] @ log_ratio)


@pytest.mark.parametrize("baseline", [-1.0, 0.0, 0.6])
def test_proposition_3_1(baseline):
    """−J_c = C + R⁺ KL(μ_R⁺ ‖ π) − R⁻ KL(μ_R⁻ ‖ π) − c KL(μ ‖ π), C independent of π (rewards of any size)."""
    reward = rng(5).normal(size=7)
    case = all_completions(5, reward, baseline)
    mu = probability(case.mu)
    right = mu * reward.clip(min=0)
    wrong = mu * (-reward).clip(min=0)
    loss = load("naive", length_normalize=False)
    constants = []
    for seed in range(4):
        case.move_to(rng(100 + seed).normal(size=LOGITS))
        pi = probability(case.logits)
        divergence = right.sum() * kl(right / right.sum(), pi)
        divergence -= wrong.sum() * kl(wrong / wrong.sum(), pi)
        divergence -= baseline * kl(mu, pi)
        # Equation 10: −J_c = −J(μ) − E_μ[(R − c) log π/μ]; the naive loss is its integrand up to log μ.
        losses = loss(case.batch()).loss.detach().numpy()
        minus_J = -(mu @ reward) + mu @ (losses + case.R * np.log(mu))
        constants.append(minus_J - divergence)

    assert_allclose(constants, constants[0], atol=1e-12)


def expected_objective(case, loss, logits):
    """J, Equation 11, at the policy `logits`."""
    case.move_to(logits)
    objective = loss(case.batch()).metrics["objective"]
    return float(case.weight @ objective.numpy())


@pytest.mark.parametrize("name", ["topr", "tis", "is", "sft"])
def test_proposition_3_2_bounded(name):
    """With a⁻ = 0, J ≤ Σ_{T⁺} μ ρ(r) ≤ Σ_{T⁺} π ≤ 1 for rewards ±1, however far π goes, in whatever direction."""
    loss = load(name)
    for seed in range(5):
        case = all_completions(seed)
        start = case.logits
        for direction in rng(seed).normal(size=(10, LOGITS)):
            for scale in (1.0, 10.0, 1000.0):
                assert expected_objective(case, loss, start + scale * direction) <= 1.0 + 1e-9


@pytest.mark.parametrize("loss", [load("naive"), load("topr", a_neg=0.01)], ids=["naive", "a_neg=0.01"])
def test_proposition_3_2_unbounded(loss):
    """With a⁻ > 0, J grows without bound as a negative completion loses its probability; not if no reward is < 0."""
    away = -np.eye(LOGITS)[2]  # the probability of [2] falls, those of the others don't
    only_first_wrong = np.array([-1.0, 1, 1, 1, 1, 1, 1])

    def objectives(reward):
        case = all_completions(0, reward)
        start = case.logits
        return [expected_objective(case, loss, start + scale * away) for scale in (1e2, 1e4, 1e6)]

    unbounded = objectives(only_first_wrong)
    assert unbounded == sorted(unbounded)
    assert unbounded[-1] > 100
    assert max(objectives(np.ones(7))) <= 1.0
