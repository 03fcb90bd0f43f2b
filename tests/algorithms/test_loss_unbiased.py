"""AGRO's theorems by enumeration of all groups of n completions; losses of other papers that are one of ours."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.algorithms.tabular_policies import (
    LOGITS,
    all_completions,
    all_groups,
    load,
    probability,
    random_case,
    rng,
    token_logp,
    token_score,
    torch_token_kl,
    torch_token_logp,
)

BETA = 0.4
REWARD = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
OTHER_LOGITS = rng(7).normal(size=LOGITS)


def policies(seed):
    return rng(seed).normal(size=(2, LOGITS))


def variance_gradient(logits, ref):
    """∇½Var_π(S) by autograd, S = r − β log π/π_ref, which depends on π too."""
    theta = torch.tensor(logits, requires_grad=True)
    logp = torch_token_logp(theta).sum(1)
    ref_logp = torch.tensor(token_logp(ref)).sum(1)
    p = logp.exp()
    S = torch.tensor(REWARD) - BETA * (logp - ref_logp)
    variance = p @ S**2 - (p @ S) ** 2
    (gradient,) = torch.autograd.grad(variance / 2, theta)
    return gradient.numpy()


@pytest.mark.parametrize("n", [2, 3])
def test_on_policy_agro_is_unbiased(n):
    """Proposition 4: E g = −(1/β) ∇½Var_π(S), so the loss's expected gradient is +(1/β) of it."""
    logits, ref = policies(n)
    case = all_groups(logits, ref, n, REWARD)

    gradient = case.gradient(load("agro_on_policy", beta=BETA))

    assert_allclose(gradient, variance_gradient(logits, ref) / BETA, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name, is_on_policy", [("agro", False), ("agro", True), ("rloo", True)])
def test_lemma_3(name, is_on_policy, n):
    """E_μ g = Cov_μ(S, ∇logπ) whatever μ; with μ = π, and of RLOO, it is ∇(E_π[r] − β KL(π ‖ π_ref)) (Section 5.2)."""
    logits, ref = policies(n)
    mu = logits if is_on_policy else OTHER_LOGITS
    case = all_groups(logits, ref, n, REWARD, mu)

    gradient = case.gradient(load(name, beta=BETA))

    p = probability(mu)
    S = REWARD - BETA * (token_logp(logits) - token_logp(ref)).sum(1)
    score = token_score(logits).sum(1)
    covariance = (p * (S - p @ S)) @ score
    assert_allclose(gradient, -covariance, atol=1e-10)


@pytest.mark.parametrize("beta", [0.05, 0.5])
def test_where_on_policy_agro_starts_to_move(beta):
    """At π = π_ref it ascends (1 − (1/2 − p)/β) times the accuracy p: downhill for a small β, as conf/algo says."""
    logits, _ = policies(5)
    case = all_groups(logits, logits, 2, REWARD)

    gradient = case.gradient(load("agro_on_policy", beta=beta))

    right = probability(logits) * REWARD
    accuracy_gradient = right @ token_score(logits).sum(1)
    factor = 1 - (0.5 - right.sum()) / beta
    assert_allclose(-gradient, factor * accuracy_gradient, atol=1e-10)


def test_theorem_2_the_optimum_is_a_fixed_point_of_agro_off_policy():
    """At π* ∝ π_ref exp(r/β) every sample's coefficient is 0, so no group of any μ moves it."""
    _, ref = policies(0)
    p = probability(ref) * np.exp(REWARD / BETA)  # of [2], of three that begin with 0, of three that begin with 1
    p_of_0 = p[1:4].sum()
    p_of_1 = p[4:].sum()
    optimum = np.log([p_of_0, p_of_1, *p])
    case = all_groups(optimum, ref, 3, REWARD, OTHER_LOGITS)

    signals = load("agro", beta=BETA).signals(case.batch())

    assert float(signals["advantage"].abs().max()) < 1e-12


def test_length_normalisation_biases_agro_on_policy():
    """E_π[∇logπ / T] is not 0, which is why the group losses are not divided by T by default."""
    case = all_groups(*policies(1), 2, REWARD)

    default = case.gradient(load("agro", beta=BETA))
    normalized = case.gradient(load("agro", beta=BETA, length_normalize=True))

    scale = normalized / default
    assert scale.max() / scale.min() > 1.05  # another direction, not another length


@pytest.mark.parametrize("is_on_policy", [False, True])
def test_the_unbiased_kl_has_the_gradient_of_kl_to_the_reference(is_on_policy):
    """Over samples of μ: ∇ Σ_t KL(π ‖ π_ref) of next tokens after what μ drew; without the weight another direction."""
    logits, ref = policies(0)
    case = all_completions(1, np.zeros(7))
    case.move_to(logits)
    case.ref = ref
    if is_on_policy:
        case.mu = logits
        case.weight = probability(logits)
    expected_kl = torch.tensor(case.weight) @ torch_token_kl(case.theta, torch.tensor(ref)).sum(1)
    (expected,) = torch.autograd.grad(expected_kl, case.theta)

    weighted = case.gradient(load("grpo", kl_coef=1.0, unbiased_kl=True))
    unweighted = case.gradient(load("grpo", kl_coef=1.0))

    assert_allclose(weighted, expected, atol=1e-12)
    assert np.linalg.norm(unweighted - weighted) > 0.3 * np.linalg.norm(weighted)


# ---- losses of other papers that are one of ours up to a factor (docs/losses.md)


def trajectory_balance(r, d, beta):
    """TBA, with log Z estimated by the group's mean."""
    shifted = d - r / beta
    return (shifted.mean() - shifted).square().sum()


def pair_regression(r, d, beta):
    """CoPG and REBEL: every pair."""
    gap = (r[:, None] - r) - beta * (d[:, None] - d)
    return gap.triu(1).square().sum()


def gvpo(r, d, beta):
    residual = (r - r.mean()) - beta * (d - d.mean())
    return -(residual.detach() * d).sum()


@pytest.mark.parametrize(
    "regression, factor",
    [
        (trajectory_balance, lambda n, beta: 2 / beta * (n - 1) / n),
        (pair_regression, lambda n, beta: 2 * beta * (n - 1)),
        (gvpo, lambda n, beta: (n - 1) / n),
    ],
)
def test_regressions_over_a_group_are_agro_up_to_a_factor(regression, factor):
    """With one reference; the factor is to AGRO's mean over completions."""
    case = random_case(0)
    beta = 0.3
    batch = case.batch()
    log_ratio = (batch.logp - batch.ref_logp).sum(1)

    total = 0.0
    for rows in torch.arange(15).split(case.n):
        total += regression(batch.reward[rows], log_ratio[rows], beta)

    (gradient,) = torch.autograd.grad(total / 15, case.theta)
    expected = factor(case.n, beta) * case.gradient(load("agro", beta=beta))
    assert_allclose(gradient, expected, rtol=1e-10, atol=1e-13)


def test_dro_with_the_groups_mean_as_value_is_opmd_up_to_a_factor():
    """½ (r − r̄ − τΔ)²: τ times OPMD's gradient."""
    case = random_case(0)
    tau = 0.3
    batch = case.batch()
    delta = (batch.logp - batch.mu_logp).sum(1)
    residual = batch.reward - batch.group_mean - tau * delta
    loss = residual.square().mean() / 2

    (gradient,) = torch.autograd.grad(loss, case.theta)

    expected = tau * case.gradient(load("opmd", tau=tau))
    assert_allclose(gradient, expected, rtol=1e-10, atol=1e-13)
