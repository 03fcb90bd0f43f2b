"""Properties of the tapered family for any limits, ratios and rewards."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.tabular_policies import load
from topr_exp.algorithms.tapered import taper
from topr_exp.types import Batch

finite_limit = st.floats(0, 10, allow_subnormal=False)
log_ratios = st.floats(-1e3, 1e3)
rewards = st.floats(-2, 2, allow_subnormal=False)


@st.composite
def limits(draw):
    a = draw(finite_limit)
    return a, draw(st.one_of(st.just(a), st.just(math.inf), st.floats(a, 20)))


def one_response(delta: float, reward: float, positive: bool) -> Batch:
    logp = torch.tensor([[-0.5, -1.5]], dtype=torch.float64, requires_grad=True)
    mu = logp.detach() - delta / 2
    return Batch(
        logp, mu, torch.tensor([[True, True]]), torch.tensor([reward], dtype=torch.float64), torch.tensor([positive])
    )


def tapered(pos, neg):
    return load("topr", a_pos=pos[0], b_pos=pos[1], a_neg=neg[0], b_neg=neg[1])


@settings(max_examples=100, deadline=None)
@given(limits(), limits(), log_ratios, rewards, st.booleans())
def test_weight_is_the_clipped_ratio_and_moves_the_right_way(pos, neg, delta, reward, positive):
    batch = one_response(delta, reward, positive)
    output = tapered(pos, neg)(batch)
    a, b = pos if reward > 0 or (reward == 0 and positive) else neg
    weight = output.metrics["weight"].item()
    assert a * (1 - 1e-12) <= weight <= b * (1 + 1e-12)
    if delta < 700:
        assert math.isclose(weight, min(max(math.exp(delta), a), b), rel_tol=1e-9, abs_tol=1e-300)
    if math.isfinite(weight):
        (grad,) = torch.autograd.grad(output.loss.sum(), batch.logp)
        assert torch.isfinite(grad).all()
        assert (grad * reward <= 0).all()  # a rewarded response becomes likelier, a punished one less likely


@settings(max_examples=100, deadline=None)
@given(limits(), log_ratios, log_ratios)
def test_weight_and_taper_grow_with_the_ratio(pos, one, other):
    low, high = sorted((one, other))
    outputs = [tapered(pos, (0.0, 1.0))(one_response(delta, 1.0, True)) for delta in (low, high)]
    for key in ("weight", "objective"):
        first, second = (output.metrics[key].item() for output in outputs)
        assert first <= second + 1e-12 * abs(second) or first == second


@settings(max_examples=100, deadline=None)
@given(limits(), st.floats(-700, 700))
def test_taper_bounds_the_ratio_from_below(pair, delta):
    log_a, log_b = (torch.tensor(math.log(x) if x > 0 else -math.inf, dtype=torch.float64) for x in pair)
    value = taper(torch.tensor(delta, dtype=torch.float64), log_a, log_b).item()
    assert value <= math.exp(delta) * (1 + 1e-9)
    if pair[0] <= math.exp(delta) <= pair[1]:
        assert math.isclose(value, math.exp(delta), rel_tol=1e-9, abs_tol=1e-300)


@settings(max_examples=50, deadline=None)
@given(limits(), limits(), log_ratios, st.booleans())
def test_zero_reward_takes_a_response_out(pos, neg, delta, positive):
    batch = one_response(delta, 0.0, positive)
    output = tapered(pos, neg)(batch)
    (grad,) = torch.autograd.grad(output.loss.sum(), batch.logp)
    assert output.loss.item() == 0
    assert not grad.any()
