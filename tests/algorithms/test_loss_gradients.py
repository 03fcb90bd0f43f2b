"""Every loss of conf/algo on a tabular policy: value, gradient and metrics are those of the papers' formulas.

The formulas (`tests/reference/formulas.py`) are written for one completion at a time; the gradient of their mean is
taken by autograd through a softmax.
"""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.algorithms.tabular_policies import (
    NAMES,
    OWN,
    VARIANTS,
    load,
    random_case,
    settings_of,
    token_logp,
    torch_token_kl,
    torch_token_logp,
    with_signals,
)
from tests.conftest import column
from tests.reference.formulas import FORMULAS, Completion, losses_of

TOLERANCE = 1e-10
each_variant = pytest.mark.parametrize("name, changes", [row for row in VARIANTS if row[0] != OWN], ids=str)


def completion_of(case, row):
    """A row of a case as the formulas take it."""
    y = case.y[row]
    tokens = slice(0, case.length[row])
    completion = Completion(case.group[row], case.sample[row], prompt=[], tokens=[], is_correct=case.positive[row])
    completion.reward = float(case.reward[row])
    completion.group_rewards = case.reward[case.group == case.group[row]].tolist()
    for name in ("mu", "old", "ref"):
        logp = token_logp(getattr(case, name))
        setattr(completion, name, torch.tensor(logp[y, tokens]))
    return completion


def by_formula(name, changes, case):
    """The loss of each completion and what is reported of it."""
    logp = torch_token_logp(case.theta)
    kl = torch_token_kl(case.theta, torch.tensor(case.ref))
    completions, scores = [], []
    for row, y in enumerate(case.y):
        tokens = slice(0, case.length[row])
        completions.append(completion_of(case, row))
        scores.append({"logp": logp[y, tokens], "kl": kl[y, tokens]})
    outcomes = losses_of(settings_of(name, **changes), completions, scores, case.baseline)
    losses, reports = zip(*outcomes, strict=True)
    return torch.stack(losses), reports


def assert_formula(name, changes, case, batch=None):
    loss = load(name, **changes)
    expected, reports = by_formula(name, changes, case)
    (expected_gradient,) = torch.autograd.grad(expected.mean(), case.theta)
    largest_slope = float(expected_gradient.abs().max())
    if batch is None:
        batch = with_signals(loss, case.batch())

    output = loss(batch)

    (gradient,) = torch.autograd.grad(output.loss.mean(), case.theta)
    assert torch.isfinite(expected).all()
    assert_allclose(output.loss.detach(), expected.detach(), atol=TOLERANCE)
    assert_allclose(gradient, expected_gradient, atol=TOLERANCE * max(1.0, largest_slope))
    assert output.metrics.keys() == reports[0].keys()
    for key, values in output.metrics.items():
        reported = np.array(column(reports, key))
        is_sure = ~np.isnan(reported)
        assert_allclose(values[is_sure], reported[is_sure], atol=TOLERANCE, err_msg=key)


def test_every_loss_has_a_formula():
    """A new one is added to FORMULAS, written from the paper for one completion."""
    assert {*FORMULAS, "dpo"} == {*NAMES} - {OWN}


@each_variant
@pytest.mark.parametrize("seed", range(2))
def test_a_loss_is_its_formula(name, changes, seed):
    case = random_case(seed, low=0.0)
    if load(name, **changes).uses_baseline:
        case = random_case(seed, baseline=0.3)
    case.y[5:10] = case.y[:5]  # equal tokens, which M2PO drops together
    case.reward[case.group == case.group[-1]] = 1.0  # a group of one kind

    assert_formula(name, changes, case)


@each_variant
def test_a_loss_is_its_formula_at_log_ratios_of_30(name, changes):
    """Of single tokens and both signs, against μ and π_old: finite, and the gradient of the formula."""
    case = random_case(0, low=0.0)
    case.move_to(np.array([0, 31, 0.5, 0, 1, 30, 0.5, 0, 1]))
    case.mu = np.array([31, 0, 0.5, 32, 0, 1, 1, 30, 0])
    case.old = np.array([0, 31, 0.5, 0, 30, 1, 30, 0, 2])
    case.y = np.arange(len(case.y)) % 7
    assert case.delta_t.min() < -29
    assert case.delta_t.max() > 29

    assert_formula(name, changes, case)


@pytest.mark.parametrize("low", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("baseline", [-0.3, 0.0])
@pytest.mark.parametrize("name", ["topr", "tis", "sft"])
def test_the_sign_of_the_reward_minus_the_baseline_picks_the_limits(name, baseline, low):
    """Not the verdict: a wrong completion of reward 0 has R = 0.3 at c = -0.3, and no limit of the negatives."""
    assert_formula(name, {}, random_case(0, baseline=baseline, low=low))


@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_dpo_is_its_formula(beta):
    case = random_case(0, groups=2, n=8)
    case.y[8] = case.y[0]  # a pair of one completion, which is a tie

    assert_formula("dpo", {"beta": beta}, case, case.pairs())


def test_the_off_policy_mask_leaves_some_out():
    output = load("grpo", off_policy_mask=0.5)(random_case(0, low=0.0).batch())

    assert 0 < output.metrics["masked"].sum() < 15


# ---- what TRL's code gave: a value, and the sum of the gradient times 1, 2, ... 9

COEFFICIENTS = np.arange(1.0, 10.0)


@pytest.mark.parametrize("beta, value, slope", [(0.1, 0.681170700, 0.030915551), (1.5, 0.934283284, 0.230436326)])
def test_dpo_is_trls(beta, value, slope):
    case = random_case(0, groups=2, n=8)

    mean = load("dpo", beta=beta)(case.pairs()).loss.mean()

    (gradient,) = torch.autograd.grad(mean, case.theta)
    assert mean.item() == pytest.approx(value, rel=1e-6, abs=2e-9)
    assert gradient.numpy() @ COEFFICIENTS == pytest.approx(slope, rel=1e-6, abs=2e-9)


@pytest.mark.parametrize("beta, slope", [(0.0, 0.001593078), (0.7, -0.042193765)])
def test_rloo_is_trls(beta, slope):
    """Its value is not comparable."""
    case = random_case(0, on_policy=True)

    gradient = case.gradient(load("rloo", beta=beta))

    assert gradient @ COEFFICIENTS == pytest.approx(slope, rel=1e-6, abs=2e-9)
