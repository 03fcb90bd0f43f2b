"""Score centering by enumeration: under a sampler that is not the policy a constant advantage has no drift."""

import dataclasses

import numpy as np
import pytest
import torch

import topr_exp
from tests.algorithms.tabular_policies import (
    LOGITS,
    MASK,
    STATES,
    all_groups,
    load,
    log_table,
    probability,
    rng,
    token_score,
)
from tests.conftest import config_of
from topr_exp.types import Batch, ConfigError, TOPRError

NAIVE = {"a_pos": 1, "b_pos": 1, "a_neg": 1, "b_neg": 1}
IS = {"a_pos": 0, "b_pos": float("inf"), "a_neg": 0, "b_neg": float("inf")}
TIS = {"a_pos": 0, "b_pos": 1, "a_neg": 0, "b_neg": 1}
TOPR = {"a_pos": 1, "b_pos": 1, "a_neg": 0, "b_neg": 1}
GRPO = {"a_pos": 0, "b_pos": 1.2, "a_neg": 0.8, "b_neg": float("inf"), "rule": "ppo"}
REWARD = np.array([1.0, -1, 1, -1, -1, 1, 1])  # of each response


def random_logits(seed):
    return rng(seed).normal(size=LOGITS)


def all_single(policy_seed, sampler_seed, reward):
    """Each response alone as a case, and its weight in the sampler's expectation."""
    logits = random_logits(policy_seed)
    return all_groups(logits, logits, 1, reward, mu=random_logits(sampler_seed))


def centered(case, k=3):
    """The batch of a case with the head of its sampler's k likeliest tokens."""
    states = torch.tensor(STATES[case.y])
    logp = case.theta.reshape(3, 3).log_softmax(1)[states]
    mu_logp, head = torch.tensor(case.mu).reshape(3, 3).log_softmax(1)[states].topk(k)
    return case.batch(head_logp=logp.gather(-1, head), head_mu_logp=mu_logp)


def policy_gradient(*, center_scores=True, **settings):
    return load("policy_gradient", length_normalize=False, center_scores=center_scores, **settings)


def expected_gradient(loss, case, weight, k=3):
    """∇ of the expected loss, [9]."""
    total = (torch.tensor(weight) * loss(centered(case, k)).loss).sum()
    (gradient,) = torch.autograd.grad(total, case.theta)
    return gradient.numpy()


def drift(loss, advantage):
    """The largest slope of the expected loss where every response has the same reward."""
    case, weight = all_single(0, 1, np.full(7, advantage))
    return np.abs(expected_gradient(loss, case, weight)).max()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", ["token", "prefix"])
@pytest.mark.parametrize("limits", [NAIVE, TIS, TOPR, GRPO], ids=["naive", "tis", "topr", "grpo"])
def test_a_constant_advantage_has_no_drift(limits, ratio, advantage):
    assert drift(policy_gradient(ratio=ratio, center_scores=False, **limits), advantage) > 1e-2
    assert drift(policy_gradient(ratio=ratio, **limits), advantage) < 1e-12


@pytest.mark.parametrize("ratio", ["sequence", "geometric"])
def test_equal_limits_have_no_drift_at_any_ratio(ratio):
    assert drift(policy_gradient(ratio=ratio, **NAIVE), -1.0) < 1e-12


def test_a_weight_of_the_whole_response_leaves_a_drift():
    assert drift(policy_gradient(ratio="sequence", **TOPR), -1.0) > 1e-3


@pytest.mark.parametrize("ratio", ["token", "prefix"])
def test_where_the_ratio_is_not_limited_there_is_nothing_to_subtract(ratio):
    case, weight = all_single(1, 2, REWARD)

    plain = expected_gradient(policy_gradient(ratio=ratio, center_scores=False, **IS), case, weight)
    exact = expected_gradient(policy_gradient(ratio=ratio, **IS), case, weight)

    assert plain == pytest.approx(exact, abs=1e-12)


def test_the_gradient_of_one_response_by_hand():
    """−A Σ_t (s_t − Σ_v q_v s_v), with the scores of a softmax written out."""
    case, weight = all_single(3, 4, np.array([1.0, 2, 0, -1, 0.5, 3, 1]))

    gradient = expected_gradient(policy_gradient(ratio="sequence", **NAIVE), case, weight)

    policy, sampler = (np.exp(log_table(torch.tensor(logits)).numpy()) for logits in (case.logits, case.mu))
    expected = np.zeros((3, 3))
    for response, reward in enumerate(case.reward):
        scores = token_score(case.logits)[response].sum(0).reshape(3, 3)
        for state in STATES[response][MASK[response]]:
            scores[state] -= sampler[state] - policy[state]  # Σ_v q_v (e_v − p)
        expected -= probability(case.mu)[response] * reward * scores
    assert gradient == pytest.approx(expected.reshape(-1), abs=1e-12)


