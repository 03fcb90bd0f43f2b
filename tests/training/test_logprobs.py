"""Scoring: equal to the plain computation with any padding and chunks; the metrics of an update."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_completions, make_model
from tests.training.test_packing import CASES, assert_same, draws, one_by_one, scored, use_layout
from topr_exp.models.policy import Policy
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import TokenScores, score_completions, score_tokens
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.training.output_layer import LOGITS_AT_A_TIME
from topr_exp.types import Batch, LossOutput

CPU = torch.device("cpu")


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(11, initializer_range=0.2)  # whose gradients are not so large that float32's rounding is
    expected = one_by_one(model, CASES["both"])
    for chunk in (1 << 24, 33):
        monkeypatch.setitem(LOGITS_AT_A_TIME, "cpu", chunk)
        assert_same(scored(model, CASES["both"], entropy=True), expected)


def test_in_bfloat16_chunks_give_the_output_layer_the_gradient_of_one(monkeypatch, small_model):
    """Each chunk's part is added in float32: with one cast of the layer for all chunks it would be 5e-3."""
    # One token throughout, so that the parts do not cancel.
    data = [(prompt, np.full_like(completion, 3)) for prompt, completion in draws([[3, 4], [5]], 32)]
    policy = Policy(small_model, None, "test", torch.bfloat16)
    gradients = []
    for chunk in (1 << 24, 33):
        monkeypatch.setitem(LOGITS_AT_A_TIME, "cpu", chunk)
        with policy.autocast():
            logp = score_tokens(small_model, Inputs(data, CPU)).logp
        gradients += torch.autograd.grad(logp.sum(), small_model.lm_head.weight)
    at_once, by_chunks = gradients
    assert float((by_chunks - at_once).norm() / at_once.norm()) < 1.5e-3


@pytest.mark.parametrize("layout", ["padded", "both"])
@pytest.mark.parametrize("chunk", [1 << 24, 22])
def test_entropy_and_vocabulary_kl_equal_their_definitions(monkeypatch, layout, chunk):
    model, reference = make_model(11, initializer_range=0.2), make_model(11, seed=1, initializer_range=0.2)
    monkeypatch.setitem(LOGITS_AT_A_TIME, "cpu", chunk)
    use_layout(monkeypatch, layout)
    scores = score_tokens(model, Inputs(CASES["both"], CPU), entropy=True, reference=reference)
    assert scores.vocab_kl.requires_grad
    assert not scores.entropy.requires_grad
    for i, (prompt, completion) in enumerate(CASES["both"]):
        ids = torch.tensor(np.concatenate([prompt, completion])).long()[None]
        predicting = slice(len(prompt) - 1, -1)
        logp = model(ids).logits[0, predicting].log_softmax(-1)
        reference_logp = reference(ids).logits[0, predicting].log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        vocab_kl = (logp.exp() * (logp - reference_logp)).sum(-1)
        torch.testing.assert_close(scores.entropy[i, : len(completion)], entropy, atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.vocab_kl[i, : len(completion)], vocab_kl, atol=1e-5, rtol=0)


def test_a_model_that_changes_its_logits_is_refused(small_model: Any) -> None:
    model = make_model(11)
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(Exception, match="final_logit_softcapping; not supported"):
        score_tokens(model, Inputs(CASES["one sequence"], CPU))


# ---- scores in the store


PROMPTS = [np.array(ids, np.int32) for ids in ([0, 4, 5], [0, 7], [0, 3, 8, 9, 4])]
TOKENS = [[4, 6, 3, 9], [5], [8, 8, 2], [3, 9, 9, 7, 5], [6, 1], [10, 4, 3], [7], [5, 5, 6, 8, 3, 4]]
PROBLEM = [2, 0, 1, 0, 2, 1, 1, 0]


def completions(table: str) -> Completions:
    """Completions of several lengths in no order."""
    return make_completions(PROBLEM, PROMPTS, table, [0, 5, len(TOKENS)], tokens=TOKENS)


IN_BFLOAT16 = {"compute_dtype": torch.bfloat16, "float32_head": True}


@pytest.mark.parametrize(
    ("changes", "table", "is_scored_again"),
    [
        ({}, "rollouts/a", False),
        ({"float32_head": False}, "rollouts/a", False),  # in float32 the output layer is, too
        ({}, "rollouts/b", True),
        ({"fingerprint": "other weights"}, "rollouts/a", True),
        (IN_BFLOAT16, "rollouts/a", True),
        (IN_BFLOAT16 | {"float32_head": False}, "rollouts/a", True),
    ],
)
def test_scores_are_reused_for_the_same_completions_weights_and_precision(
    tmp_path: Path, make_policy: Any, changes: dict[str, Any], table: str, is_scored_again: bool
) -> None:
    policy, store = make_policy(make_model(11)), Store(tmp_path)
    score_completions(policy, completions("rollouts/a"), store, 8, "scoring")
    policy = dataclasses.replace(policy, **changes)
    _, tokens_scored = score_completions(policy, completions(table), store, 8, "scoring")
    assert tokens_scored == (sum(map(len, TOKENS)) if is_scored_again else 0)


def test_the_precision_of_the_output_layer_is_in_the_key(tmp_path: Path, make_policy: Any) -> None:
    policy, store = dataclasses.replace(make_policy(make_model(11)), **IN_BFLOAT16), Store(tmp_path)
    score_completions(policy, completions("rollouts/a"), store, 8, "scoring")
    policy = dataclasses.replace(policy, float32_head=False)
    _, tokens_scored = score_completions(policy, completions("rollouts/a"), store, 8, "scoring")
    assert tokens_scored == sum(map(len, TOKENS))


def test_effective_sample_size_and_spent_negatives() -> None:
    """Ratios 2, 1, 0.009, 0.011, 0.001; the last three and the second are negatives."""
    ratio = torch.tensor([2.0, 1.0, 0.009, 0.011, 0.001], dtype=torch.float64)
    logp = torch.full((5, 1), -1.0, dtype=torch.float64)
    mu_logp = logp - ratio.log()[:, None]
    mask, rewards, is_positive = torch.ones(5, 1, dtype=torch.bool), torch.ones(5), torch.arange(5) == 0
    accumulator = MetricAccumulator()
    for rows in (slice(0, 2), slice(2, 5)):
        batch = Batch(logp[rows], mu_logp[rows], mask[rows], rewards[rows], is_positive[rows])
        accumulator.add(batch, LossOutput(torch.ones(len(batch.reward))), TokenScores(batch.logp, None, None))
    record = accumulator.record(10)
    assert record["loss"] == pytest.approx(0.5)
    assert record["ess"] == pytest.approx(float(ratio.sum() ** 2 / (5 * ratio.square().sum())))
    assert record["ess_pos"] == pytest.approx(1)
    assert record["spent_share_neg"] == 0.5
    assert math.exp(record["log_ratio_pos"]) == pytest.approx(2)
