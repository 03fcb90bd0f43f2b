"""Updates of float32 weights in bfloat16, and the output layer's three bfloat16 products against float64."""

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.conftest import normal
from tests.plain_scoring import logp_at
from tests.training.trainers import TOPR, make_examples, new_policy, new_trainer, optim, weights
from topr_exp.algorithms.topr import Tapered
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.hidden_states import Inputs, predicting_states
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.optimizers import make_optimizer
from topr_exp.training.output_layer import ChunkedScoring, OutputLayer, ScoresByChunk

CPU = torch.device("cpu")


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_at_the_papers_learning_rate_a_step_in_bfloat16_moves_float32_weights_as_float64_says(tmp_path, optimizer):
    """A step of 5e-7 is far below the spacing of bfloat16 numbers: weights kept in that would not move."""
    policy = new_policy()
    policy.compute_dtype = torch.bfloat16
    config = optim(lr=5e-7, name=optimizer, grad_clip=float("inf"))
    trainer = new_trainer(policy, TOPR, config, tmp_path)
    start = weights(trainer).double()
    exact_weights = [torch.nn.Parameter(weight.detach().double()) for weight in policy.model.parameters()]

    def copy_gradients(*_):
        for exact, weight in zip(exact_weights, policy.model.parameters(), strict=True):
            exact.grad = weight.grad.double()

    trainer.optimizer.register_step_pre_hook(copy_gradients)
    batch = GlobalBatch(make_examples(policy, TOPR), np.arange(8), mu_is_policy=True)

    trainer.update(batch, 1)

    movement = weights(trainer).double() - start
    make_optimizer(exact_weights, config).step()  # of the same gradient, in float64
    flat_weights = [weight.detach().flatten() for weight in exact_weights]
    expected = torch.cat(flat_weights) - start
    assert float(expected.abs().median()) > 1e-8
    # A weight moves by multiples of its spacing, so single ones are off by up to half of that.
    spacing = 2.0 ** (start.abs().log2().floor() - 23)
    error = movement - expected
    assert (error.abs() <= 0.51 * spacing + 1e-3 * expected.abs()).all()
    assert float(error.norm() / expected.norm()) < 0.1
    coarse = start.bfloat16()
    would_not_move = coarse + expected.bfloat16() == coarse
    assert float(would_not_move.double().mean()) > 0.95


@dataclass(frozen=True)
class Recording(Tapered):
    """TOPR that keeps the batches that it is called with."""

    batches: Any = field(default_factory=list)

    def __call__(self, batch):
        self.batches.append(batch)
        return super().__call__(batch)


def logp_by_hand(policy, sequences, dtype):
    """Log-probabilities by an output layer in `dtype`, from hidden states that autocast computes."""
    with torch.no_grad(), policy.autocast():
        hidden = predicting_states(policy.model, Inputs(sequences, CPU))
    weight = policy.model.lm_head.weight.detach()
    products = hidden.to(dtype).double() @ weight.to(dtype).double().T
    logits = products.to(dtype).double()
    completions = [completion for _, completion in sequences]
    return logp_at(logits, np.concatenate(completions)).numpy()


def test_in_bfloat16_scores_and_updates_take_the_output_layer_in_float32(tmp_path):
    policy = new_policy()
    loss = Recording(**vars(TOPR))
    policy.compute_dtype = torch.bfloat16
    examples = make_examples(policy, loss)
    trainer = new_trainer(policy, loss, optim(micro_batch_size=4), tmp_path)
    indices = np.arange(4)

    trainer.accumulate_gradients(GlobalBatch(examples, indices, mu_is_policy=False))

    rows = examples.rows(indices)
    (batch,) = loss.batches
    logp_of_update = batch.logp.detach()[batch.mask].numpy()
    scores = log_probabilities(policy, examples.completions, rows, 4).to_pylist()
    sequences = examples.completions.sequences(rows)
    for logp in (np.concatenate(scores), logp_of_update):
        assert np.abs(logp - logp_by_hand(policy, sequences, torch.float32)).max() < 1e-5
        assert np.abs(logp - logp_by_hand(policy, sequences, torch.bfloat16)).max() > 1e-3


# ---- the output layer's three products


def made_layer(dtype):
    """An output layer whose logits reach about 25."""
    layer = torch.nn.Linear(512, 2048, dtype=dtype)
    values = normal(2048, 512) * 6 / 512**0.5
    layer.weight.data = values.to(dtype)
    return layer


def score(logits, start, *, statistics):
    """Log p of a token with gradient, and a statistic without."""
    tokens = torch.arange(start, start + len(logits))
    logp = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    if not statistics:
        return (logp,)
    return logp, logits.detach().amax(-1)


def scores_by_halves(hidden, layer, chunk_size):
    """The scores as on a GPU; chunk_size: None for all at once, by autograd."""
    output_layer = OutputLayer(Mock(get_output_embeddings=lambda: layer), by_halves=True)
    if chunk_size is None:
        return score(output_layer.logits(hidden), 0, statistics=True)
    scoring = ChunkedScoring(output_layer, score, chunk_size)
    return ScoresByChunk.apply(hidden, layer.weight, layer.bias, scoring)


def scores_in(dtype, hidden, layer):
    """The scores where states and weights are rounded to a dtype, and the rest is exact."""
    states = hidden.to(dtype).double()
    weight = layer.weight.to(dtype).double()
    logits = states @ weight.T + layer.bias.double()
    return score(logits, 0, statistics=True)


def gradients_of(logp, trained):
    coefficients = normal(64, seed=2)
    return torch.autograd.grad((coefficients * logp).sum(), trained)


@pytest.mark.parametrize("chunk_size", [None, 7], ids=["at once", "by chunks"])
@pytest.mark.parametrize(
    "dtype, is_frozen",
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)],
    ids=["trained", "frozen", "frozen in bfloat16"],
)
def test_its_log_p_and_gradients_are_those_of_float64(dtype, is_frozen, chunk_size):
    """Hundreds of times nearer than those of one product in bfloat16."""
    hidden = normal(64, 512, seed=1).requires_grad_()
    layer = made_layer(dtype).requires_grad_(not is_frozen)

    logp, largest = scores_by_halves(hidden, layer, chunk_size)

    exact_logp, exact_largest = scores_in(torch.float64, hidden, layer)
    coarse_logp, _ = scores_in(torch.bfloat16, hidden, layer)
    error = (logp - exact_logp).abs().mean()
    coarse_error = (coarse_logp - exact_logp).abs().mean()
    assert error < 1e-4
    if dtype is torch.float32:  # else states alone are rounded
        assert coarse_error > 300 * error
    torch.testing.assert_close(largest.double(), exact_largest, atol=1e-3, rtol=0)
    trained = [hidden] if is_frozen else [hidden, layer.weight, layer.bias]
    exact_gradients = gradients_of(exact_logp, trained)
    for gradient, exact in zip(gradients_of(logp, trained), exact_gradients, strict=True):
        assert (gradient - exact).abs().max() < 1e-4 * exact.abs().max()
