"""Updates of float32 weights in bfloat16, and the output layer's three bfloat16 products against float64."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.conftest import config_of
from tests.training.trainers import TOPR, RecordingAGRO, make_examples, new_policy, new_trainer, optim, weights
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.hidden_states import Inputs, predicting_states
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.optimizers import make_optimizer
from topr_exp.training.output_layer import ChunkedScoring, OutputLayer, ScoresByChunk

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)


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
    trainer.update(GlobalBatch(make_examples(policy, TOPR), np.arange(8), mu_is_policy=True), 1)
    movement = weights(trainer).double() - start

    # The same gradient, the optimizer's arithmetic in float64.
    make_optimizer(exact_weights, config).step()
    expected = torch.cat([weight.detach().flatten() for weight in exact_weights]) - start
    assert float(expected.abs().median()) > 1e-8
    # A weight moves by multiples of its spacing, so single ones are off by up to half of that.
    spacing = 2.0 ** (start.abs().log2().floor() - 23)
    assert ((movement - expected).abs() <= 0.51 * spacing + 1e-3 * expected.abs()).all()
    assert float((movement - expected).norm() / expected.norm()) < 0.1
    coarse = start.bfloat16()
    is_unmoved = (coarse + expected.bfloat16()) == coarse
    assert float(is_unmoved.double().mean()) > 0.95


@pytest.mark.parametrize("model", ["llama3_8b", "deepseek_r1_8b"])
def test_the_8b_models_take_the_output_layer_in_float32(model):
    assert config_of(f"model={model}", "data=gsm8k").model.float32_head
    assert not config_of(f"model={model}", "data=gsm8k", "model.dtype=float32").model.float32_head  # all of it is


def test_cast_weights_are_held_for_many_passes_alone():
    """The gradient of a held weight would be summed in bfloat16 over the chunks of an output layer."""
    policy = new_policy()
    policy.compute_dtype = torch.bfloat16

    for is_kept in (False, True):
        with policy.autocast(keep=is_kept):
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_cache_enabled() == is_kept
    policy.compute_dtype = torch.float32
    with policy.autocast(keep=True):
        assert not torch.is_autocast_enabled("cpu")


def logp_by_hand(policy, sequences, dtype):
    """Log-probabilities by an output layer in `dtype`, from hidden states that autocast computes."""
    with torch.no_grad(), policy.autocast():
        hidden = predicting_states(policy.model, Inputs(sequences, CPU))
    weight = policy.model.lm_head.weight.detach().to(dtype).double()
    logits = (hidden.to(dtype).double() @ weight.T).to(dtype).double()
    tokens = np.concatenate([completion for _, completion in sequences])
    return logits.log_softmax(-1)[np.arange(len(tokens)), tokens].numpy()


@pytest.mark.parametrize("dtype, other_dtype", [DTYPES, DTYPES[::-1]])
def test_scores_and_updates_take_it_in_the_precision_that_is_set(tmp_path, dtype, other_dtype):
    policy, loss, indices = new_policy(), RecordingAGRO("agro", 0.5, False), np.arange(4)
    policy.compute_dtype, policy.float32_head = torch.bfloat16, dtype is torch.float32
    examples = make_examples(policy, loss)
    trainer = new_trainer(policy, loss, optim(micro_batch_size=4), tmp_path)

    trainer.accumulate_gradients(GlobalBatch(examples, indices, mu_is_policy=False))

    rows = examples.rows(indices)
    scores = log_probabilities(policy, examples.completions, rows, 4).to_pylist()
    (batch,) = loss.batches
    sequences = examples.sequences(rows)
    for logp in (np.concatenate(scores), batch.logp.detach()[batch.mask].numpy()):
        assert np.abs(logp - logp_by_hand(policy, sequences, dtype)).max() < 1e-5
        assert np.abs(logp - logp_by_hand(policy, sequences, other_dtype)).max() > 1e-3


# ---- the output layer's three products


def made_layer(dtype=torch.float32, bias=False):
    """An output layer whose logits reach about 25."""
    layer = torch.nn.Linear(512, 2048, bias=bias, dtype=dtype)
    values = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.weight.copy_(values * 6 / 512**0.5)
    return layer


def made_states():
    return torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).requires_grad_()


def output_layer_of(layer):
    """It computes as on a GPU."""
    return OutputLayer(Mock(get_output_embeddings=lambda: layer), float32=True, by_halves=True)


def assert_same_gradients(total, expected_total, inputs):
    """Equal to a ten-thousandth of the largest number."""
    expected_gradients = torch.autograd.grad(expected_total, inputs)
    for gradient, expected in zip(torch.autograd.grad(total, inputs), expected_gradients, strict=True):
        assert (gradient - expected).abs().max() < 1e-4 * expected.abs().max()


def log_p(logits):
    return logits.log_softmax(-1)[torch.arange(len(logits)), torch.arange(len(logits))]


def test_its_log_p_and_gradient_are_a_thousand_times_nearer_than_bfloat16s():
    hidden, layer = made_states(), made_layer()
    exact = log_p(hidden.double() @ layer.weight.double().T)
    in_bfloat16 = log_p(hidden.bfloat16().float() @ layer.weight.bfloat16().float().T)

    by_halves = log_p(output_layer_of(layer).logits(hidden))

    error = (by_halves.double() - exact).abs().mean()
    assert error < 1e-4
    assert (in_bfloat16.double() - exact).abs().mean() > 300 * error
    assert_same_gradients(by_halves.sum(), exact.sum(), (hidden, layer.weight))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_frozen_output_layer_gives_states_their_gradient_alone(dtype):
    hidden, layer = made_states(), made_layer(dtype).requires_grad_(False)
    exact = log_p(hidden.double() @ layer.weight.double().T)

    by_halves = log_p(output_layer_of(layer).logits(hidden))

    assert (by_halves.double() - exact).abs().mean() < 1e-4
    assert_same_gradients(by_halves.sum(), exact.sum(), [hidden])


def square_scores(logits, start, *, statistics):
    """A score with gradient, and one without."""
    squares = logits.square().mean(-1)
    return (squares, logits.detach().amax(-1)) if statistics else (squares,)


def test_by_chunks_scores_and_gradients_are_those_of_all_logits_at_once():
    """Also of two scores of which one has no gradient, and of the bias."""
    hidden, layer = made_states(), made_layer(bias=True)
    coefficients = torch.randn(64, generator=torch.Generator().manual_seed(2))
    scoring = ChunkedScoring(output_layer_of(layer), square_scores, chunk_size=7)

    squares, largest = ScoresByChunk.apply(hidden, layer.weight, layer.bias, scoring)

    logits = hidden.double() @ layer.weight.double().T + layer.bias.double()
    torch.testing.assert_close(largest.double(), logits.amax(-1), atol=1e-3, rtol=0)
    expected_total = (coefficients.double() * logits.square().mean(-1)).sum()
    assert_same_gradients((coefficients * squares).sum(), expected_total, [hidden, layer.weight, layer.bias])
