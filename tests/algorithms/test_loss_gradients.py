"""Every loss of conf/algo on a tabular policy: value, gradient and metrics are those of the papers' formulas.

The formulas (`tests/reference/formulas.py`) are written for one response at a time; the gradient of their mean is taken
by autograd through a softmax.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import (
    NAMES,
    OWN,
    VARIANTS,
    Case,
    load,
    random_case,
    settings_of,
    torch_token_kl,
    torch_token_logp,
    with_signals,
)
from tests.reference.formulas import FORMULAS, Completion, losses_of
from topr_exp.types import Batch, PairBatch

TOLERANCE = 1e-10


def by_formula(name: str, changes: dict[str, Any], case: Case) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """The loss of each response and what is reported of it."""
    logp, kl = torch_token_logp(case.theta), torch_token_kl(case.theta, torch.tensor(case.ref))
    sides, scores = [], []
    for i, y in enumerate(case.y):
        length, rewards = int(case.length[i]), case.reward[case.group == case.group[i]]
        one = Completion(int(case.group[i]), int(case.sample[i]), [], [0] * length, bool(case.positive[i]))
        one.reward, one.rewards, one.n = float(case.reward[i]), rewards.tolist(), len(rewards)
        one.mean, one.std = float(rewards.mean()), float(rewards.std(ddof=1))
        policies = (case.mu, case.old, case.ref)
        one.mu, one.old, one.ref = (torch_token_logp(torch.tensor(each))[y, :length] for each in policies)
        sides.append(one)
        scores.append({"logp": logp[y, :length], "kl": kl[y, :length]})
    losses, reported = zip(*losses_of(settings_of(name, **changes), sides, scores, case.baseline), strict=True)
    return torch.stack(losses), list(reported)


def assert_formulas(name: str, changes: dict[str, Any], case: Case, batch: Batch | PairBatch | None = None) -> None:
    loss = load(name, **changes)
    found = loss(batch or with_signals(loss, case.batch()))
    expected, reported = by_formula(name, changes, case)
    np.testing.assert_allclose(found.loss.detach(), expected.detach(), atol=TOLERANCE)
    gradients = [torch.autograd.grad(each.mean(), case.theta)[0] for each in (found.loss, expected)]
    np.testing.assert_allclose(*gradients, atol=TOLERANCE * max(1.0, float(gradients[1].abs().max())))
    assert found.metrics.keys() == reported[0].keys()
    for key, values in found.metrics.items():
        hand = [one[key] for one in reported]
        sure = [not math.isnan(value) for value in hand]
        np.testing.assert_allclose(values[sure], np.array(hand)[sure], atol=TOLERANCE, err_msg=key)


def test_every_algorithm_has_a_formula() -> None:
    """A new one is added to FORMULAS, written from the paper for one response."""
    assert {*FORMULAS, "dpo"} == set(NAMES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "changes"), [each for each in VARIANTS if each[0] != OWN], ids=str)
def test_a_loss_is_its_formula(name: str, changes: dict[str, Any], seed: int) -> None:
    uses_baseline = load(name, **changes).uses_baseline
    case = random_case(seed, baseline=0.3 if uses_baseline else 0.0, low=-1.0 if uses_baseline else 0.0)
    case.y[5:10] = case.y[:5]  # equal tokens, which M2PO drops together
    case.reward[case.group == case.group[-1]] = 1.0  # a group of one kind
    if name == "rloo" and changes:
        assert_formulas(name, changes, case, case.batch(ref_logp=None))  # needs no reference
    assert_formulas(name, changes, case)


@pytest.mark.parametrize(("name", "changes"), [each for each in VARIANTS if each[0] != OWN], ids=str)
def test_a_loss_is_its_formula_at_log_ratios_of_30(name: str, changes: dict[str, Any]) -> None:
    """Of single tokens and both signs, against μ and π_old: finite, and the gradient of the formula."""
    case = random_case(0, low=0.0)
    case.logits, case.mu, case.old = (
        np.array([[0.0, 31.0, 0.5], *rest]).ravel()
        for rest in ([[0, 1, 30], [0.5, 0, 1]], [[32, 0, 1], [1, 30, 0]], [[0, 30, 1], [30, 0, 2]])
    )
    case.mu[:3], case.theta = [31.0, 0.0, 0.5], torch.tensor(case.logits, requires_grad=True)
    case.y[:] = np.arange(len(case.y)) % 7
    deltas = case.delta_t[case.delta_t != 0]
    assert deltas.min() < -29
    assert deltas.max() > 29
    assert_formulas(name, changes, case)
    assert torch.isfinite(load(name, **changes)(with_signals(load(name, **changes), case.batch())).loss).all()


@pytest.mark.parametrize("low", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("baseline", [-0.3, 0.0, 0.7])
@pytest.mark.parametrize("name", ["topr", "tis", "is", "naive", "sft"])
def test_the_sign_of_the_reward_minus_the_baseline_picks_the_limits(name: str, baseline: float, low: float) -> None:
    """Not the verdict: a wrong completion of reward 0 has R = 0.3 at c = -0.3, and no limit of the negatives."""
    assert_formulas(name, {}, random_case(0, baseline=baseline, low=low))


@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_dpo_is_its_formula(beta: float) -> None:
    case = random_case(0, groups=2, n=8)  # the first half of the rows as chosen, the second as rejected
    assert_formulas("dpo", {"beta": beta}, case, case.pairs())


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_off_policy_mask_leaves_some_out(name: str) -> None:
    masked = load(name, off_policy_mask=0.5)(random_case(0, low=0.0).batch()).metrics["masked"]
    assert 0 < masked.sum() < len(masked)


# ---- TRL's losses (test_trl.py calls its code; these are numbers that it gave)


TRL: list[tuple[str, dict[str, Any], float | None, float]] = [
    ("dpo", {"beta": 0.1}, 0.681170700, 0.030915551),
    ("dpo", {"beta": 1.5}, 0.934283284, 0.230436326),
    ("grpo", {"length_normalize": True}, None, -0.009211416),
    ("grpo", {"advantage": "group"}, None, 0.001274462),
    ("rloo", {"beta": 0.0}, None, 0.001593078),
    ("rloo", {"beta": 0.05}, None, -0.001534554),
    ("rloo", {"beta": 0.7}, None, -0.042193765),
]


@pytest.mark.parametrize(("name", "changes", "value", "slope"), TRL)
def test_a_loss_is_trls(name: str, changes: dict[str, Any], value: float | None, slope: float) -> None:
    case = random_case(0, groups=2, n=8) if name == "dpo" else random_case(0, on_policy=value is None)
    loss = load(name, **changes)
    ours = loss(case.pairs() if name == "dpo" else with_signals(loss, case.batch())).loss.mean()
    (gradient,) = torch.autograd.grad(ours, case.theta)
    assert float(torch.arange(1.0, 10.0).double() @ gradient) == pytest.approx(slope, rel=1e-6, abs=2e-9)
    assert value is None or float(ours.detach()) == pytest.approx(value, rel=1e-6, abs=2e-9)
