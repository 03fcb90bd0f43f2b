"""The output layer's three bfloat16 products: their error in log p, and their gradient, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from topr_exp.training import logprobs
from topr_exp.training.split_products import SplitLinear, split


def layers(rows: int = 64, width: int = 512, vocabulary: int = 2048) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * 6 / width**0.5  # logits to about 25
    return hidden.requires_grad_(), weight.requires_grad_()


def log_p(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1)[torch.arange(len(logits)), torch.arange(len(logits))]


def test_its_log_p_is_a_thousand_times_nearer_than_bfloat16s() -> None:
    hidden, weight = layers()
    exact = log_p(hidden.double() @ weight.double().T)
    split_error = (log_p(SplitLinear.apply(hidden, weight, *split(weight))).double() - exact).abs().mean()
    coarse = hidden.bfloat16().float() @ weight.bfloat16().float().T
    coarse_error = (log_p(coarse).double() - exact).abs().mean()
    assert split_error < 1e-4
    assert coarse_error > 300 * split_error


def test_its_gradient_is_the_layers() -> None:
    hidden, weight = layers(rows=8, width=64, vocabulary=128)
    found = torch.autograd.grad(log_p(SplitLinear.apply(hidden, weight, *split(weight))).sum(), (hidden, weight))
    wanted = torch.autograd.grad(log_p(hidden.double() @ weight.double().T).sum(), (hidden, weight))
    for ours, exact in zip(found, wanted, strict=True):
        assert (ours - exact).abs().max() < 1e-4 * exact.abs().max()


def test_weights_that_are_not_trained_get_no_gradient() -> None:
    hidden, weight = layers(rows=8, width=64, vocabulary=128)
    frozen = weight.detach()
    SplitLinear.apply(hidden, frozen, *split(frozen)).sum().backward()
    assert hidden.grad is not None
    assert frozen.grad is None


def test_scores_take_them_on_a_gpu(small_model, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([1, 2, 3], [4, 5]), ([3], [2, 2, 6])]
    inputs = logprobs.Inputs([(np.array(a), np.array(b)) for a, b in pairs], torch.device("cpu"))

    def scored() -> tuple[torch.Tensor, torch.Tensor]:
        logp = logprobs.score_tokens(small_model, inputs).logp
        (gradient,) = torch.autograd.grad(logp.sum(), small_model.get_output_embeddings().weight)
        return logp.detach(), gradient

    exact = scored()
    monkeypatch.setattr(logprobs, "on_tensor_cores", lambda weight: True)
    for ours, wanted in zip(scored(), exact, strict=True):
        assert not torch.equal(ours, wanted)
        assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()
