"""Updates of float32 weights in bfloat16, and the output layer's three bfloat16 products against float64."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import config_of, make_model
from tests.training.test_trainer import AGRO_LOSS, TOPR, make_examples, new_trainer, optim, weights
from topr_exp.algorithms.agro import AGRO
from topr_exp.models.policy import Policy
from topr_exp.training import logprobs, output_layer, split_product
from topr_exp.training.hidden_states import Inputs, predicting_states
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.optimizers import make_optimizer
from topr_exp.training.output_layer import OutputLayer


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_at_the_papers_learning_rate_a_step_in_bfloat16_moves_float32_weights_as_float64_says(
    tmp_path: Path, make_policy: Any, optimizer: str
) -> None:
    """A step of 5e-7 is far below the spacing of bfloat16 numbers: weights kept in that would not move."""
    changes = {"lr": 5e-7, "name": optimizer, "grad_clip": float("inf")}
    policy = make_policy(make_model(11))
    policy.compute_dtype = torch.bfloat16
    examples = make_examples(policy, TOPR)
    start = torch.cat([weight.detach().flatten() for weight in policy.model.parameters()]).double()
    trainer = new_trainer(policy, TOPR, optim(**changes), tmp_path)
    optimizer_step, gradients = trainer.optimizer.step, list[Tensor]()  # which a step may use up

    def recording_step() -> None:
        gradients.extend(weight.grad.double() for weight in policy.model.parameters())
        optimizer_step()

    trainer.optimizer.step = recording_step
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    movement = weights(trainer).double() - start

    # The same gradient, the optimizer's arithmetic in float64.
    exact_weights = []
    for values, gradient in zip(start.split([gradient.numel() for gradient in gradients]), gradients, strict=True):
        weight = torch.nn.Parameter(values.view_as(gradient).clone())
        weight.grad = gradient
        exact_weights.append(weight)
    make_optimizer(exact_weights, trainer.config).step()
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
def test_the_8b_models_take_the_output_layer_in_float32(model: str) -> None:
    assert config_of(f"model={model}", "data=gsm8k").model.float32_head
    assert not config_of(f"model={model}", "data=gsm8k", "model.dtype=float32").model.float32_head  # all of it is


def head_by_hand(policy: Policy, sequences: Any, dtype: torch.dtype) -> list[list[float]]:
    """Log-probabilities of completions by an output layer in `dtype`, from hidden states that autocast computes."""
    with torch.no_grad(), policy.autocast():
        hidden = predicting_states(policy.model, Inputs(sequences, policy.device))
    weight = policy.model.lm_head.weight.detach().to(dtype).double()
    logits = (hidden.to(dtype).double() @ weight.T).to(dtype).double()
    tokens = torch.from_numpy(np.concatenate([completion for _, completion in sequences])).long()
    logp = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return [values.tolist() for values in logp.split([len(completion) for _, completion in sequences])]


@pytest.mark.parametrize("float32_head", [True, False])
def test_scores_and_updates_take_it_in_the_precision_that_is_set(tmp_path, make_policy, monkeypatch, float32_head):
    policy = make_policy(make_model(11))
    policy.compute_dtype, policy.float32_head = torch.bfloat16, float32_head
    examples = make_examples(policy, AGRO_LOSS)
    trainer = new_trainer(policy, AGRO_LOSS, optim(micro_batch_size=4), tmp_path)
    indices = np.arange(4)
    rows = examples.rows(indices)
    in_float32 = np.concatenate(head_by_hand(policy, examples.sequences(rows), torch.float32))
    in_bfloat16 = np.concatenate(head_by_hand(policy, examples.sequences(rows), torch.bfloat16))
    expected, of_other_precision = (in_float32, in_bfloat16) if float32_head else (in_bfloat16, in_float32)
    batches = []
    call = AGRO.__call__
    monkeypatch.setattr(AGRO, "__call__", lambda loss, batch: batches.append(batch) or call(loss, batch))
    trainer.accumulate_gradients(examples, indices)
    trained_logp = batches[0].logp.detach()[batches[0].mask].numpy()
    scored_logp = np.concatenate(log_probabilities(policy, examples.completions, rows, 4)["logp"].to_pylist())
    for logp in (trained_logp, scored_logp):
        assert np.abs(logp - expected).max() < 1e-5
        assert np.abs(logp - of_other_precision).max() > 1e-3

    precisions = []

    def recording_output_layer(model: Any, *, float32: bool) -> OutputLayer:
        precisions.append(float32)
        return OutputLayer(model, float32=float32)

    monkeypatch.setattr(logprobs, "OutputLayer", recording_output_layer)
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=False)
    assert precisions == [float32_head] * 4  # the signals of two micro-batches, then their losses


# ---- the output layer's three products


@pytest.fixture
def tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the output layer compute as on a GPU."""
    monkeypatch.setattr(split_product, "has_tensor_cores", lambda weight: True)


