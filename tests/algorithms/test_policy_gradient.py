"""The grammar of policy gradients: its rows against the losses that have a class, its limits, what masks survive."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.algorithms.tabular_policies import (
    FAMILY,
    INF,
    LOGITS,
    PPO,
    all_completions,
    group_of_four,
    limits,
    load,
    mask_of,
    probability,
    random_case,
    rng,
)
from tests.conftest import refused
from topr_exp.algorithms.policy_gradient import PolicyGradient
from topr_exp.types import Batch, ConfigError

GRPO = {**PPO, "advantage": "group_std", "ratio": "token"}
GSPO = {**GRPO, "b_pos": 1.0004, "a_neg": 0.9997, "ratio": "geometric", "length_normalize": True}
DEEPSEEK = [mask_of("ratio", "mean", math.exp(-0.5), None, "signed")]


@pytest.mark.parametrize(
    "name, changes, row",
    [
        ("topr", {}, {**FAMILY["topr"], "length_normalize": True}),
        ("ppo", {}, {**PPO, "length_normalize": True}),
        ("ppo", {"ratio": "token"}, {**PPO, "ratio": "token", "length_normalize": True}),
        ("grpo", {}, GRPO),
        ("grpo", {"off_policy_mask": 0.5}, {**GRPO, "mask": DEEPSEEK}),
        ("gspo", {}, {**GSPO, "mask": DEEPSEEK}),  # whose clip drops what that mask would
        ("cispo", {"cap": 1.2}, {**GRPO, "rule": "clip", "a_neg": 0.0, "b_neg": 1.2}),
    ],
    ids=str,
)
def test_a_loss_is_its_row(name, changes, row):
    case = random_case(0, low=0.0)

    gradient = case.gradient(load("policy_gradient", **row))

    assert_allclose(gradient, case.gradient(load(name, **changes)), rtol=0, atol=1e-12)


WIDE_MASKS = [mask_of("ratio", "token", 0.0, 1e9), mask_of("divergence", "largest", None, 1e9, "signed")]
CORRECTED = {"denominator": "old", "correction": INF}
NEUTRAL = [{"mask": WIDE_MASKS}, CORRECTED, {**CORRECTED, "correction": 1.0}, {"rule": "ppo"}]


@pytest.mark.parametrize("ratio", ["sequence", "token", "prefix", "min_prefix", "geometric"])
@pytest.mark.parametrize("changes", NEUTRAL, ids=str)
def test_neutral_settings_change_nothing(changes, ratio):
    """Bands that hold all, a correction without a gap, the rule where no limit is reached."""
    case = random_case(1)
    case.old = case.mu

    gradient = case.gradient(load("policy_gradient", ratio=ratio, **changes))

    plain = case.gradient(load("policy_gradient", ratio=ratio))
    assert_allclose(gradient, plain, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["decoupled_ppo", "icepop", "dppo_tv", "dppo_kl", "ipo", "mis", "trust_region_mask", "vaco"]
)
def test_at_one_policy_a_row_is_reinforce(name):
    case = random_case(2, on_policy=True)
    case.old = case.mu
    loss = load(name)

    gradient = case.gradient(loss)

    reinforce = load("naive", advantage=loss.advantage, length_normalize=loss.length_normalize)
    assert_allclose(gradient, case.gradient(reinforce), rtol=0, atol=1e-12)


def test_pi_old_cancels_from_the_corrected_ratio():
    """π/π_old times π_old/μ of the whole completion is π/μ: the policy's gradient whatever μ and π_old (Eq. 5)."""
    case = all_completions(0)
    case.old = rng(9).normal(size=LOGITS)
    loss = load("policy_gradient", correction_level="sum", **CORRECTED)

    gradient = case.gradient(loss)

    policy_gradient = (probability(case.logits) * case.reward) @ case.score
    assert_allclose(gradient, -policy_gradient, atol=1e-12)
    of_token_corrections = case.gradient(load("policy_gradient", correction_level="token", **CORRECTED))
    assert np.abs(of_token_corrections - gradient).max() > 1e-3  # another estimate


def test_prefix_ratios_correct_what_came_before():
    """E_μ[Π_{u≤t} r_u ∇log π_t R] = E over prefixes of π of ∇log π_t times what μ gets from there on."""
    case = all_completions(3)

    gradient = case.gradient(load("policy_gradient", ratio="prefix"))

    pi = probability(case.logits)
    mu = probability(case.mu)
    first_scores, second_scores = case.score_t.transpose(1, 0, 2)
    expected = (pi * case.reward) @ second_scores  # 0 where there is no second token
    for rows in ([0], [1, 2, 3], [4, 5, 6]):  # the completions that begin with [2], 0, 1
        value = mu[rows] @ case.reward[rows] / mu[rows].sum()
        expected += value * pi[rows] @ first_scores[rows]
    assert_allclose(gradient, -expected, atol=1e-12)


BANDS = {"ratio": "token", "mask": [mask_of("ratio", "token", 0.5, 2.0), mask_of("old_ratio", "token", 0.5, 2.0)]}


@pytest.mark.parametrize("delta, epsilon", [(30.0, 0.0), (-30.0, 0.0), (0.0, -30.0), (1e3, 1e3), (-1e3, -1e3)])
@pytest.mark.parametrize(
    "name, changes",
    [("icepop", {}), ("ipo", {}), ("mis", {}), ("trust_region_mask", {}), ("policy_gradient", BANDS)],
)
def test_what_is_dropped_is_never_exponentiated(name, changes, delta, epsilon):
    """A token in float32 that has moved by δ from π_old, which is ε from μ, in a right and in a wrong answer."""
    reward = torch.tensor([1.0, -1.0])
    old_logp = torch.full((2, 3), -0.7)
    second_token = torch.tensor([0.0, 1.0, 0.0])
    logp = (old_logp + delta * second_token).requires_grad_()
    mu_logp = old_logp - epsilon * second_token
    mask = torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(logp, mu_logp, mask, reward, reward > 0, old_logp=old_logp, **group_of_four(2))

    output = load(name, **changes)(batch)

    (gradient,) = torch.autograd.grad(output.loss.sum(), logp)
    assert torch.isfinite(output.loss).all()
    assert torch.isfinite(gradient).all()
    for key, values in output.metrics.items():
        assert key == "correction" or torch.isfinite(values).all(), key


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"ratio": "bogus"}, "ratio=bogus: expected one of sequence, token, geometric, prefix, min_prefix"),
        ({"mask": [3]}, r"mask\[0\]=3: expected"),
        ({"a_pos": math.nan}, "a_pos=nan: expected a number"),
        ({"a_neg": -1}, "a_neg must be at least 0 and finite; got -1.0"),
        ({"b_neg": -1}, "b_neg must be at least a_neg"),
    ],
)
def test_a_loss_built_in_python_is_checked_as_settings_are(changes, line):
    settings = {"name": "mine", "ratio": "token", "length_normalize": True, **limits(1, np.float64(1), 0, 1)}
    loss = PolicyGradient(**settings)
    assert type(loss.b_pos) is type(loss.b_neg) is float

    with refused(line, ConfigError):
        PolicyGradient(**settings | changes)
