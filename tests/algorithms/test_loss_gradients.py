"""Every loss of conf/algo: autograd gradient on a tabular policy against the closed form of the paper's equation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import MASK, NAMES, Case, load, random_case, token_kl
from topr_exp.types import PairBatch

TOLERANCE = 1e-10
INF = float("inf")


def mean_of(coefficient: np.ndarray, score: np.ndarray) -> np.ndarray:
    """(1/B) Σ_i coefficient_i ∇logπ(y_i), for [B] and [B, 9] or [B, T] and [B, T, 9]."""
    return (coefficient[..., None] * score).reshape(-1, score.shape[-1]).sum(0) / len(score)


# Each closed form is the gradient of the mean loss, written from the equation that the YAML names.


def tapered(limits: tuple[float, float, float, float]) -> Callable[[Case], np.ndarray]:
    a_pos, b_pos, a_neg, b_neg = limits

    def closed_form(c: Case) -> np.ndarray:  # TOPR Eq. 7, divided by T
        r = np.exp(c.delta)
        above = np.where(c.R == 0, c.positive, c.R > 0)
        w = np.where(above, np.clip(r, a_pos, b_pos), np.clip(r, a_neg, b_neg))
        return mean_of(-w * c.R / c.length, c.score)

    return closed_form


def ppo(c: Case) -> np.ndarray:  # TOPR Eq. 6
    r = np.exp(c.delta)
    alive = np.where(c.R > 0, r <= 1.2, r >= 0.8)
    return mean_of(-(alive * r * c.R) / c.length, c.score)


def agro(c: Case) -> np.ndarray:  # AGRO Eq. 4
    S = c.reward - 0.05 * c.ref_delta_t.sum(1)
    return mean_of(-(S - c.others_mean(S)), c.score)


def agro_on_policy(c: Case) -> np.ndarray:  # AGRO Eq. 6
    S = c.reward - 0.5 * c.ref_delta_t.sum(1)
    A = S - c.others_mean(S)
    return mean_of(-(A - A**2 / (2 * 0.5)), c.score)


def rloo(c: Case) -> np.ndarray:  # AGRO Section 5.2, the KL in the reward of the sampling policy
    S = c.reward - 0.05 * (c.ref_delta_t - c.delta_t).sum(1)
    return mean_of(-(S - c.others_mean(S)), c.score)


def kl_pg(c: Case) -> np.ndarray:  # AGRO Section 8.2
    _, kl_grad = token_kl(c.logits, c.ref)
    return mean_of(-(c.reward - c.others_mean(c.reward)), c.score) + 0.05 * kl_grad[c.y].sum(1).mean(0)


def grpo(c: Case) -> np.ndarray:
    std = c.over_group(c.reward, lambda r: np.sqrt(((r - r.mean()) ** 2).sum() / (len(r) - 1)))
    A = ((c.reward - c.over_group(c.reward, np.mean)) / (std + 1e-4))[:, None]
    r = np.exp(c.delta_t)
    alive = np.where(A > 0, r <= 1.2, r >= 0.8)
    return mean_of(-(alive * r * A), c.score_t)


def opmd(c: Case) -> np.ndarray:
    A = c.reward - c.over_group(c.reward, np.mean)
    return mean_of(-A + 0.1 * c.delta, c.score)


def asymre(c: Case) -> np.ndarray:
    return mean_of(-(c.reward - (c.over_group(c.reward, np.mean) - 0.1)), c.score)


def rec(c: Case) -> np.ndarray:
    A = (c.reward - c.over_group(c.reward, np.mean))[:, None]
    r = np.exp(c.delta_t)
    alive = ((A >= 0) & (r <= 1.2)) | ((A <= 0) & (r >= 0.8))
    return mean_of(-(alive * A), c.score_t)


def red_drop(c: Case) -> np.ndarray:
    grad = np.zeros(9)
    for g in np.unique(c.group):
        members = np.flatnonzero(c.group == g)
        positives = [i for i in members if c.positive[i]]
        negatives = sorted((i for i in members if not c.positive[i]), key=lambda i: c.sample[i])[: len(positives)]
        kept = np.array(positives + negatives, dtype=int)
        if len(kept):
            grad -= ((c.reward[kept] - c.reward[kept].mean())[:, None] * c.score[kept]).sum(0)
    return grad / len(c.y)


def gspo(c: Case) -> np.ndarray:  # s = exp(Δ/T), PPO's rule; ∇s = s ∇logπ / T
    A, s = c.standard, np.exp(c.delta / c.length)
    alive = np.where(A > 0, s <= 1 + 4e-4, s >= 1 - 3e-4)
    return mean_of(-(alive * s * A) / c.length, c.score)


def cispo(c: Case) -> np.ndarray:
    return mean_of(-np.minimum(np.exp(c.delta_t), 5) * c.standard[:, None], c.score_t)


def vespo(c: Case) -> np.ndarray:
    A, r = c.centered, np.exp(c.delta)
    weight = np.where(A >= 0, r**2 * np.exp(3 * (1 - r)), r**3 * np.exp(2 * (1 - r)))
    return mean_of(-weight * A, c.score)


def m2po_kept(c: Case, tau: float) -> np.ndarray:
    """[B, T]: the tokens that are left when the largest δ_t² are dropped one by one until the mean is below τ."""
    square = np.where(MASK[c.y], c.delta_t**2, -1.0)
    kept = MASK[c.y].copy()
    while kept.any() and square[kept].mean() >= tau:
        kept &= square < square[kept].max()
    return kept


def m2po(c: Case) -> np.ndarray:
    return mean_of(m2po_kept(c, 0.04) * np.exp(c.delta_t) * -c.standard[:, None], c.score_t)


def sapo(c: Case) -> np.ndarray:  # f(x) = (4/τ) σ(τ (x − 1)), f' = 4 σ (1 − σ)
    A, x = c.standard[:, None], np.exp(c.delta_t)
    gate = 1 / (1 + np.exp(-np.where(A > 0, 1.0, 1.05) * (x - 1)))
    return mean_of(-4 * gate * (1 - gate) * x * A / c.length[:, None], c.score_t)


def optimal_value(c: Case, beta_value: float) -> np.ndarray:
    return c.over_group(c.reward, lambda r: beta_value * np.log(np.mean(np.exp(r / beta_value))))


def oapl(c: Case) -> np.ndarray:
    residual = 1e-3 * c.delta - (c.reward - optimal_value(c, 0.5))
    return mean_of(2 * residual * 1e-3, c.score)


CLOSED_FORMS: dict[str, Callable[[Case], np.ndarray]] = {
    "topr": tapered((1, 1, 0, 1)),
    "tis": tapered((0, 1, 0, 1)),
    "is": tapered((0, INF, 0, INF)),
    "naive": tapered((1, 1, 1, 1)),
    "sft": tapered((1, 1, 0, 0)),
    "ppo": ppo,
    "agro": agro,
    "agro_on_policy": agro_on_policy,
    "rloo": rloo,
    "kl_pg": kl_pg,
    "grpo": grpo,
    "opmd": opmd,
    "asymre": asymre,
    "rec": rec,
    "red_drop": red_drop,
    "gspo": gspo,
    "cispo": cispo,
    "vespo": vespo,
    "m2po": m2po,
    "sapo": sapo,
    "oapl": oapl,
}


def test_every_algorithm_has_a_closed_form():
    """A new one is added to CLOSED_FORMS: the gradient of its mean loss, written from the paper in numpy."""
    assert {*CLOSED_FORMS, "dpo"} == set(NAMES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_gradient(name, seed):
    loss = load(name)
    case = random_case(seed, baseline=0.3 if loss.uses_baseline else 0.0, low=-1.0 if loss.uses_baseline else 0.0)
    expected = CLOSED_FORMS[name](case)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(case.gradient(loss), expected, atol=TOLERANCE)


@pytest.mark.parametrize("low", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("baseline", [-0.3, 0.0, 0.7])
@pytest.mark.parametrize("name", ["topr", "tis", "is", "naive", "sft"])
def test_the_sign_of_the_reward_minus_the_baseline_picks_the_limits(name, baseline, low):
    """Not the verdict: a wrong completion of reward 0 has R = 0.3 at c = -0.3, and no limit of the negatives."""
    case = random_case(0, baseline=baseline, low=low)
    np.testing.assert_allclose(case.gradient(load(name)), CLOSED_FORMS[name](case), atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_dpo_loss_and_gradient(seed):
    case = random_case(seed, groups=2, n=8)  # the first half of the rows as chosen, the second as rejected
    full = case.batch()
    chosen, rejected = (
        type(full)(full.logp[rows], full.mu_logp[rows], full.mask[rows], full.reward[rows], full.positive[rows])
        for rows in (slice(0, 8), slice(8, 16))
    )
    loss = load("dpo")(PairBatch(chosen, rejected)).loss
    margin = 0.1 * (case.delta[:8] - case.delta[8:])
    np.testing.assert_allclose(loss.detach().numpy(), np.log(1 + np.exp(-margin)), atol=TOLERANCE)
    (grad,) = torch.autograd.grad(loss.mean(), case.theta)
    expected = mean_of(-0.1 / (1 + np.exp(margin)), case.score[:8] - case.score[8:])
    np.testing.assert_allclose(grad.numpy(), expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("normalize", [True, False])
def test_tapered_ratio_variants(seed, normalize):
    """Method: token −(1/T) Σ_t clip(r_t) R logπ_t; geometric w = clip(exp(Δ/T)); user limits on both sides."""
    case = random_case(seed, baseline=-0.2)
    limits = {"a_pos": 0.7, "b_pos": 1.4, "a_neg": 0.2, "b_neg": 0.9, "length_normalize": normalize}
    low, high = np.where(case.positive, 0.7, 0.2), np.where(case.positive, 1.4, 0.9)
    divisor = case.length if normalize else np.ones(len(case.length))

    w = np.clip(np.exp(case.delta), low, high)
    actual = case.gradient(load("topr", ratio="sequence", **limits))
    np.testing.assert_allclose(actual, mean_of(-w * case.R / divisor, case.score), atol=TOLERANCE)

    w = np.clip(np.exp(case.delta / case.length), low, high)
    actual = case.gradient(load("topr", ratio="geometric", **limits))
    np.testing.assert_allclose(actual, mean_of(-w * case.R / divisor, case.score), atol=TOLERANCE)

    w_t = np.clip(np.exp(case.delta_t), low[:, None], high[:, None])
    actual = case.gradient(load("topr", ratio="token", **limits))
    expected = mean_of(-w_t * (case.R / divisor)[:, None], case.score_t)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("ratio", ["sequence", "token", "geometric"])
@pytest.mark.parametrize("kind", ["group", "group_std", "leave_one_out"])
def test_tapered_advantages(kind, ratio):
    """Method: A in R's place, of all n samples, and its sign picks the limits; where A = 0 there is no gradient."""
    case = random_case(0)
    case.reward[case.group == case.group[0]] = 1.0  # a group of one kind, of positive rewards: A = 0
    A = case.reward - (
        case.others_mean(case.reward) if kind == "leave_one_out" else case.over_group(case.reward, np.mean)
    )
    if kind == "group_std":
        A = A / (case.over_group(case.reward, lambda r: np.std(r, ddof=1)) + 1e-4)
    low, high = np.where(A > 0, 0.7, 0.2), np.where(A > 0, 1.4, 0.9)
    limits = {"a_pos": 0.7, "b_pos": 1.4, "a_neg": 0.2, "b_neg": 0.9, "ratio": ratio, "advantage": kind}
    if ratio == "token":
        w = np.clip(np.exp(case.delta_t), low[:, None], high[:, None])
    else:
        delta = case.delta / (case.length if ratio == "geometric" else 1)
        w = np.repeat(np.clip(np.exp(delta), low, high)[:, None], 2, axis=1)
    actual = case.gradient(load("topr", **limits))
    np.testing.assert_allclose(actual, mean_of(-w * (A / case.length)[:, None], case.score_t), atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_ppo_token_ratio(seed):
    case = random_case(seed, baseline=0.1)
    r, R = np.exp(case.delta_t), case.R[:, None]
    alive = np.where(R > 0, r <= 1.3, r >= 0.9)
    expected = mean_of(-(alive * r * R / case.length[:, None]), case.score_t)
    actual = case.gradient(load("ppo", ratio="token", eps_low=0.1, eps_high=0.3))
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_grpo_without_std_and_with_length_normalisation(seed):
    case = random_case(seed)
    A = (case.reward - case.over_group(case.reward, np.mean))[:, None]
    r = np.exp(case.delta_t)
    alive = np.where(A > 0, r <= 1.2, r >= 0.8)
    expected = mean_of(-(alive * r * A / case.length[:, None]), case.score_t)
    actual = case.gradient(load("grpo", normalize_std=False, length_normalize=True))
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_off_policy_mask(name, seed):
    """DeepSeek-V3.2: a response with A < 0 and a mean of −δ_t above 0.5 has no gradient and stays in the count."""
    case = random_case(seed)
    loss, masked = load(name), load(name, off_policy_mask=0.5)
    dropped = (case.centered < 0) & (-case.delta / case.length > 0.5)
    output = masked(case.batch())
    np.testing.assert_array_equal(output.metrics["masked"].numpy(), dropped)
    assert 0 < dropped.sum() < len(dropped)
    (kept,) = torch.autograd.grad(loss(case.batch()).loss[torch.tensor(~dropped)].sum() / len(dropped), case.theta)
    np.testing.assert_allclose(case.gradient(masked), kept.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_oapl_to_the_reference_is_a_star_po(seed):
    case = random_case(seed, low=0.0)
    residual = 0.3 * case.ref_delta_t.sum(1) - (case.reward - optimal_value(case, 0.7))
    loss = load("oapl", anchor="ref", beta=0.3, beta_value=0.7)
    np.testing.assert_allclose(case.gradient(loss), mean_of(2 * residual * 0.3, case.score), atol=TOLERANCE)
    np.testing.assert_allclose(loss(case.batch()).loss.detach().numpy(), residual**2, atol=TOLERANCE)


@pytest.mark.parametrize("tau", [1e-9, 0.04, 0.5, 2.0, 1e9])
def test_m2po_drops_as_few_tokens_as_leave_a_mean_below_tau(tau):
    case = random_case(1)
    case.y[5:10] = case.y[:5]  # equal tokens go together
    loss = load("m2po", tau=tau)
    kept = m2po_kept(case, tau)
    limit = loss.signals(case.batch())["limit"].numpy()
    np.testing.assert_array_equal((case.delta_t**2 < limit[:, None]) & MASK[case.y], kept)
    assert kept.any() == (tau > 1e-9)
    assert kept.sum() == MASK[case.y].sum() or tau < 1e9


@pytest.mark.parametrize("seed", range(3))
def test_plain_rloo_needs_no_reference(seed):
    case = random_case(seed)
    loss = load("rloo", beta=0.0)
    assert loss.needs == {"group_rewards"}
    expected = mean_of(-(case.reward - case.others_mean(case.reward)), case.score)
    np.testing.assert_allclose(case.gradient(loss, case.batch(ref_logp=None)), expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("estimator", ["future_only", "exact_one_step"])
def test_agro_token_estimators(seed, estimator):
    """AGRO Section 6: Σ_t Σ_t'≥t δ_t' ∇logπ_t, and with Σ_t [KL_t'>t ∇logπ_t + ∇KL_t]; the rest of Eq. 4 stays."""
    case, beta = random_case(seed), 0.3
    kl, kl_grad = token_kl(case.logits, case.ref)
    d, kl = case.ref_delta_t, kl[case.y]
    if estimator == "future_only":
        regularizer = (d.sum(1) * case.score_t[:, 0].T).T + (d[:, 1] * case.score_t[:, 1].T).T
    else:
        regularizer = (kl[:, 1] * case.score_t[:, 0].T).T + kl_grad[case.y].sum(1)
    rest = case.reward - case.others_mean(case.reward) + beta * case.others_mean(d.sum(1))
    expected = -(rest[:, None] * case.score - beta * regularizer).mean(0)
    actual = case.gradient(load("agro", beta=beta, estimator=estimator))
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("square_baseline", ["others_variance", "leave_one_out"])
def test_agro_on_policy_square_baselines(seed, square_baseline):
    case, beta = random_case(seed), 0.3
    S = case.reward - beta * case.ref_delta_t.sum(1)
    A, n = S - case.others_mean(S), case.n
    if square_baseline == "leave_one_out":
        b = case.others_mean(A**2)
    else:
        index = np.arange(len(S))
        others = [S[(case.group == case.group[i]) & (index != i)] for i in index]
        b = np.array([n / (n - 1) * np.var(o, ddof=1) for o in others])
    expected = mean_of(-(A - (A**2 - b) / (2 * beta)), case.score)
    actual = case.gradient(load("agro_on_policy", beta=beta, square_baseline=square_baseline))
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
