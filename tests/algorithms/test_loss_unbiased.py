"""AGRO's unbiasedness by exact enumeration of all groups of n responses, and the bias of what the config refuses."""

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import (
    Case,
    all_groups,
    expected_gradient,
    load,
    probability,
    random_case,
    rng,
    token_kl_gradient,
    token_logp,
    token_score,
    torch_token_logp,
)

BETA = 0.4
REWARD = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0])


def policies(seed: int) -> tuple[np.ndarray, np.ndarray]:
    logits, ref = rng(seed).normal(size=(2, 9))
    return logits, ref


def variance_gradient(logits: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """∇½Var_π(S) by autograd, S = r − β log π/π_ref, which depends on π too."""
    theta = torch.tensor(logits, requires_grad=True)
    logp = torch_token_logp(theta).sum(1)
    p, S = logp.exp(), torch.tensor(REWARD) - BETA * (logp - torch.tensor(token_logp(ref)).sum(1))
    (gradient,) = torch.autograd.grad(((p * S**2).sum() - (p * S).sum() ** 2) / 2, theta)
    return gradient.numpy()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_on_policy_agro_is_unbiased(n):
    """Proposition 4: E g = −(1/β) ∇½Var_π(S), so the loss's expected gradient is +(1/β) of it."""
    loss = load("agro_on_policy", beta=BETA)
    logits, ref = policies(n)
    case, weight = all_groups(logits, ref, n, REWARD)
    actual = expected_gradient(case, weight, loss)
    np.testing.assert_allclose(actual, variance_gradient(logits, ref) / BETA, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("name", "on_policy"), [("agro", False), ("agro", True), ("rloo", True)])
def test_lemma_3(name, on_policy, n):
    """E_μ g = Cov_μ(S, ∇logπ) whatever μ; with μ = π, and of RLOO, it is ∇(E_π[r] − β KL(π ‖ π_ref)) (Section 5.2)."""
    logits, ref = policies(n)
    mu = logits if on_policy else rng(7).normal(size=9)
    case, weight = all_groups(logits, ref, n, REWARD, mu)
    p, S = probability(mu), REWARD - BETA * (token_logp(logits) - token_logp(ref)).sum(1)
    covariance = ((p * (S - (p * S).sum()))[:, None] * token_score(logits).sum(1)).sum(0)
    np.testing.assert_allclose(expected_gradient(case, weight, load(name, beta=BETA)), -covariance, atol=1e-10)


def test_theorem_2_the_optimum_is_a_fixed_point_of_agro_off_policy():
    """At π* ∝ π_ref exp(r/β) every sample's coefficient is 0, so no group of any μ moves it."""
    ref = policies(0)[1]
    p = probability(ref) * np.exp(REWARD / BETA)
    optimum = np.log(np.concatenate([[p[1:4].sum(), p[4:].sum(), p[0]], p[1:4], p[4:]]))
    case, _ = all_groups(optimum, ref, 3, REWARD, rng(7).normal(size=9))
    advantage = load("agro", beta=BETA).signals(case.batch())["advantage"]
    assert float(advantage.abs().max()) < 1e-12


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.5])
def test_where_on_policy_agro_starts_to_move(beta):
    """At π = π_ref it ascends (1 − (1/2 − p)/β) times the accuracy p: downhill for a small β, as conf/algo says."""
    logits, _ = policies(5)
    case, weight = all_groups(logits, logits, 2, REWARD)
    ascent = -expected_gradient(case, weight, load("agro_on_policy", beta=beta))
    share, score = probability(logits), token_score(logits).sum(1)
    accuracy = (share * REWARD).sum()
    uphill = ((share * REWARD)[:, None] * score).sum(0)
    np.testing.assert_allclose(ascent, (1 - (0.5 - accuracy) / beta) * uphill, atol=1e-10)


def test_length_normalisation_biases_agro_on_policy():
    """E_π[∇logπ / T] is not 0, which is why the group losses are not divided by T by default."""
    logits, ref = policies(1)
    case, weight = all_groups(logits, ref, 2, REWARD)
    default = expected_gradient(case, weight, load("agro", beta=BETA))
    normalized = expected_gradient(case, weight, load("agro", beta=BETA, length_normalize=True))
    ratio = normalized / default
    assert ratio.max() / ratio.min() > 1.05 or (ratio < 0).any()  # another direction, not another length


def test_kl_pg_is_not_the_gradient_of_the_sequence_kl():
    """Section 8.2's penalty detaches the prefixes: even on-policy it is not ∇KL(π ‖ π_ref)."""
    logits, ref = policies(3)
    p, score = probability(logits), token_score(logits).sum(1)
    delta = (token_logp(logits) - token_logp(ref)).sum(1)
    sequence_kl = ((p * delta)[:, None] * score).sum(0)
    penalty = (p[:, None] * token_kl_gradient(logits, ref).sum(1)).sum(0)
    case, weight = all_groups(logits, ref, 2, np.zeros(7))
    actual = expected_gradient(case, weight, load("kl_pg", beta=BETA))
    np.testing.assert_allclose(actual, BETA * penalty, atol=1e-10)
    assert np.abs(penalty - sequence_kl).max() > 1e-2


# ---- losses of other papers that are one of ours up to a factor (docs/losses.md)


def group_regressions(case: Case, beta: float, log_ratio: torch.Tensor) -> dict[str, tuple[torch.Tensor, float]]:
    """Losses of other papers over each group, as they print them, and their factors to AGRO's mean over responses."""
    reward, losses = torch.tensor(case.reward), {"tba": 0.0, "pairs": 0.0, "gvpo": 0.0}
    for group in np.unique(case.group):
        rows = torch.tensor(np.flatnonzero(case.group == group))
        r, d = reward[rows], log_ratio[rows]
        shifted = d - r / beta  # trajectory balance, log Z estimated by the group's mean
        losses["tba"] += (shifted.mean() - shifted).square().sum()
        gap = (r[:, None] - r) - beta * (d[:, None] - d)  # CoPG and REBEL: every pair
        losses["pairs"] += gap.triu(1).square().sum()
        losses["gvpo"] -= (((r - r.mean()) - beta * (d - d.mean())).detach() * d).sum()
    n, count = case.n, len(case.y)
    factors = {"tba": 2 / beta * (n - 1) / n, "pairs": 2 * beta * (n - 1), "gvpo": (n - 1) / n}
    return {name: (loss / count, factors[name]) for name, loss in losses.items()}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["tba", "pairs", "gvpo"])
def test_regressions_over_a_group_are_agro_up_to_a_factor(name: str, seed: int) -> None:
    """TBA, CoPG, REBEL and GVPO (docs/losses.md), with one reference."""
    case, beta = random_case(seed), 0.3
    batch = case.batch()
    loss, factor = group_regressions(case, beta, (batch.logp - batch.ref_logp).sum(1))[name]
    (grad,) = torch.autograd.grad(loss, case.theta)
    np.testing.assert_allclose(grad.numpy(), factor * case.gradient(load("agro", beta=beta)), rtol=1e-10, atol=1e-13)


def test_dro_with_the_groups_mean_as_value_is_opmd_up_to_a_factor() -> None:
    """½ (r − r̄ − τΔ)²: τ times OPMD's gradient."""
    case, tau = random_case(0), 0.3
    batch = case.batch()
    residual = torch.tensor(case.centered) - tau * (batch.logp - batch.mu_logp).sum(1)
    (grad,) = torch.autograd.grad(residual.square().mean() / 2, case.theta)
    np.testing.assert_allclose(grad.numpy(), tau * case.gradient(load("opmd", tau=tau)), rtol=1e-10, atol=1e-13)
