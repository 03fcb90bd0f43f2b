"""What must not change a loss: padding, how a batch is split, the order of rows; and what it must survive or refuse."""

import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

from tests.algorithms.tabular_policies import NAMES, OWN, VARIANTS, group_of_four, load, random_case, with_signals
from tests.conftest import refused
from topr_exp.algorithms.base import NEEDS, Loss
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
    fields = {"group_rewards": torch.nn.functional.pad(batch.group_rewards, (0, 2), value=-torch.inf)}
    for field in TOKEN_FIELDS:
        fill = False if field == "mask" else filler
        values = getattr(batch, field).where(batch.mask, fill)
        fields[field] = torch.nn.functional.pad(values, (0, 3), value=fill)
    return dataclasses.replace(batch, **fields)


def assert_same(output, expected, theta, tolerance):
    close = {"rtol": tolerance, "atol": tolerance}
    assert_close(output.loss, expected.loss, **close)
    for key, values in expected.metrics.items():
        assert_close(output.metrics[key], values, **close)
    (gradient,) = torch.autograd.grad(output.loss.sum(), theta, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad(expected.loss.sum(), theta, retain_graph=True)
    assert_close(gradient, expected_gradient, **close)


@each_variant
@pytest.mark.parametrize("filler", [0.0, math.nan])
def test_padding_changes_nothing(name, changes, filler):
    loss, case = load(name, **changes), random_case(0)
    expected = loss(with_signals(loss, case.batch()))

    output = loss(with_signals(loss, padded(case.batch(), filler)))

    assert_same(output, expected, case.theta, 1e-14)


@each_variant
def test_micro_batches_add_up(name, changes):
    """Signals over the whole batch in another order, then any split: loss and gradient are those of the whole."""
    loss, case = load(name, **changes), random_case(1)
    expected = loss(with_signals(loss, case.batch()))
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    shuffled = with_signals(loss, rows_of(case.batch(), order))

    losses = []
    for rows in torch.arange(15).split([1, 4, 7, 3]):
        losses.append(loss(rows_of(shuffled, rows)).loss)

    assert_same(LossOutput(torch.cat(losses)), LossOutput(expected.loss[order]), case.theta, 1e-12)


@each_variant
def test_outputs_have_the_promised_form_and_a_loss_does_not_touch_its_batch(name, changes):
    loss, case = load(name, **changes), random_case(3)
    batch = with_signals(loss, case.batch())
    copies = {field: getattr(batch, field).detach().clone() for field in TOKEN_FIELDS + ROW_FIELDS}

    output = loss(batch)

    assert isinstance(loss, Loss)
    assert loss.needs <= NEEDS.keys()
    assert output.loss.shape == (15,)
    assert output.loss.requires_grad
    assert torch.equal(output.loss, loss(batch).loss)
    for key, values in output.metrics.items():
        assert values.shape == (15,), key
        assert values.dtype == torch.float64, key
        assert not values.requires_grad, key
    for field, copy in copies.items():
        assert torch.equal(getattr(batch, field), copy), field


@each_variant
def test_an_empty_response_has_no_gradient(name, changes):
    """A response without a single token (T = 0) must not divide by 0."""
    loss, case = load(name, **changes), random_case(10)
    mask = case.batch().mask.clone()
    mask[0] = False

    output = loss(with_signals(loss, case.batch(mask=mask)))

    for values in (output.loss, *output.metrics.values()):
        assert torch.isfinite(values).all()
    (gradient,) = torch.autograd.grad(output.loss[0], case.theta)
    assert not gradient.any()


@each_variant
def test_a_loss_reads_mu_unless_it_says_otherwise(name, changes):
    """What mu=none rests on: without `needs_mu` another μ changes no gradient."""
    loss, case = load(name, **changes), random_case(8)
    batch = case.batch()
    other_mu = case.batch(mu_logp=batch.mu_logp - 0.7 * batch.reward[:, None])

    is_same = case.gradient(loss, batch).tolist() == case.gradient(loss, other_mu).tolist()

    assert is_same or loss.needs_mu
    if name in ("topr", "tis", "is", "ppo", "grpo", "cispo") and "mask" not in changes:
        assert not is_same


# ---- far from μ


def shifted(delta, reward, tokens=4):
    """One response in float32 whose log-ratio is Δ."""
    logp = torch.full((1, tokens), -1.0, requires_grad=True)
    mu_logp = torch.full((1, tokens), -1.0 - delta / tokens)
    mask = torch.ones(1, tokens, dtype=torch.bool)
    rewards = torch.tensor([reward])
    return Batch(logp, mu_logp, mask, rewards, rewards > 0, **group_of_four(1))


BY_TOKEN = {"ratio": "token"}
ALL_SIGNS = ((1e3, 1.0), (1e3, -1.0), (-1e3, 1.0), (-1e3, -1.0))
BOUNDED_ABOVE = ((1e3, 1.0), (1e3, 0.0), (-1e3, 1.0), (-1e3, -1.0), (-1e3, 0.0))
UNBOUNDED = ((1e3, 0.0), (-1e3, 1.0), (-1e3, -1.0), (-1e3, 0.0))


@pytest.mark.parametrize(
    "name, changes, places",
    [
        *((name, {}, ALL_SIGNS) for name in ("topr", "tis", "naive", "sft", "cispo", "vespo", "sapo", "m2po")),
        *((name, BY_TOKEN, ALL_SIGNS) for name in ("topr", "tis", "naive", "sft")),
        ("ppo", {}, BOUNDED_ABOVE),
        ("ppo", BY_TOKEN, BOUNDED_ABOVE),
        ("is", {}, UNBOUNDED),
    ],
)
def test_no_overflow_where_the_weight_is_bounded(name, changes, places):
    loss = load(name, **changes)
    for delta, reward in places:
        batch = with_signals(loss, shifted(delta, reward))

        output = loss(batch)

        (gradient,) = torch.autograd.grad(output.loss.sum(), batch.logp)
        assert torch.isfinite(output.loss).all()
        assert torch.isfinite(gradient).all()
        for key, values in output.metrics.items():
            assert (name, key) == ("is", "weight") or torch.isfinite(values).all(), key
        if reward == 0:
            assert output.loss.item() == 0
            assert not gradient.any()


@pytest.mark.parametrize("name, reward", [("is", 1.0), ("ppo", -1.0)])
def test_untruncated_importance_sampling_overflows_openly(name, reward):
    """b = ∞ promises no finite weight: the loss becomes infinite, which stops a run, not NaN or a silent clamp."""
    assert torch.isinf(load(name)(shifted(1e3, reward)).loss).all()


@pytest.mark.parametrize("delta, expected", [(1e3, 200.0), (-1e3, 0.0)])
def test_dpo_saturates_without_overflow(delta, expected):
    chosen, rejected = shifted(-delta, 1.0), shifted(delta, -1.0)

    loss = load("dpo")(PairBatch(chosen, rejected)).loss

    assert loss.item() == pytest.approx(expected, abs=1e-6)
    for gradient in torch.autograd.grad(loss.sum(), (chosen.logp, rejected.logp)):
        assert torch.isfinite(gradient).all()


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


@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_and_types_gradients_of_mu_and_missing_fields_are_refused(name):
    loss, case = load(name), random_case(5)
    batch = with_signals(loss, case.batch())
    mistakes = [(field, getattr(batch, field)[:-1]) for field in CHECKED_SHAPES]
    mistakes += [(field, getattr(batch, field).to(dtype)) for field, dtype in WRONG_DTYPES.items()]
    mistakes += [(field, getattr(batch, field).clone().requires_grad_()) for field in CONSTANT_FIELDS]
    mistakes += [(field, None) for field in REQUIRED_FIELDS]

    for field, values in mistakes:
        wrong = dataclasses.replace(batch, **{field: values})
        if name in PAIRS:
            wrong = PairBatch(batch, wrong)
        with refused(field):
            loss(wrong)


@pytest.mark.parametrize("name", SINGLE)
def test_what_needs_names_is_needed_and_nothing_else(name):
    loss, case = load(name), random_case(6)
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
        if needed:
            with refused(field):
                loss(with_signals(loss, batch))
        else:
            loss(with_signals(loss, batch))


def test_signals_are_asked_for():
    with refused(r"run loss\.signals over the global batch"):
        load("agro")(random_case(7).batch())


@pytest.mark.parametrize("name", ["agro", "agro_on_policy", "rloo", "red_drop"])
def test_signals_must_come_from_complete_groups(name):
    with refused("a group has 4 of its 5 responses"):
        load(name).signals(rows_of(random_case(7).batch(), slice(0, 14)))


@pytest.mark.parametrize("name", [name for name in SINGLE if load(name).needs & {"groups", "group_rewards"}])
def test_a_group_of_one_is_refused(name):
    loss, case = load(name), random_case(8)
    one_of_each_group = rows_of(case.batch(group_size=torch.ones(15, dtype=torch.int64)), [0, 5, 10])

    with refused("at least 2"):
        loss(with_signals(loss, one_of_each_group))
