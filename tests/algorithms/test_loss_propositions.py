"""TOPR's analysis (Section 3.1): Equation 11 and its gradient, the taper, Propositions 3.1 and 3.2."""

import math

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import Case, load, probability, rng, torch_token_logp
from topr_exp.algorithms.topr import taper

INF = float("inf")
LIMITS = [(1, 1, 0, 1), (0, 1, 0, 1), (1, 1, 1, 1), (0, INF, 0, INF), (1, 1, 0, 0), (0.5, 1.5, 0.25, 2.0)]


def rho(x: float, a: float, b: float) -> float:
    """The paper's taper, branch by branch."""
    if x < a:
        return a * (1 + math.log(x / a))
    if x > b:
        return b * (1 + math.log(x / b)) if b > 0 else 0.0
    return x


def whole_language(seed: int, reward: np.ndarray | None = None, baseline: float = 0.0) -> Case:
    """Each of the 7 responses once; expectations over μ weigh the rows by μ(y)."""
    r = rng(seed)
    logits, mu = r.normal(size=(2, 9))
    reward = np.where(r.random(7) < 0.5, 1.0, -1.0) if reward is None else reward
    each = np.arange(7)
    return Case(logits, mu, mu, each, reward, reward > 0, np.zeros(7, dtype=int), each, 7, baseline)


def limited(limits, **changes):
    names = ("a_pos", "b_pos", "a_neg", "b_neg")
    return load("topr", **dict(zip(names, map(float, limits), strict=True)), length_normalize=False, **changes)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(2))
def test_loss_descends_equation_11(limits, seed):
    """The gradient of the expected loss without length normalisation is −∇J, J = E_μ[ρ(r) R] by central differences."""
    case = whole_language(seed, baseline=0.3)
    mu = probability(case.mu)

    def J(logits):
        r = probability(logits) / mu
        a_pos, b_pos, a_neg, b_neg = limits
        value = [
            rho(x, a_pos, b_pos) if good else rho(x, a_neg, b_neg) for x, good in zip(r, case.positive, strict=True)
        ]
        return (mu * value * case.R).sum()

    loss = limited(limits)(case.batch()).loss
    (grad,) = torch.autograd.grad((torch.tensor(mu) * loss).sum(), case.theta)
    h = 1e-5
    numeric = [(J(case.logits + h * e) - J(case.logits - h * e)) / (2 * h) for e in np.eye(9)]
    np.testing.assert_allclose(grad.numpy(), -np.array(numeric), atol=1e-9)


def test_off_policy_reinforce_is_the_policy_gradient():
    """Equation 5 in expectation: ∇E_π[R] whatever μ."""
    case = whole_language(0)
    loss = load("is", length_normalize=False)(case.batch()).loss
    (grad,) = torch.autograd.grad((torch.tensor(probability(case.mu)) * loss).sum(), case.theta)
    expected = -((probability(case.logits) * case.reward)[:, None] * case.score).sum(0)
    np.testing.assert_allclose(grad.numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("limits", LIMITS)
def test_gradient_of_the_taper_is_the_clipped_ratio(limits):
    for a, b in (limits[:2], limits[2:]):
        delta = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
        log_a, log_b = (torch.tensor(math.log(x) if x > 0 else -INF, dtype=torch.float64) for x in (a, b))
        value = taper(delta, log_a, log_b)
        (grad,) = torch.autograd.grad(value.sum(), delta)
        ratio = delta.detach().exp()
        torch.testing.assert_close(grad, ratio.clamp(a, b), rtol=1e-12, atol=0)
        assert (value <= ratio * (1 + 1e-12)).all()  # a lower bound of the ratio


def kl(p: np.ndarray, q: np.ndarray) -> float:
    here = p > 0
    return float((p[here] * np.log(p[here] / q[here])).sum())


@pytest.mark.parametrize("baseline", [-1.0, -0.3, 0.0, 0.6])
def test_proposition_3_1(baseline):
    """−J_c = C + R⁺ KL(μ_R⁺ ‖ π) − R⁻ KL(μ_R⁻ ‖ π) − c KL(μ ‖ π), C independent of π (rewards of any size)."""
    r = rng(5)
    reward = r.normal(size=7)
    constants = []
    for seed in range(4):
        case = whole_language(5, reward, baseline)
        case.logits[:] = rng(100 + seed).normal(size=9)
        case.theta = torch.tensor(case.logits, requires_grad=True)
        mu, pi = probability(case.mu), probability(case.logits)
        parts = {sign: np.where(sign * reward > 0, mu * np.abs(reward), 0.0) for sign in (1, -1)}
        four_parts = sum(sign * part.sum() * kl(part / part.sum(), pi) for sign, part in parts.items())
        four_parts -= baseline * kl(mu, pi)

        # Equation 10: −J_c = −J(μ) − E_μ[(R − c) log π/μ]; the naive loss is its integrand up to logμ.
        loss = load("naive", length_normalize=False)(case.batch()).loss.detach().numpy()
        minus_J = -(mu * reward).sum() + (mu * (loss + case.R * np.log(mu))).sum()
        constants.append(minus_J - four_parts)
    np.testing.assert_allclose(constants, constants[0], atol=1e-12)


@pytest.mark.parametrize("name", ["topr", "tis", "is", "sft"])
def test_proposition_3_2_bounded(name):
    """With a⁻ = 0, J ≤ Σ_{T⁺} μ ρ(r) ≤ Σ_{T⁺} π ≤ 1 for rewards ±1, however far π goes, in whatever direction."""
    for seed in range(5):
        case = whole_language(seed)
        for direction in rng(seed).normal(size=(10, 9)):
            for scale in (1.0, 10.0, 1000.0):
                assert expected_objective(case, load(name), case.logits + scale * direction) <= 1.0 + 1e-9


@pytest.mark.parametrize("loss", [load("naive"), load("topr", a_neg=0.01)], ids=["naive", "a_neg=0.01"])
def test_proposition_3_2_unbounded(loss):
    """With a⁻ > 0, J grows without bound as a negative response loses its probability; not if no reward is < 0."""
    reward = np.where(np.arange(7) == 0, -1.0, 1.0)  # only [2], the response of one token, is wrong
    away = -np.eye(9)[2]  # its probability falls, those of the others don't
    for case, bounded in ((whole_language(0, reward), False), (whole_language(0, np.ones(7)), True)):
        values = [expected_objective(case, loss, case.logits + scale * away) for scale in (1e2, 1e4, 1e6)]
        if bounded:
            assert max(values) <= 1.0
        else:
            assert values[2] > values[1] > values[0]
            assert values[2] > 100


def expected_objective(case: Case, loss, logits: np.ndarray) -> float:
    """J, Equation 11, at the policy `logits`."""
    batch = case.batch(logp=torch_token_logp(torch.tensor(logits))[case.y])
    return float((torch.tensor(probability(case.mu)) * loss(batch).metrics["objective"]).sum())
