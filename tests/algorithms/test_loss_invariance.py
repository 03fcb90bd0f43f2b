"""What must not change a loss: padding, how a batch is split, the order of rows; and what it must survive or refuse."""

import dataclasses
import itertools

import pytest
import torch

from tests.algorithms.tabular_policies import NAMES, OWN, VARIANTS, load, random_case, with_signals
from topr_exp.algorithms.base import NEEDS, Loss
from topr_exp.types import Batch, LossOutput, PairBatch, TOPRError

TOKENS = ("logp", "mu_logp", "old_logp", "mask", "ref_logp", "vocab_kl")
SAMPLES = ("reward", "positive", "group", "sample", "group_mean", "group_std", "group_size", "group_rewards")
PAIRS = {name for name in NAMES if "pairs" in load(name).needs}
each_loss = pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=lambda v: v if isinstance(v, str) else str(v))


def rows(batch: Batch, index: list[int] | torch.Tensor) -> Batch:
    fields = {f: getattr(batch, f)[index] for f in TOKENS + SAMPLES}
    return dataclasses.replace(batch, **fields, signals={k: v[index] for k, v in batch.signals.items()})


def padded(batch: Batch, width: int, filler: float) -> Batch:
    """More padding on the right, with arbitrary numbers where a careless loss would read them; a larger other group."""
    fields = {"group_rewards": torch.nn.functional.pad(batch.group_rewards, (0, 2), value=-torch.inf)}
    for f in TOKENS:
        values = getattr(batch, f)
        fill = torch.zeros_like(values[:, :1]) if f == "mask" else torch.full_like(values[:, :1], filler)
        fields[f] = torch.cat([values.where(batch.mask, fill), fill.expand(-1, width)], 1)
    return dataclasses.replace(batch, **fields)


@each_loss
@pytest.mark.parametrize("filler", [0.0, -7.0, float("nan")])
def test_padding_changes_nothing(name, changes, filler):
    loss, case = load(name, **changes), random_case(0)
    short = with_signals(loss, case.batch())
    long = with_signals(loss, padded(case.batch(), 3, filler))
    one, other = loss(short), loss(long)
    torch.testing.assert_close(one.loss, other.loss, rtol=0, atol=1e-14)
    for key in one.metrics:
        torch.testing.assert_close(one.metrics[key], other.metrics[key], rtol=0, atol=1e-14)
    grads = [torch.autograd.grad(output.loss.sum(), case.theta)[0] for output in (one, other)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-14)


@each_loss
def test_micro_batches_add_up(name, changes):
    """Signals over the whole batch in another order, then any split: loss and gradient are those of the whole."""
    loss, case = load(name, **changes), random_case(1)
    batch = case.batch()
    expected = loss(with_signals(loss, batch)).loss
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    shuffled = with_signals(loss, rows(batch, order))
    found = torch.cat([loss(rows(shuffled, part)).loss for part in torch.arange(15).split([1, 4, 7, 3])])
    torch.testing.assert_close(found, expected[order], rtol=1e-12, atol=1e-13)
    gradients = [torch.autograd.grad(each.sum(), case.theta, retain_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)


@each_loss
def test_outputs_have_the_promised_form_and_a_loss_does_not_touch_its_batch(name, changes):
    loss, case = load(name, **changes), random_case(3)
    batch = with_signals(loss, case.batch())
    before = {f: getattr(batch, f).detach().clone() for f in TOKENS + SAMPLES}
    output = loss(batch)
    assert torch.equal(output.loss, loss(batch).loss)
    assert all(torch.equal(before[f], getattr(batch, f)) for f in before)
    assert isinstance(output, LossOutput)
    assert output.loss.shape == (15,)
    assert output.loss.requires_grad
    for key, value in output.metrics.items():
        assert value.shape == (15,), key
        assert not value.requires_grad, key
        assert value.dtype == torch.float64, key
    assert isinstance(loss, Loss)
    assert loss.needs <= NEEDS.keys()


def shifted(delta: float, reward: float, tokens: int = 4) -> Batch:
    """One response in float32 whose log-ratio is Δ."""
    logp = torch.full((1, tokens), -1.0, requires_grad=True)
    mu, mask = torch.full((1, tokens), -1.0 - delta / tokens), torch.ones(1, tokens, dtype=torch.bool)
    group = {"group_mean": torch.zeros(1), "group_std": torch.ones(1), "group_size": torch.full((1,), 4)}
    return Batch(logp, mu, mask, torch.tensor([reward]), torch.tensor([reward > 0]), **group)


BOUNDED = [*itertools.product(("topr", "tis", "naive", "sft"), (1e3, -1e3), (1.0, -1.0), ({}, {"ratio": "token"}))]
BOUNDED += [*itertools.product(("cispo", "vespo", "sapo", "m2po"), (1e3, -1e3), (1.0, -1.0), ({},))]
BOUNDED += [("is", delta, reward, {}) for delta, reward in ((-1e3, 1.0), (-1e3, -1.0), (1e3, 0.0), (-1e3, 0.0))]
FINITE = ((1e3, 1.0), (-1e3, 1.0), (-1e3, -1.0), (1e3, 0.0), (-1e3, 0.0))
BOUNDED += [("ppo", *case, ratio) for case in FINITE for ratio in ({}, {"ratio": "token"})]


@pytest.mark.parametrize(("name", "delta", "reward", "ratio"), BOUNDED)
def test_no_overflow_where_the_weight_is_bounded(name, delta, reward, ratio):
    loss = load(name, **ratio)
    batch = with_signals(loss, shifted(delta, reward))
    output = loss(batch)
    (grad,) = torch.autograd.grad(output.loss.sum(), batch.logp)
    finite = [output.loss, grad, *(value for key, value in output.metrics.items() if (name, key) != ("is", "weight"))]
    assert all(torch.isfinite(each).all() for each in finite)
    if reward == 0:
        assert output.loss.item() == 0
        assert not grad.any()


def test_untruncated_importance_sampling_overflows_openly():
    """b = ∞ promises no finite weight: the loss becomes infinite, which stops a run, not NaN or a silent clamp."""
    assert torch.isinf(load("is")(shifted(1e3, 1.0)).loss).all()
    assert torch.isinf(load("ppo")(shifted(1e3, -1.0)).loss).all()


def test_dpo_saturates_without_overflow():
    for delta, expected in ((1e3, 200.0), (-1e3, 0.0)):
        chosen, rejected = shifted(-delta, 1.0), shifted(delta, -1.0)
        loss = load("dpo")(PairBatch(chosen, rejected)).loss
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss.sum(), (chosen.logp, rejected.logp)))


