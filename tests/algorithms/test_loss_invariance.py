"""What must not change a loss: padding, how a batch is split, the order of rows; and what it must survive or refuse."""

import dataclasses
import math
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import pad
from torch.testing import assert_close

from tests.algorithms.tabular_policies import (
    FAMILY,
    NAMES,
    OWN,
    VARIANTS,
    group_of_four,
    load,
    random_case,
    rng,
    with_signals,
)
from tests.conftest import refused
from topr_exp.algorithms.base import NEEDS, Loss
from topr_exp.training.loss_checks import checked_output
from topr_exp.types import Batch, LossOutput, PairBatch

TOKEN_FIELDS = ("logp", "mu_logp", "old_logp", "mask", "ref_logp", "vocab_kl")
ROW_FIELDS = ("reward", "positive", "group", "sample", "group_mean", "group_std", "group_size", "group_rewards")
PAIRS = {name for name in NAMES if "pairs" in load(name).needs}
SINGLE = [name for name in NAMES if name not in PAIRS]
each_variant = pytest.mark.parametrize("name, changes", VARIANTS, ids=str)


def rows_of(batch, rows):
    fields = {field: getattr(batch, field)[rows] for field in TOKEN_FIELDS + ROW_FIELDS}
    signals = {name: values[rows] for name, values in batch.signals.items()}
    return dataclasses.replace(batch, **fields, signals=signals)


def padded(batch, filler):
    """More padding on the right, with numbers where a careless loss would read them; a larger other group."""
    fields = {"group_rewards": pad(batch.group_rewards, (0, 2), value=-torch.inf)}
    for field in TOKEN_FIELDS:
        fill = False if field == "mask" else filler
        values = getattr(batch, field).where(batch.mask, fill)
        fields[field] = pad(values, (0, 3), value=fill)
    return dataclasses.replace(batch, **fields)


def slope(output, theta):
    (gradient,) = torch.autograd.grad(output.loss.sum(), theta, retain_graph=True)
    return gradient


def assert_same(output, expected, theta, tolerance):
    close = {"rtol": tolerance, "atol": tolerance}
    assert_close(output.loss, expected.loss, **close)
    assert_close(output.metrics, expected.metrics, **close)
    assert_close(slope(output, theta), slope(expected, theta), **close)


@each_variant
@pytest.mark.parametrize("filler", [0.0, math.nan])
def test_padding_changes_nothing(name, changes, filler):
    loss = load(name, **changes)
    case = random_case(0)
    batch = case.batch()
    padded_batch = padded(batch, filler)

    output = loss(with_signals(loss, padded_batch))

    expected = loss(with_signals(loss, batch))
    assert_same(output, expected, case.theta, 1e-14)


@each_variant
def test_micro_batches_add_up(name, changes):
    """Signals over the whole batch in another order, then any split: loss and gradient are those of the whole."""
    loss = load(name, **changes)
    case = random_case(1)
    batch = case.batch()
    order = torch.tensor(rng(0).permutation(15))
    shuffled = with_signals(loss, rows_of(batch, order))

    losses = []
    for rows in torch.arange(15).split([1, 4, 7, 3]):
        micro_batch = rows_of(shuffled, rows)
        losses.append(loss(micro_batch).loss)

    expected = loss(with_signals(loss, batch)).loss[order]
    assert_same(LossOutput(torch.cat(losses)), LossOutput(expected), case.theta, 1e-12)


def test_m2po_drops_tokens_together_that_differ_by_rounding():
    logp = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0 - 1e-7, 0.0]])
    is_token = torch.ones_like(logp, dtype=torch.bool)
    batch = Batch(logp, torch.zeros_like(logp), is_token, reward=torch.ones(2), positive=is_token[:, 0])

    assert load("m2po", tau=0.3).signals(batch)["limit"].tolist() == [0.5, 0.5]


