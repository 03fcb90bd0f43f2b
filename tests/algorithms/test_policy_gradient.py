"""The grammar of policy gradients: its rows against the losses that have a class, its limits, what masks survive."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import LOGITS, load, mask_of, probability, random_case, rng
from tests.algorithms.test_loss_propositions import whole_language
from tests.conftest import refused
from topr_exp.algorithms.masks import Mask
from topr_exp.algorithms.policy_gradient import PolicyGradient
from topr_exp.algorithms.topr import Tapered
from topr_exp.types import Batch, ConfigError

INF = math.inf
PPO = {"rule": "ppo", "a_pos": 0.0, "b_pos": 1.2, "a_neg": 0.8, "b_neg": INF}
GROUP = {"advantage": "group_std"}
NARROW = {"b_pos": 1.0004, "a_neg": 0.9997}
DEEPSEEK = {"mask": [mask_of("ratio", "mean", math.exp(-0.5), None, "signed")]}
SAME = {  # a loss with a class of its own: the row that it is; the values are one but where the row divides by T
    "topr": ({}, {"a_pos": 1.0, "b_pos": 1.0, "a_neg": 0.0, "b_neg": 1.0, "length_normalize": True}),
    "ppo": ({}, {**PPO, "length_normalize": True}),
    "ppo of tokens": ({"ratio": "token"}, {**PPO, "ratio": "token", "length_normalize": True}),
    "grpo": ({}, {**PPO, **GROUP, "ratio": "token"}),
    "grpo without std": ({"advantage": "group"}, {**PPO, "advantage": "group", "ratio": "token"}),
    "grpo, masked": ({"off_policy_mask": 0.5}, {**PPO, **GROUP, "ratio": "token", **DEEPSEEK}),
    "gspo": ({}, {**PPO, **NARROW, **GROUP, "ratio": "geometric", "length_normalize": True}),
    "gspo, masked": (
        {"off_policy_mask": 0.5},
        {**PPO, **NARROW, **GROUP, "ratio": "geometric", "length_normalize": True, **DEEPSEEK},
    ),
    "cispo": ({"cap": 1.2}, {**GROUP, "ratio": "token", "a_pos": 0.0, "b_pos": 1.2, "a_neg": 0.0, "b_neg": 1.2}),
}


def gradient(case: Any, loss: Any) -> np.ndarray:
    return np.array(case.gradient(loss))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("which", SAME)
def test_a_loss_is_its_row(which: str, seed: int) -> None:
    changes, row = SAME[which]
    case = random_case(seed, low=0.0)
    loss, same = load(which.split()[0].rstrip(","), **changes), load("policy_gradient", **row)
    np.testing.assert_allclose(gradient(case, loss), gradient(case, same), rtol=0, atol=1e-12)
    if "gspo" not in which:
        torch.testing.assert_close(loss(case.batch()).loss, same(case.batch()).loss, rtol=0, atol=1e-12)


def test_where_r_is_0_correctness_chooses_the_limits() -> None:
    batch = random_case(0).batch()
    batch = dataclasses.replace(batch, reward=torch.zeros_like(batch.reward), baseline=0.0)
    assert batch.positive.any()
    ratio = (batch.logp - batch.mu_logp).where(batch.mask, 0.0).sum(1).exp()
    assert (ratio[~batch.positive] < 0.9).any()
    weight = load("topr")(batch).metrics["weight"]
    torch.testing.assert_close(weight, ratio.clamp(max=1).where(~batch.positive, 1.0))


@pytest.mark.parametrize("ratio", ["sequence", "token", "prefix", "geometric"])
def test_neutral_settings_change_nothing(ratio: str) -> None:
    """Bands that hold all, a correction without a gap, the rule where no limit is reached."""
    case = random_case(1)
    case.old = case.mu
    wide = [mask_of("ratio", "token", 0.0, 1e9), mask_of("divergence", "largest", None, 1e9, "signed")]
    plain = gradient(case, load("policy_gradient", ratio=ratio))
    for change in ({"mask": wide}, {"correction": INF}, {"correction": 1.0}, {"denominator": "old"}, {"rule": "ppo"}):
        found = gradient(case, load("policy_gradient", ratio=ratio, **change))
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-13, err_msg=str(change))


@pytest.mark.parametrize(
    "name", ["decoupled_ppo", "icepop", "dppo_tv", "dppo_kl", "ipo", "mis", "trust_region_mask", "vaco"]
)
def test_at_one_policy_a_row_is_reinforce(name: str) -> None:
    case = random_case(2, on_policy=True)
    case.old = case.mu
    loss = load(name)
    plain = load("topr", b_neg=1.0, a_neg=1.0, advantage=loss.advantage, length_normalize=loss.length_normalize)
    np.testing.assert_allclose(gradient(case, load(name)), gradient(case, plain), rtol=0, atol=1e-12)


def test_pi_old_cancels_from_the_corrected_ratio() -> None:
    """π/π_old times π_old/μ of the whole response is π/μ: the policy's gradient whatever μ and π_old (Eq. 5)."""
    case = whole_language(0)
    case.old = rng(9).normal(size=LOGITS)
    loss = load("policy_gradient", denominator="old", correction=INF, correction_level="sum")
    total = (torch.tensor(probability(case.mu)) * loss(case.batch()).loss).sum()
    (found,) = torch.autograd.grad(total, case.theta)
    expected = -((probability(case.logits) * case.reward)[:, None] * case.score).sum(0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    by_token = load("policy_gradient", denominator="old", correction=INF)
    assert np.abs(gradient(case, by_token) - gradient(case, loss)).max() > 1e-3  # which is another estimate


def test_prefix_ratios_correct_what_came_before() -> None:
    """E_μ[Π_{u≤t} r_u ∇log π_t R] = E over prefixes of π of ∇log π_t times what μ gets from there on."""
    case = whole_language(3)
    loss = load("policy_gradient", ratio="prefix")
    (found,) = torch.autograd.grad((torch.tensor(probability(case.mu)) * loss(case.batch()).loss).sum(), case.theta)
    pi, mu, expected = probability(case.logits), probability(case.mu), np.zeros(LOGITS)
    first = [[0], [1, 2, 3], [4, 5, 6]]  # the responses that begin with [2], 0, 1
    for rows in first:
        value = (mu[rows] * case.reward[rows]).sum() / mu[rows].sum()
        expected -= pi[rows].sum() * value * case.score_t[rows[0], 0]
    expected -= (pi[1:, None] * case.reward[1:, None] * case.score_t[1:, 1]).sum(0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def far(delta: float, epsilon: float, reward: float) -> Batch:
    """One response of three tokens in float32, the second of which has moved by δ from π_old, which is ε from μ."""
    old = torch.full((1, 3), -0.7)
    logp = (old + torch.tensor([[0.0, delta, 0.0]])).requires_grad_()
    mu = old - torch.tensor([[0.0, epsilon, 0.0]])
    group = {"group_mean": torch.zeros(1), "group_std": torch.ones(1), "group_size": torch.full((1,), 4)}
    verdict = torch.tensor([reward > 0])
    return Batch(logp, mu, torch.ones(1, 3, dtype=torch.bool), torch.tensor([reward]), verdict, old_logp=old, **group)


@pytest.mark.parametrize("reward", [1.0, -1.0])
@pytest.mark.parametrize(("delta", "epsilon"), [(30.0, 0.0), (-30.0, 0.0), (0.0, -30.0), (1e3, 1e3), (-1e3, -1e3)])
@pytest.mark.parametrize("name", ["icepop", "ipo", "mis", "trust_region_mask", "policy_gradient"])
def test_what_is_dropped_is_never_exponentiated(name: str, delta: float, epsilon: float, reward: float) -> None:
    change = {"ratio": "token", "mask": [mask_of("ratio", "token", 0.5, 2.0), mask_of("old_ratio", "token", 0.5, 2.0)]}
    loss = load(name, **(change if name == "policy_gradient" else {}))
    batch = far(delta, epsilon, reward)
    output = loss(batch)
    (found,) = torch.autograd.grad(output.loss.sum(), batch.logp)
    assert torch.isfinite(output.loss).all()
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(value).all() for key, value in output.metrics.items() if key != "correction")


@pytest.mark.parametrize(("name", "reward", "moved", "kept"), [
    ("dppo_tv", 1.0, 0.2, False), ("dppo_tv", 1.0, -0.2, True), ("dppo_tv", -1.0, -0.2, False),
    ("dppo_tv", -1.0, 0.2, True), ("dppo_tv", 1.0, 0.1, True), ("ipo", 1.0, -0.2, False), ("ipo", 1.0, 0.05, True),
    ("dppo_kl", 1.0, 0.2, False), ("dppo_kl", -1.0, 0.2, True), ("dppo_kl", 1.0, 0.1, True),
])  # fmt: skip
def test_masks_by_hand(name: str, reward: float, moved: float, kept: bool) -> None:
    """A token of probability 0.5 under μ whose probability has moved: by 0.2 the binary KL is 0.087, by 0.1 0.020."""
    mu = torch.tensor([[math.log(0.5)]])
    logp = torch.tensor([[math.log(0.5 + moved)]], requires_grad=True)
    group = {"group_mean": torch.zeros(1), "group_std": torch.ones(1), "group_size": torch.full((1,), 4)}
    batch = Batch(logp, mu, torch.ones(1, 1).bool(), torch.tensor([reward]), torch.tensor([reward > 0]), **group)
    (found,) = torch.autograd.grad(load(name)(batch).loss.sum(), logp)
    assert float(found) == pytest.approx(-reward * (0.5 + moved) / 0.5 if kept else 0.0)


@pytest.mark.parametrize("name", ["topr", "tis", "is", "naive", "sft"])
def test_a_member_of_toprs_family_with_a_setting_of_the_grammar_is_of_the_grammar(name: str) -> None:
    assert type(load(name)) is Tapered
    corrected = load(name, correction=2.0, advantage="group")
    assert type(corrected) is PolicyGradient
    expected = dataclasses.asdict(load(name, advantage="group"))
    assert dataclasses.asdict(corrected).items() >= expected.items()
    assert corrected.correction == 2.0


@pytest.mark.parametrize("ratio", ["sequence", "token", "geometric", "prefix"])
@pytest.mark.parametrize("name", ["topr", "tis", "is", "naive", "sft"])
def test_the_grammar_without_its_factors_is_toprs_family_to_the_digit(name: str, ratio: str) -> None:
    case = random_case(4, baseline=0.3)
    plain, extended = load(name, ratio=ratio)(case.batch()), load(name, ratio=ratio, rule="clip")(case.batch())
    assert torch.equal(plain.loss, extended.loss)
    assert all(torch.equal(plain.metrics[key], extended.metrics[key]) for key in plain.metrics)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"ratio": "bogus"}, "ratio=bogus: expected one of sequence, token, geometric, prefix"),
        ({"mask": [3]}, r"mask\[0\]=3: expected"),
        ({"a_pos": "1"}, "a_pos=1: expected"),
        ({"a_pos": math.nan}, "a_pos=nan: expected a number"),
        ({"advantage": "bogus"}, "advantage=bogus: expected one of reward, group"),
        ({"a_neg": -1}, "a_neg must be at least 0 and finite; got -1.0"),
        ({"length_normalize": 1}, "length_normalize=1: expected"),
        ({"b_neg": -1}, "b_neg must be at least a_neg"),
    ],
)
def test_a_loss_built_in_python_is_checked_as_settings_are(given: dict[str, Any], line: str) -> None:
    right: dict[str, Any] = {"name": "mine", "a_pos": 1, "b_pos": np.float64(1), "a_neg": 0, "b_neg": 1,
                             "ratio": "token", "length_normalize": True}  # fmt: skip
    built = PolicyGradient(**right)
    assert (built.ratio, built.b_neg, type(built.b_neg), type(built.b_pos)) == ("token", 1.0, float, float)
    masks = [Mask("difference", low=-math.inf, high=0.1)]
    assert PolicyGradient(**right, mask=masks, advantage="group").mask == masks
    with refused(line, ConfigError):
        PolicyGradient(**right | given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"statistic": "ratio", "high": 0.0}, "high must be null or above 0"),
        ({"statistic": "divergence", "high": -0.1}, "high must be 0 or more"),
        ({"statistic": "difference", "low": 1.5}, "low must be at most 1"),
        ({"statistic": "difference", "high": -1.5}, "high must be at least -1"),
    ],
)
def test_a_band_that_drops_everything_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Mask(**given)