@each_loss
def test_an_empty_response_has_no_gradient(name, changes):
    """A response without a single token (T = 0) must not divide by 0."""
    loss, case = load(name, **changes), random_case(10)
    batch = case.batch()
    mask = batch.mask.clone()
    mask[0] = False
    output = loss(with_signals(loss, dataclasses.replace(batch, mask=mask)))
    assert torch.isfinite(output.loss).all()
    assert all(torch.isfinite(value).all() for value in output.metrics.values())
    (grad,) = torch.autograd.grad(output.loss[0], case.theta)
    assert not grad.any()


def test_clipped_shares_ignore_rounding():
    """At step 0 half of all Δ are a rounding error above 0: nothing counts as clipped before |Δ| > 1e-3."""
    for delta, clipped in ((5e-4, 0.0), (-5e-4, 0.0), (2e-3, 1.0)):
        assert load("tis")(shifted(delta, -1.0)).metrics["clipped_high"].item() == clipped
    assert load("topr")(shifted(-2e-3, 1.0)).metrics["clipped_low"].item() == 1.0


DTYPES = {"logp": torch.half, "mask": torch.long, "positive": torch.double}
SHAPES = [field for field in TOKENS + SAMPLES if field not in ("sample", "group_std", "group_size")]


@pytest.mark.parametrize(("field", "change"), [*((field, None) for field in SHAPES), *DTYPES.items()])
@pytest.mark.parametrize("name", NAMES)
def test_wrong_shapes_and_types_raise(name, field, change):
    loss, case = load(name), random_case(5)
    batch = with_signals(loss, case.batch())
    value = getattr(batch, field)
    bad = dataclasses.replace(batch, **{field: value[:-1] if change is None else value.to(change)})
    with pytest.raises(TOPRError, match=field):
        loss(PairBatch(batch, bad) if name in PAIRS else bad)


@pytest.mark.parametrize(
    "field", ["old_logp", "ref_logp", "vocab_kl", "group", "group_mean", "group_size", "group_rewards", "sample"]
)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in PAIRS])
def test_what_needs_names_is_needed_and_nothing_else(name, field):
    if name == OWN and field in ("group", "sample", "group_rewards"):
        pytest.skip("every batch has it, or every one with another field that is asked for here")
    loss, case = load(name), random_case(6)
    promised = {
        "old_logp": "old_logp" in loss.needs,
        "ref_logp": "ref_logp" in loss.needs,
        "vocab_kl": "vocab_kl" in loss.needs,
        "group": "groups" in loss.needs,
        "group_mean": "group_rewards" in loss.needs and "groups" not in loss.needs and name != "oapl",
        "group_size": "group_rewards" in loss.needs and "groups" not in loss.needs,
        "group_rewards": name == "oapl",
        "sample": name == "red_drop",
    }[field]
    batch = case.batch(**{field: None})
    if promised:
        with pytest.raises(TOPRError, match=field):
            loss(with_signals(loss, batch))
    else:
        loss(with_signals(loss, batch))


@each_loss
def test_a_loss_reads_mu_unless_it_says_otherwise(name, changes):
    """What mu=none rests on: without `needs_mu` another μ changes no gradient."""
    gradients = []
    for shift in (0.0, 0.7):
        loss, case = load(name, **changes), random_case(8)
        batch = case.pairs() if "pairs" in loss.needs else case.batch()
        sides = [batch.chosen, batch.rejected] if isinstance(batch, PairBatch) else [batch]
        moved = [
            dataclasses.replace(side, mu_logp=side.mu_logp - shift * side.reward[:, None].sign()) for side in sides
        ]
        batch = PairBatch(*moved) if len(moved) == 2 else with_signals(loss, moved[0])
        gradients.append(torch.autograd.grad(loss(batch).loss.sum(), case.theta)[0])
    same = torch.equal(*gradients)
    if not loss.needs_mu:
        assert same
    elif name in ("topr", "tis", "is", "ppo", "grpo", "dpo", "cispo"):
        assert not same


def test_signals_must_come_from_complete_groups():
    loss, case = load("agro"), random_case(7)
    with pytest.raises(TOPRError, match=r"run loss\.signals over the global batch"):
        loss(case.batch())
    for name in ("agro", "agro_on_policy", "rloo", "red_drop"):
        with pytest.raises(TOPRError, match="a group has 4 of its 5 responses"):
            load(name).signals(rows(case.batch(), list(range(14))))


@pytest.mark.parametrize("name", [n for n in NAMES if load(n).needs & {"groups", "group_rewards"}])
def test_a_group_of_one_is_refused(name):
    loss, case = load(name), random_case(8)
    batch = rows(case.batch(), [0, 5, 10])
    batch = dataclasses.replace(batch, group_size=torch.ones(3, dtype=torch.int64))
    with pytest.raises(TOPRError, match="at least 2"):
        loss(with_signals(loss, batch))