def made_layer(dtype: torch.dtype = torch.float32, bias: bool = False) -> torch.nn.Linear:
    """An output layer whose logits reach about 25."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(512, 2048, bias=bias, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * 6 / 512**0.5)
    return layer


def made_states() -> Tensor:
    return torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).requires_grad_()


def output_layer_of(layer: torch.nn.Linear) -> OutputLayer:
    return OutputLayer(Mock(get_output_embeddings=lambda: layer), float32=True)


def assert_near(values: Tensor, expected: Tensor) -> None:
    """Equal to a ten-thousandth of the largest number."""
    assert (values - expected).abs().max() < 1e-4 * expected.abs().max()


def log_p(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1)[torch.arange(len(logits)), torch.arange(len(logits))]


def test_its_log_p_and_gradient_are_a_thousand_times_nearer_than_bfloat16s(tensor_cores: None) -> None:
    hidden, layer = made_states(), made_layer()
    weight = layer.weight
    exact = log_p(hidden.double() @ weight.double().T)
    by_halves = log_p(output_layer_of(layer).logits(hidden))
    in_bfloat16 = log_p(hidden.bfloat16().float() @ weight.bfloat16().float().T)
    error = (by_halves.double() - exact).abs().mean()
    assert error < 1e-4
    assert (in_bfloat16.double() - exact).abs().mean() > 300 * error
    gradients = torch.autograd.grad(by_halves.sum(), (hidden, weight))
    for gradient, expected in zip(gradients, torch.autograd.grad(exact.sum(), (hidden, weight)), strict=True):
        assert_near(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_output_layer_gives_states_their_gradient_alone(tensor_cores: None, dtype: torch.dtype) -> None:
    hidden, layer = made_states(), made_layer(dtype).requires_grad_(False)
    exact = log_p(hidden.double() @ layer.weight.double().T)
    by_halves = log_p(output_layer_of(layer).logits(hidden))
    assert (by_halves.double() - exact).abs().mean() < 1e-4
    (gradient,) = torch.autograd.grad(by_halves.sum(), hidden)
    (expected,) = torch.autograd.grad(exact.sum(), hidden)
    assert_near(gradient, expected)


@pytest.mark.parametrize("rows", [64, 7])
def test_by_chunks_scores_and_gradients_are_those_of_all_logits_at_once(
    tensor_cores: None, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Also of two scores of which one has no gradient, and of the bias."""
    monkeypatch.setitem(output_layer.LOGITS_AT_A_TIME, "cpu", rows * 2048)
    hidden, layer = made_states(), made_layer(bias=True)
    inputs = [hidden, layer.weight, layer.bias]
    coefficients = torch.randn(64, generator=torch.Generator().manual_seed(2))

    def score(logits: Tensor, start: int, *, statistics: bool) -> tuple[Tensor, ...]:
        squares = logits.square().mean(-1)
        largest = logits.detach().amax(-1)
        return (squares, largest) if statistics else (squares,)

    squares, largest = output_layer_of(layer).scores(hidden, score)
    gradients = torch.autograd.grad((coefficients * squares).sum(), inputs)
    logits = hidden.double() @ layer.weight.double().T + layer.bias.double()
    expected_gradients = torch.autograd.grad((coefficients.double() * logits.square().mean(-1)).sum(), inputs)
    torch.testing.assert_close(largest.double(), logits.amax(-1), atol=1e-3, rtol=0)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        assert_near(gradient, expected)


def test_scores_take_them_on_a_gpu(small_model, tensor_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([1, 2, 3], [4, 5]), ([3], [2, 2, 6])]
    inputs = Inputs([(np.array(a), np.array(b)) for a, b in pairs], torch.device("cpu"))

    def logp_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        logp = logprobs.score_tokens(small_model, inputs).logp
        (gradient,) = torch.autograd.grad(logp.sum(), small_model.get_output_embeddings().weight)
        return logp.detach(), gradient

    by_halves = logp_and_gradient()
    monkeypatch.setattr(split_product, "has_tensor_cores", lambda weight: False)
    for values, expected in zip(by_halves, logp_and_gradient(), strict=True):
        assert not torch.equal(values, expected)
        assert_near(values, expected)
