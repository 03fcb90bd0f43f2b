"""Expected gradients on a softmax bandit, π ∝ exp(θ), where ∇logπ(a) = e_a − π: the papers' sums over responses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import load, rng, with_signals
from topr_exp.types import Batch

K = 6
INF = float("inf")
LIMITS = {
    "topr": (1, 1, 0, 1),
    "tis": (0, 1, 0, 1),
    "is": (0, INF, 0, INF),
    "naive": (1, 1, 1, 1),
    "sft": (1, 1, 0, 0),
}


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


@pytest.fixture(params=range(3))
def bandit(request):
    """θ, π, μ, π_ref and a reward of ±1 for each action."""
    r = rng(request.param)
    theta, mu, ref = r.normal(size=(3, K))
    reward = np.where(np.arange(K) % 2 == 0, 1.0, -1.0)
    return theta, softmax(theta), softmax(mu), softmax(ref), reward


def expected_gradient(loss, theta, mu, ref, reward, actions, weight, n=1, baseline=0.0):
    """∇ Σ_rows weight · loss for actions [B] in groups of n."""
    x = torch.tensor(theta, requires_grad=True)
    column = torch.tensor(actions)[:, None]
    rewards = torch.tensor(reward)[column[:, 0]]
    batch = Batch(
        logp=x.log_softmax(0)[column],
        mu_logp=torch.tensor(mu).log()[column],
        mask=column >= 0,
        reward=rewards,
        positive=rewards > 0,
        baseline=baseline,
        group=torch.arange(len(actions)) // n,
        group_size=torch.full((len(actions),), n),
        ref_logp=torch.tensor(ref).log()[column],
    )
    (grad,) = torch.autograd.grad((torch.tensor(weight) * loss(with_signals(loss, batch)).loss).sum(), x)
    return grad.numpy()


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("baseline", [0.0, -0.5])
def test_equation_7(bandit, name, baseline):
    """∇J = Σ_{T⁺} μ [π/μ]_{a⁺}^{b⁺} R ∇logπ + Σ_{T⁻} μ [π/μ]_{a⁻}^{b⁻} R ∇logπ."""
    theta, pi, mu, ref, reward = bandit
    a_pos, b_pos, a_neg, b_neg = LIMITS[name]
    ascent = np.zeros(K)
    for action in range(K):
        low, high = (a_pos, b_pos) if reward[action] > 0 else (a_neg, b_neg)
        weight = min(max(pi[action] / mu[action], low), high)
        ascent += mu[action] * weight * (reward[action] - baseline) * (np.eye(K)[action] - pi)
    actual = expected_gradient(load(name), theta, mu, ref, reward, np.arange(K), mu, baseline=baseline)
    np.testing.assert_allclose(actual, -ascent, atol=1e-10)


def test_off_policy_reinforce_is_the_policy_gradient(bandit):
    """Equation 5 in expectation: ∇E_π[R] = Σ_a π(a) R(a) (e_a − π), whatever μ."""
    theta, pi, mu, ref, reward = bandit
    actual = expected_gradient(load("is"), theta, mu, ref, reward, np.arange(K), mu)
    np.testing.assert_allclose(actual, -pi * (reward - (pi * reward).sum()), atol=1e-10)


@pytest.mark.parametrize("n", [2, 3])
def test_lemma_3_off_policy_agro(bandit, n):
    """E_μ g = −(1/β) ∇½Var_μ(S) = Cov_μ(S, ∇logπ), S = r − β log π/π_ref, over every group of n actions from μ."""
    theta, pi, mu, ref, reward = bandit
    beta = 0.7
    S = reward - beta * np.log(pi / ref)
    score = np.eye(K) - pi
    covariance = ((mu * (S - (mu * S).sum()))[:, None] * score).sum(0)
    groups = np.stack(np.meshgrid(*[np.arange(K)] * n, indexing="ij"), -1).reshape(-1, n)
    weight = np.repeat(mu[groups].prod(1), n) / n
    actual = expected_gradient(load("agro", beta=beta), theta, mu, ref, reward, groups.reshape(-1), weight, n=n)
    np.testing.assert_allclose(actual, -covariance, atol=1e-10)


def test_theorem_2_the_optimum_is_a_fixed_point_of_agro_off_policy(bandit):
    """At π* ∝ π_ref exp(r/β) every sample's coefficient is 0, so no group of any μ moves it."""
    _, _, mu, ref, reward = bandit
    beta = 0.7
    optimum = np.log(ref) + reward / beta
    actions = np.array([0, 1, 2, 5, 5, 3])
    actual = expected_gradient(load("agro", beta=beta), optimum, mu, ref, reward, actions, np.ones(6), n=3)
    np.testing.assert_allclose(actual, np.zeros(K), atol=1e-12)
