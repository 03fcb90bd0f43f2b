"""Losses that must coincide: one family under other limits, PPO without clipping, AGRO and RLOO on-policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import (
    all_groups,
    expected_gradient,
    load,
    probability,
    random_case,
    rng,
    token_logp,
    token_score,
)

SEEDS = range(4)
INF = float("inf")


def assert_same_gradient(case, one, other):
    np.testing.assert_allclose(case.gradient(one), case.gradient(other), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("one", "changes", "other"),
    [
        ("tis", {"b_pos": INF, "b_neg": INF}, "is"),
        ("topr", {"a_neg": 1.0}, "naive"),
        ("topr", {"b_neg": 0.0}, "sft"),
        ("topr", {"a_pos": 0.0}, "tis"),
    ],
)
def test_table_1_is_one_loss(seed, one, changes, other):
    assert_same_gradient(random_case(seed, baseline=0.2), load(one, **changes), load(other))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ratio", ["sequence", "token"])
@pytest.mark.parametrize("normalize", [True, False])
def test_ppo_that_never_clips_is_off_policy_reinforce(seed, ratio, normalize):
    fields = {"ratio": ratio, "length_normalize": normalize}
    assert_same_gradient(
        random_case(seed, baseline=-0.4), load("ppo", eps_low=1.0, eps_high=INF, **fields), load("is", **fields)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_all_but_sft_agree_at_step_0(seed):
    case = random_case(seed, baseline=0.1, on_policy=True)
    for name in ("topr", "tis", "is", "ppo"):
        for ratio in ("sequence", "token"):
            np.testing.assert_allclose(
                case.gradient(load(name, ratio=ratio)), case.gradient(load("naive")), rtol=1e-12, atol=1e-14
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_baseline_of_minus_one_drops_the_negatives(seed):
    """R = 0 for negatives at c = −1, so naive REINFORCE is SFT with twice the weight (TOPR, Section 3.1)."""
    case = random_case(seed, baseline=-1.0)
    plain = random_case(seed)
    np.testing.assert_allclose(case.gradient(load("naive")), 2 * plain.gradient(load("sft")), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_ratio_variants_agree_for_one_token(seed):
    case = random_case(seed)
    case.y[:] = 0  # the only response of one token
    for ratio in ("token", "geometric"):
        assert_same_gradient(case, load("topr", ratio=ratio), load("topr", ratio="sequence"))


@pytest.mark.parametrize("seed", SEEDS)
def test_group_relative_relatives_meet(seed):
    """Without their own ingredient OPMD, AsymRE, REC and unclipped on-policy GRPO are REINFORCE with the group mean."""
    case = random_case(seed, on_policy=True)
    reinforce = load("asymre", delta_v=0.0)
    for other in (
        load("opmd", tau=0.0),
        load("opmd"),  # on-policy Δ = 0, so the penalty has no gradient
        load("rec"),
        load("grpo", normalize_std=False),
    ):
        assert_same_gradient(case, reinforce, other)
    n = case.n
    np.testing.assert_allclose(
        case.gradient(load("rloo", beta=0.0)), n / (n - 1) * case.gradient(reinforce), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["gspo", "cispo", "vespo", "m2po", "sapo", "oapl"])
def test_at_ratio_1_it_is_reinforce_with_its_advantage(name, seed):
    """−A ∇logπ; of gspo and sapo divided by T, of oapl (A = r − V*) times 2β."""
    case = random_case(seed, on_policy=True, low=0.0)
    value = case.over_group(case.reward, lambda r: 0.5 * np.log(np.mean(np.exp(r / 0.5))))
    A = {"vespo": case.centered, "oapl": case.reward - value}.get(name, case.standard)
    factor = {"gspo": 1 / case.length, "sapo": 1 / case.length, "oapl": 2e-3}.get(name, 1.0)
    expected = -((factor * A)[:, None] * case.score).mean(0)
    np.testing.assert_allclose(case.gradient(load(name)), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
def test_gspo_is_grpo_for_one_token(seed):
    case = random_case(seed)
    case.y[:] = 0  # the only response of one token
    limits = {"eps_low": 0.2, "eps_high": 0.2}
    assert_same_gradient(case, load("gspo", **limits), load("grpo", **limits))


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_that_never_caps_is_grpo_that_never_clips(seed):
    case = random_case(seed)
    assert_same_gradient(case, load("cispo", cap=INF), load("grpo", eps_low=1.0, eps_high=INF))
    assert_same_gradient(case, load("m2po", tau=INF), load("grpo", eps_low=1.0, eps_high=INF))


def group_regressions(case, beta, log_ratio):
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["tba", "pairs", "gvpo"])
def test_regressions_over_a_group_are_agro_up_to_a_factor(name, seed):
    """TBA, CoPG, REBEL and GVPO (docs/algorithms.md), with one reference."""
    case, beta = random_case(seed), 0.3
    batch = case.batch()
    loss, factor = group_regressions(case, beta, (batch.logp - batch.ref_logp).sum(1))[name]
    (grad,) = torch.autograd.grad(loss, case.theta)
    np.testing.assert_allclose(grad.numpy(), factor * case.gradient(load("agro", beta=beta)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("seed", SEEDS)
def test_dro_with_the_groups_mean_as_value_is_opmd_up_to_a_factor(seed):
    """½ (r − r̄ − τΔ)²: τ times OPMD's gradient."""
    case, tau = random_case(seed), 0.3
    batch = case.batch()
    residual = torch.tensor(case.centered) - tau * (batch.logp - batch.mu_logp).sum(1)
    (grad,) = torch.autograd.grad(residual.square().mean() / 2, case.theta)
    np.testing.assert_allclose(grad.numpy(), tau * case.gradient(load("opmd", tau=tau)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_pg_with_the_reference_as_policy_is_plain_rloo(seed):
    case = random_case(seed)
    case.ref[:] = case.logits
    assert_same_gradient(case, load("kl_pg"), load("rloo", beta=0.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_agro_is_rloo_on_policy_and_only_there(seed):
    on_policy, off_policy = random_case(seed, on_policy=True), random_case(seed)
    agro, rloo = load("agro", beta=0.3), load("rloo", beta=0.3)
    assert_same_gradient(on_policy, agro, rloo)
    assert np.abs(off_policy.gradient(agro) - off_policy.gradient(rloo)).max() > 1e-3


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ["agro", "rloo"])
def test_agro_and_rloo_on_policy_ascend_the_regularised_reward(name, n):
    """In expectation over n samples of π the gradient of E_π[r] − β KL(π ‖ π_ref) (AGRO, Section 5.2)."""
    beta, r = 0.4, rng(n)
    logits, ref = r.normal(size=(2, 9))
    reward = r.integers(0, 2, 7).astype(float)
    case, weight = all_groups(logits, ref, n, reward)
    actual = expected_gradient(case, weight, load(name, beta=beta))
    S = reward - beta * (token_logp(logits) - token_logp(ref)).sum(1)
    expected = -((probability(logits) * S)[:, None] * token_score(logits).sum(1)).sum(0)
    np.testing.assert_allclose(actual, expected, atol=1e-10)
