"""Scoring: equal to the plain computation, whatever the padding, the chunks and the company in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_model
from topr_exp.models.policy import Policy
from topr_exp.training import logprobs
from topr_exp.training.logprobs import collate, score_tokens

CPU = torch.device("cpu")


def sequences(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, 11, rng.integers(1, 9)), rng.integers(0, 11, rng.integers(1, 13))) for _ in range(count)]


def plain(model: Any, prompt: np.ndarray, completion: np.ndarray) -> torch.Tensor:
    """log π of each completion token from the full logits of one unpadded sequence."""
    ids = torch.tensor(np.concatenate([prompt, completion]))[None]
    logp = model(ids).logits[0].log_softmax(-1)
    return logp[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


def test_equal_to_the_plain_computation_whatever_the_padding(small_model: Any) -> None:
    data = sequences(9)
    scores = score_tokens(small_model, collate(data, CPU))
    for line, (prompt, completion) in zip(scores.logp, data, strict=True):
        torch.testing.assert_close(line[: len(completion)], plain(small_model, prompt, completion), atol=1e-5, rtol=0)
        assert (line[len(completion) :] == 0).all()


def test_gradients_equal_the_plain_ones_with_and_without_chunks(
    monkeypatch: pytest.MonkeyPatch, small_model: Any
) -> None:
    data = sequences(6)
    weights = torch.linspace(-1, 1, 6)
    total = sum(w * plain(small_model, *pair).sum() for w, pair in zip(weights, data, strict=True))
    parameters = list(small_model.parameters())
    expected = torch.autograd.grad(total, parameters)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    for chunk in (1 << 24, 33):
        monkeypatch.setitem(logprobs.CHUNK, "cpu", chunk)
        logp = score_tokens(small_model, collate(data, CPU), entropy=True).logp
        found = torch.autograd.grad((weights[:, None] * logp).sum(), parameters)
        for mine, theirs in zip(found, expected, strict=True):
            assert float((mine - theirs).abs().max()) < 3e-6 * largest


def test_in_bfloat16_chunks_give_the_output_layer_the_gradient_of_one(
    monkeypatch: pytest.MonkeyPatch, small_model: Any
) -> None:
    """Each chunk's part is added in float32: with one cast of the layer for all chunks it would be 5e-3."""
    # One token throughout, so that the parts do not cancel.
    data = [(prompt, np.full_like(completion, 3)) for prompt, completion in sequences(64)]
    policy = Policy(small_model, None, "test", torch.bfloat16)
    found = []
    for chunk in (1 << 24, 33):
        monkeypatch.setitem(logprobs.CHUNK, "cpu", chunk)
        with policy.autocast():
            logp = score_tokens(small_model, collate(data, CPU)).logp
        found += torch.autograd.grad(logp.sum(), small_model.lm_head.weight)
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1.5e-3


def test_entropy_and_vocabulary_kl_equal_their_definitions(monkeypatch: pytest.MonkeyPatch, small_model: Any) -> None:
    reference = make_model(11, seed=1)
    prompt, completion = sequences(1, seed=3)[0]
    ids = torch.tensor(np.concatenate([prompt, completion]))[None]
    where = slice(len(prompt) - 1, -1)
    p, q = (model(ids).logits[0, where].log_softmax(-1) for model in (small_model, reference))
    for chunk in (1 << 24, 22):
        monkeypatch.setitem(logprobs.CHUNK, "cpu", chunk)
        scores = score_tokens(small_model, collate([(prompt, completion)], CPU), entropy=True, reference=reference)
        assert scores.entropy is not None
        assert scores.vocab_kl is not None
        torch.testing.assert_close(scores.entropy[0], -(p.exp() * p).sum(-1), atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.vocab_kl[0], (p.exp() * (p - q)).sum(-1), atol=1e-5, rtol=0)
        assert scores.vocab_kl.requires_grad
        assert not scores.entropy.requires_grad


def test_a_model_that_changes_its_logits_is_refused(small_model: Any) -> None:
    model = make_model(11)
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(Exception, match="final_logit_softcapping; not supported"):
        score_tokens(model, collate(sequences(1), CPU))
