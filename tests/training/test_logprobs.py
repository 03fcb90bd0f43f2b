"""Scoring: equal to the plain computation, whatever the padding, the chunks and the company in the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_model
from tests.training.test_trainer import TOPR, make_examples
from topr_exp.models.policy import Policy
from topr_exp.store import Store
from topr_exp.training import logprobs
from topr_exp.training.logprobs import collate, logits_of, score_rollouts, score_tokens

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


def test_an_output_layer_in_float32_does_not_round_log_probabilities() -> None:
    """A vocabulary of 128k whose largest logits are 16 to 32: in bfloat16 those are 0.125 apart."""
    model = make_model(128_256, hidden_size=64, tie_word_embeddings=False)
    policy = Policy(model, None, "test", torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        hidden = torch.randn((40, 64), generator=generator)
        weight = model.lm_head.weight
        weight *= 24 / torch.nn.functional.linear(hidden, weight).amax(-1).mean()
        exact = torch.nn.functional.linear(hidden, weight).double().log_softmax(-1)
        targets = exact.exp().multinomial(1, generator=generator)
        off = {}
        for float32 in (False, True):
            with policy.autocast():
                logits = logits_of(model.lm_head, hidden, float32)
            assert logits.dtype is torch.float32
            found = -torch.nn.functional.cross_entropy(logits, targets[:, 0], reduction="none").double()
            off[float32] = float((found - exact.gather(-1, targets)[:, 0]).square().mean().sqrt())
    assert off[True] < 1e-4
    assert off[False] > 0.02  # a token, so 0.3 and more in log π − log μ of 200


def test_the_choice_is_part_of_what_is_stored_below_float32_only(tmp_path: Path) -> None:
    model = make_model(11)
    rollouts = make_examples(Policy(model, None, "test", torch.float32), TOPR).rollouts
    kinds = [(dtype, head) for dtype in (torch.float32, torch.bfloat16) for head in (True, False)]
    for dtype, head in kinds:
        policy = Policy(model, None, "test", dtype, float32_head=head)
        score_rollouts(policy, rollouts, Store(tmp_path), 8, "")
    keys = [json.loads(path.read_text())["key"] for path in tmp_path.rglob("key.json")]
    assert sorted(("head" in key, key["precision"]) for key in keys) == [
        (False, "bfloat16"), (False, "float32"), (True, "bfloat16")
    ]  # fmt: skip


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