@each_variant
def test_outputs_have_the_promised_form_and_a_loss_does_not_touch_its_batch(name, changes):
    loss = load(name, **changes)
    case = random_case(3)
    batch = with_signals(loss, case.batch())
    copies = {field: getattr(batch, field).detach().clone() for field in TOKEN_FIELDS + ROW_FIELDS}

    output = checked_output(loss, batch)

    assert isinstance(loss, Loss)
    assert loss.needs <= NEEDS.keys()
    assert output.loss.shape == (15,)
    assert torch.equal(output.loss, loss(batch).loss)
    for key, values in output.metrics.items():
        assert values.dtype == torch.float64, key
    for field, copy in copies.items():
        assert torch.equal(getattr(batch, field), copy), field


@each_variant
def test_an_empty_completion_has_no_gradient(name, changes):
    """A completion without a single token (T = 0) must not divide by 0."""
    loss = load(name, **changes)
    case = random_case(10)
    mask = case.batch().mask.clone()
    mask[0] = False

    output = loss(with_signals(loss, case.batch(mask=mask)))

    for values in (output.loss, *output.metrics.values()):
        assert torch.isfinite(values).all()
    assert not slope(LossOutput(output.loss[0]), case.theta).any()


@each_variant
def test_a_loss_reads_mu_unless_it_says_otherwise(name, changes):
    """What mu=none rests on: with `needs_mu`, and only so, another μ changes the gradient."""
    loss = load(name, **changes)
    case = random_case(8)
    batch = case.batch()
    other_mu = case.batch(mu_logp=batch.mu_logp - 0.7 * batch.reward[:, None])

    is_same = case.gradient(loss, batch).tolist() == case.gradient(loss, other_mu).tolist()

    assert is_same or loss.needs_mu
    if name != "policy_gradient":  # whose masks and caps may hold for any μ
        assert loss.needs_mu != is_same


# ---- far from μ


def shifted(delta, reward):
    """One completion of four tokens in float32 whose log-ratio is Δ."""
    rewards = torch.tensor([reward])
    return Batch(
        logp=torch.full((1, 4), -1.0, requires_grad=True),
        mu_logp=torch.full((1, 4), -1.0 - delta / 4),
        mask=torch.ones(1, 4, dtype=torch.bool),
        reward=rewards,
        positive=rewards > 0,
        **group_of_four(1),
    )


OVERFLOWS = {("is", 1e3, 1.0), ("is", 1e3, -1.0), ("ppo", 1e3, -1.0)}
FAR_LOSSES = [(name, {}) for name in (*FAMILY, "cispo", "vespo", "sapo", "m2po", "ppo")]
FAR_LOSSES += [(name, {"ratio": "token"}) for name in ("topr", "tis", "naive", "sft", "ppo")]