@pytest.mark.parametrize("settings", [{"ratio": "sequence", **NAIVE}, {"ratio": "token", **TIS}], ids=["naive", "tis"])
def test_a_tail_in_proportion_to_the_policy_makes_a_head_exact(settings):
    """Of three tokens the head has one; outside it the sampler is the policy times α at each state."""
    logits = random_logits(4)
    sampler = log_table(torch.tensor(logits)).exp().numpy()
    sampler[:, 0] += 2.0  # the likeliest token of every state
    case, weight = all_groups(logits, logits, 1, np.ones(7), mu=np.log(sampler).reshape(-1))

    gradient = expected_gradient(policy_gradient(**settings), case, weight, k=1)

    assert np.abs(gradient).max() < 1e-12


def test_padding_and_the_split_of_a_batch_change_nothing():
    case, _ = all_single(5, 6, REWARD)
    loss, batch = policy_gradient(ratio="token", **TOPR), centered(case)
    padding = ~batch.mask[..., None]
    filled = dataclasses.replace(
        batch, head_logp=batch.head_logp.masked_fill(padding, -3.0), head_mu_logp=batch.head_mu_logp + padding * -2.0
    )
    rows = {name: getattr(batch, name)[:3] for name in ("logp", "mu_logp", "mask", "reward", "positive")}
    part = Batch(**rows, head_logp=batch.head_logp[:3], head_mu_logp=batch.head_mu_logp[:3])

    assert torch.equal(loss(filled).loss, loss(batch).loss)
    assert torch.equal(loss(part).loss, loss(batch).loss[:3])


def test_a_token_that_could_not_be_drawn_has_no_part():
    batch = centered(all_single(7, 8, np.ones(7))[0])
    cut = batch.head_mu_logp[..., :2].log_softmax(-1)
    minus_infinity = torch.full_like(batch.head_mu_logp[..., :1], -torch.inf)
    with_undrawable = dataclasses.replace(batch, head_mu_logp=torch.cat([cut, minus_infinity], -1))
    without = dataclasses.replace(batch, head_logp=batch.head_logp[..., :2], head_mu_logp=cut)
    loss = policy_gradient(ratio="token", **IS)

    assert loss(with_undrawable).loss.isfinite().all()
    assert torch.allclose(loss(with_undrawable).loss, loss(without).loss, atol=1e-14)


# ---- where it can be used


def test_a_loop_of_ones_own_has_the_head_of_the_sampler():
    generator = torch.Generator().manual_seed(0)
    logits, sampler_logits = torch.randn(2, 2, 5, 7, generator=generator, dtype=torch.float64)
    ids = torch.randint(7, (2, 5), generator=generator)
    mask = torch.tensor([[False, False, True, True, True], [False, True, True, False, False]])
    loss = topr_exp.loss("topr", ratio="token", center_scores=True)
    mu_logp = topr_exp.completion_logprobs(sampler_logits, ids, mask)
    options = {"mu_logp": mu_logp, "reward": torch.tensor([1.0, -1.0]), "sampler_logits": sampler_logits}

    whole_vocabulary = topr_exp.batch_from_logits(logits, ids, mask, **options)
    head = topr_exp.batch_from_logits(logits, ids, mask, **options, head_size=2)

    assert loss.needs == {"head"}
    assert whole_vocabulary.head_logp.exp().sum(-1)[whole_vocabulary.mask] == pytest.approx(1)
    assert torch.equal(head.head_mu_logp, whole_vocabulary.head_mu_logp[..., :2])
    assert loss(head).loss.isfinite().all()
    with pytest.raises(TOPRError, match=r"^head_size must be 1 to 7, the vocabulary; got 8$"):
        topr_exp.batch_from_logits(logits, ids, mask, **options, head_size=8)
    with pytest.raises(TOPRError, match=r"^Batch\.head_logp is missing"):
        loss(dataclasses.replace(whole_vocabulary, head_logp=None))


@pytest.mark.parametrize("sampler", ["hf", "vllm"])
def test_a_run_may_have_what_either_sampler_notes(sampler):
    words = ["algo=topr", "algo.center_scores=true", "mu=sampler", "sampler.top_logprobs=8"]

    assert config_of(*words, f"sampler={sampler}").sampler.top_logprobs == 8


def test_it_is_refused_beside_what_its_head_has_no_numbers_for():
    with pytest.raises(ConfigError, match=r"^algo\.center_scores must be false with a mask, a correction"):
        policy_gradient(correction=2.0)
