"""Score centering by enumeration: under a sampler that is not the policy a constant advantage has no drift."""

import dataclasses

import numpy as np
import pytest
import torch

import topr_exp
from tests.algorithms.tabular_policies import (
    FAMILY,
    LOGITS,
    MASK,
    PPO,
    STATES,
    all_groups,
    load,
    log_table,
    rng,
    token_score,
)
from tests.conftest import refused
from topr_exp.types import Batch, ConfigError

NAIVE, IS, TIS, TOPR = (FAMILY[name] for name in ("naive", "is", "tis", "topr"))


MIXED_REWARD = np.array([1.0, -1, 1, -1, -1, 1, 1])


def random_logits(seed):
    return rng(seed).normal(size=LOGITS)


def all_single(policy_seed, sampler_seed, reward):
    """Each completion alone, weighed by the sampler."""
    logits = random_logits(policy_seed)
    return all_groups(logits, logits, 1, reward, mu=random_logits(sampler_seed))


def batch_with_head(case, k=3):
    """The batch of a case with the head of its sampler's k likeliest tokens."""
    states = STATES[case.y]
    head_mu_logp, head = log_table(torch.tensor(case.mu))[states].topk(k)
    head_logp = log_table(case.theta)[states].gather(-1, head)
    return case.batch(head_logp=head_logp, head_mu_logp=head_mu_logp)


def gradient_with_head(case, loss, k=3):
    return case.gradient(loss, batch_with_head(case, k))


def policy_gradient(*, center_scores=True, **settings):
    return load("policy_gradient", length_normalize=False, center_scores=center_scores, **settings)


def drift(loss, advantage):
    """The largest slope of the expected loss where every completion has the same reward."""
    case = all_single(0, 1, np.full(7, advantage))
    return np.abs(gradient_with_head(case, loss)).max()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", ["token", "prefix", "min_prefix"])
@pytest.mark.parametrize("limits", [NAIVE, TIS, TOPR, PPO], ids=["naive", "tis", "topr", "ppo"])
def test_a_constant_advantage_has_no_drift(limits, ratio, advantage):
    assert drift(policy_gradient(ratio=ratio, center_scores=False, **limits), advantage) > 1e-2
    assert drift(policy_gradient(ratio=ratio, **limits), advantage) < 1e-12


@pytest.mark.parametrize("ratio", ["sequence", "geometric"])
def test_equal_limits_have_no_drift_at_any_ratio_and_others_do(ratio):
    assert drift(policy_gradient(ratio=ratio, **NAIVE), -1.0) < 1e-12
    assert drift(policy_gradient(ratio=ratio, **TOPR), -1.0) > 1e-3  # a weight of the whole completion leaves one


@pytest.mark.parametrize("ratio", ["token", "prefix", "min_prefix"])
def test_where_the_ratio_is_not_limited_there_is_nothing_to_subtract(ratio):
    case = all_single(1, 2, MIXED_REWARD)
    centering_loss = policy_gradient(ratio=ratio, **IS)
    plain_loss = policy_gradient(ratio=ratio, center_scores=False, **IS)

    gradient = gradient_with_head(case, centering_loss)

    assert gradient == pytest.approx(gradient_with_head(case, plain_loss), abs=1e-12)


def test_the_gradient_of_one_completion_by_hand():
    """−A Σ_t (s_t − Σ_v q_v s_v), with the scores of a softmax written out: s_v = e_v − p."""
    case = all_single(3, 4, np.array([1.0, 2, 0, -1, 0.5, 3, 1]))

    gradient = gradient_with_head(case, policy_gradient(ratio="sequence", **NAIVE))

    p = log_table(torch.tensor(case.logits)).exp().numpy()
    q = log_table(torch.tensor(case.mu)).exp().numpy()
    expected = np.zeros((3, 3))
    completion_scores = token_score(case.logits).sum(1).reshape(7, 3, 3)
    for y, score in enumerate(completion_scores):
        states = STATES[y][MASK[y]]
        score[states] -= q[states] - p[states]
        expected -= case.weight[y] * case.reward[y] * score
    assert gradient == pytest.approx(expected.ravel(), abs=1e-12)


@pytest.mark.parametrize("settings", [{"ratio": "sequence", **NAIVE}, {"ratio": "token", **TIS}], ids=["naive", "tis"])
def test_a_tail_in_proportion_to_the_policy_makes_a_head_exact(settings):
    """Of three tokens the head has one; outside it the sampler is the policy times α at each state."""
    logits = random_logits(4)
    sampler = log_table(torch.tensor(logits)).exp().numpy()
    sampler[:, 0] += 2.0  # the likeliest token of every state
    case = all_groups(logits, logits, 1, np.ones(7), mu=np.log(sampler).ravel())

    gradient = gradient_with_head(case, policy_gradient(**settings), k=1)

    assert np.abs(gradient).max() < 1e-12


def test_padding_and_the_split_of_a_batch_change_nothing():
    case = all_single(5, 6, MIXED_REWARD)
    loss = policy_gradient(ratio="token", **TOPR)
    batch = batch_with_head(case)
    padding = ~batch.mask[..., None]
    with_other_padding = dataclasses.replace(
        batch,
        head_logp=batch.head_logp.masked_fill(padding, -3.0),
        head_mu_logp=batch.head_mu_logp.masked_fill(padding, -2.0),
    )
    fields = ("logp", "mu_logp", "mask", "reward", "positive", "head_logp", "head_mu_logp")
    first_rows = Batch(**{name: getattr(batch, name)[:3] for name in fields})

    losses = loss(batch).loss

    assert torch.equal(loss(with_other_padding).loss, losses)
    assert torch.equal(loss(first_rows).loss, losses[:3])


def test_a_token_that_could_not_be_drawn_has_no_part():
    case = all_single(7, 8, np.ones(7))
    batch = batch_with_head(case)
    drawable = batch.head_mu_logp[..., :2].log_softmax(-1)
    undrawable = torch.full_like(drawable[..., :1], -torch.inf)
    with_undrawable = dataclasses.replace(batch, head_mu_logp=torch.cat([drawable, undrawable], -1))
    without = dataclasses.replace(batch, head_logp=batch.head_logp[..., :2], head_mu_logp=drawable)
    loss = policy_gradient(ratio="token", **IS)

    losses = loss(with_undrawable).loss

    assert losses.isfinite().all()
    assert torch.allclose(losses, loss(without).loss, atol=1e-14)


# ---- where it can be used


def test_a_batch_without_the_head_of_its_sampler_is_refused():
    case = all_single(0, 1, np.ones(7))

    with refused(r"^Batch\.head_logp is missing"):
        policy_gradient(ratio="token", **TOPR)(case.batch())


def test_a_head_of_more_than_the_vocabulary_is_refused():
    logits = torch.zeros(1, 2, 7)
    ids = torch.tensor([[0, 1]])
    options = {"mu_logp": torch.zeros(1, 1), "reward": torch.ones(1), "sampler_logits": logits}

    with refused("^head_size must be 1 to 7, the vocabulary; got 8$"):
        topr_exp.batch_from_logits(logits, ids, ids, **options, head_size=8)


def test_it_is_refused_beside_what_its_head_has_no_numbers_for():
    with refused(r"^algo\.center_scores must be false with a mask, a correction", ConfigError):
        policy_gradient(correction=2.0)