@pytest.mark.parametrize("delta", [1e3, -1e3])
@pytest.mark.parametrize("reward", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("name, changes", FAR_LOSSES)
def test_a_loss_is_finite_where_its_weight_is_bounded_and_else_overflows_openly(name, changes, reward, delta):
    """b = ∞ promises no finite weight: the loss becomes infinite, which stops a run, not NaN or a silent clamp."""
    loss = load(name, **changes)
    batch = with_signals(loss, shifted(delta, reward))

    output = loss(batch)

    if (name, delta, reward) in OVERFLOWS:
        assert torch.isinf(output.loss).all()
        return
    gradient = slope(output, batch.logp)
    assert torch.isfinite(output.loss).all()
    assert torch.isfinite(gradient).all()
    for key, values in output.metrics.items():
        assert (name, key) == ("is", "weight") or torch.isfinite(values).all(), key
    if reward == 0:
        assert output.loss.item() == 0
        assert not gradient.any()


@pytest.mark.parametrize("delta, expected", [(1e3, 200.0), (-1e3, 0.0)])
def test_dpo_saturates_without_overflow(delta, expected):
    chosen = shifted(-delta, 1.0)
    rejected = shifted(delta, -1.0)

    output = load("dpo")(PairBatch(chosen, rejected))

    assert output.loss.item() == pytest.approx(expected, abs=1e-6)
    for side in (chosen, rejected):
        assert torch.isfinite(slope(output, side.logp)).all()


@pytest.mark.parametrize("delta, clipped", [(5e-4, 0.0), (-5e-4, 0.0), (2e-3, 1.0)])
def test_clipped_shares_ignore_rounding(delta, clipped):
    """At step 0 half of all Δ are a rounding error above 0: nothing counts as clipped before |Δ| > 1e-3."""
    assert load("tis")(shifted(delta, -1.0)).metrics["clipped_high"].item() == clipped
    assert load("topr")(shifted(-delta, 1.0)).metrics["clipped_low"].item() == clipped


# ---- what a batch must have

CONSTANT_FIELDS = ("mu_logp", "old_logp", "ref_logp")
REQUIRED_FIELDS = ("logp", "mu_logp", "mask", "reward", "positive")
WRONG_DTYPES = {"logp": torch.half, "mask": torch.long, "positive": torch.double}
CHECKED_SHAPES = [*TOKEN_FIELDS, "reward", "positive", "group", "group_mean", "group_rewards"]


def mistakes(batch):
    """A field, and values that it must not have."""
    for field in CHECKED_SHAPES:
        yield field, getattr(batch, field)[:-1]
    for field, dtype in WRONG_DTYPES.items():
        yield field, getattr(batch, field).to(dtype)
    for field in CONSTANT_FIELDS:
        yield field, getattr(batch, field).clone().requires_grad_()
    for field in REQUIRED_FIELDS:
        yield field, None


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_and_types_gradients_of_mu_and_missing_fields_are_refused(name):
    loss = load(name)
    batch = with_signals(loss, random_case(5).batch())

    for field, values in mistakes(batch):
        wrong = dataclasses.replace(batch, **{field: values})
        if name in PAIRS:
            wrong = PairBatch(batch, wrong)
        with refused(field):
            loss(wrong)


@pytest.mark.parametrize("name", SINGLE)
def test_what_needs_names_is_needed_and_nothing_else(name):
    loss = load(name)
    case = random_case(6)
    compares_stored_groups = "group_rewards" in loss.needs and "groups" not in loss.needs
    is_needed = {
        "old_logp": "old_logp" in loss.needs,
        "ref_logp": "ref_logp" in loss.needs,
        "vocab_kl": "vocab_kl" in loss.needs,
        "group_mean": compares_stored_groups and name != "oapl",
        "group_size": compares_stored_groups,
    }
    if name != OWN:  # of a user's loss every batch has these, or another field that is asked for here
        is_needed["group"] = "groups" in loss.needs
        is_needed["sample"] = name == "red_drop"
        is_needed["group_rewards"] = name == "oapl"
    for field, needed in is_needed.items():
        batch = case.batch(**{field: None})
        expectation = refused(field) if needed else nullcontext()
        with expectation:
            loss(with_signals(loss, batch))


def test_signals_are_asked_for():
    with refused(r"run loss\.signals over the global batch"):
        load("agro")(random_case(7).batch())


@pytest.mark.parametrize("name", ["agro", "agro_on_policy", "rloo", "red_drop"])
def test_signals_must_come_from_complete_groups(name):
    with refused("a group has 4 of its 5 completions"):
        load(name).signals(rows_of(random_case(7).batch(), slice(0, 14)))


@pytest.mark.parametrize("name", [name for name in SINGLE if load(name).needs & {"groups", "group_rewards"}])
def test_a_group_of_one_is_refused(name):
    """The others have two completions."""
    loss = load(name)
    size = torch.tensor([1, 2, 2]).repeat_interleave(5)
    batch = rows_of(random_case(8).batch(group_size=size), [0, 5, 6, 10, 11])

    with refused("at least 2"):
        loss(with_signals(loss, batch))
