"""How far an update moves float32 weights in bfloat16; the output layer's three bfloat16 products against float64."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import config_of, make_model
from tests.training.test_trainer import AGRO_LOSS, TOPR, make_examples, new_trainer, optim, weights
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
    before = torch.cat([weight.detach().flatten() for weight in policy.model.parameters()]).clone()
    trainer = new_trainer(policy, TOPR, optim(**changes), tmp_path)
    step, gradients = trainer.optimizer.step, list[Tensor]()  # which a step may use up

    def keeping_step() -> None:
        gradients.extend(weight.grad.double() for weight in policy.model.parameters())
        step()

    trainer.optimizer.step = keeping_step
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    moved = weights(trainer).double() - before.double()

    # The same gradient, the optimizer's arithmetic in float64.
    parts = before.double().split([gradient.numel() for gradient in gradients])
    exact = [torch.nn.Parameter(part.view_as(like)) for part, like in zip(parts, gradients, strict=True)]
    for weight, gradient in zip(exact, gradients, strict=True):
        weight.grad = gradient
    make_optimizer(exact, trainer.config).step()
    expected = torch.cat([weight.detach().flatten() for weight in exact]) - before.double()
    assert float(expected.abs().median()) > 1e-8
    # A weight moves by multiples of its own spacing, so single ones are off by up to half of that.
    spacing = 2.0 ** (before.double().abs().log2().floor() - 23)
    assert ((moved - expected).abs() <= 0.51 * spacing + 1e-3 * expected.abs()).all()
    assert float((moved - expected).norm() / expected.norm()) < 0.1

    coarse = before.bfloat16()
    unmoved = (coarse + expected.bfloat16()) == coarse
    assert float(unmoved.double().mean()) > 0.95


@pytest.mark.parametrize("model", ["llama3_8b", "deepseek_r1_8b"])
def test_the_8b_models_take_the_output_layer_in_float32(model: str) -> None:
    assert config_of(f"model={model}", "data=gsm8k").model.float32_head
    assert not config_of(f"model={model}", "data=gsm8k", "model.float32_head=false").model.float32_head
    assert not config_of(f"model={model}", "data=gsm8k", "model.dtype=float32").model.float32_head  # all of it is


def head_by_hand(policy: Policy, sequences: Any, dtype: torch.dtype) -> list[list[float]]:
    """log-probabilities of completions by an output layer in `dtype`, from hidden states that autocast computes."""
    with torch.no_grad(), policy.autocast():
        hidden = predicting_states(policy.model, Inputs(sequences, policy.device))
    weight = policy.model.lm_head.weight.detach().to(dtype).double()
    logits = (hidden.to(dtype).double() @ weight.T).to(dtype).double()
    tokens = torch.from_numpy(np.concatenate([completion for _, completion in sequences])).long()
    logp = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return [part.tolist() for part in logp.split([len(completion) for _, completion in sequences])]


@pytest.mark.parametrize("float32_head", [True, False])
def test_scores_and_updates_take_it_in_the_precision_that_is_set(tmp_path, make_policy, monkeypatch, float32_head):
    policy, asked = make_policy(make_model(11)), []
    policy.compute_dtype, policy.float32_head = torch.bfloat16, float32_head
    examples = make_examples(policy, AGRO_LOSS)
    trainer = new_trainer(policy, AGRO_LOSS, optim(micro_batch_size=4), tmp_path)
    chosen, seen = np.arange(4), []
    rows = examples.rows(chosen)
    sequences = examples.sequences(rows)
    right, wrong = (torch.float32, torch.bfloat16) if float32_head else (torch.bfloat16, torch.float32)
    expected, other = (np.concatenate(head_by_hand(policy, sequences, dtype)) for dtype in (right, wrong))
    trainer.loss = Mock(side_effect=lambda batch: seen.append(batch) or AGRO_LOSS(batch))
    trainer.accumulate_gradients(examples, chosen)
    logp, mask = seen[0].logp.detach(), seen[0].mask
    scored = log_probabilities(policy, examples.completions, rows, 4)["logp"].to_pylist()
    for found in (logp[mask].numpy(), np.concatenate(scored)):
        assert np.abs(found - expected).max() < 1e-5
        assert np.abs(found - other).max() > 1e-3

    def recording_output_layer(model: Any, *, float32: bool) -> OutputLayer:
        asked.append(float32)
        return OutputLayer(model, float32=float32)

    monkeypatch.setattr(logprobs, "OutputLayer", recording_output_layer)
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=False)
    assert asked == [float32_head] * 4  # the signals of two micro-batches, then their losses


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


def log_p(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1)[torch.arange(len(logits)), torch.arange(len(logits))]


def test_its_log_p_and_gradient_are_a_thousand_times_nearer_than_bfloat16s(tensor_cores: None) -> None:
    hidden, layer = made_states(), made_layer()
    weight = layer.weight
    exact = log_p(hidden.double() @ weight.double().T)
    ours = log_p(output_layer_of(layer).logits(hidden))
    coarse = log_p(hidden.bfloat16().float() @ weight.bfloat16().float().T)
    error = (ours.double() - exact).abs().mean()
    assert error < 1e-4
    assert (coarse.double() - exact).abs().mean() > 300 * error
    gradients = [torch.autograd.grad(values.sum(), (hidden, weight)) for values in (ours, exact)]
    for gradient, wanted in zip(*gradients, strict=True):
        assert (gradient - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_output_layer_gives_states_their_gradient_alone(tensor_cores: None, dtype: torch.dtype) -> None:
    hidden, layer = made_states(), made_layer(dtype).requires_grad_(False)
    exact = log_p(hidden.double() @ layer.weight.double().T)
    ours = log_p(output_layer_of(layer).logits(hidden))
    assert (ours.double() - exact).abs().mean() < 1e-4
    (gradient,) = torch.autograd.grad(ours.sum(), hidden)
    (wanted,) = torch.autograd.grad(exact.sum(), hidden)
    assert (gradient - wanted).abs().max() < 1e-4 * wanted.abs().max()


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
    wanted = torch.autograd.grad((coefficients.double() * logits.square().mean(-1)).sum(), inputs)
    torch.testing.assert_close(largest.double(), logits.amax(-1), atol=1e-3, rtol=0)
    for gradient, expected in zip(gradients, wanted, strict=True):
        assert (gradient - expected).abs().max() < 1e-4 * expected.abs().max()


def test_scores_take_them_on_a_gpu(small_model, tensor_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([1, 2, 3], [4, 5]), ([3], [2, 2, 6])]
    inputs = Inputs([(np.array(a), np.array(b)) for a, b in pairs], torch.device("cpu"))

    def scored() -> tuple[torch.Tensor, torch.Tensor]:
        logp = logprobs.score_tokens(small_model, inputs).logp
        (gradient,) = torch.autograd.grad(logp.sum(), small_model.get_output_embeddings().weight)
        return logp.detach(), gradient

    by_halves = scored()
    monkeypatch.setattr(split_product, "has_tensor_cores", lambda weight: False)
    for ours, wanted in zip(by_halves, scored(), strict=True):
        assert not torch.equal(ours, wanted)
        assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()
