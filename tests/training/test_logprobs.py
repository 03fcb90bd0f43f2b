"""Scoring: equal to the plain computation with any padding and chunks; the metrics of an update."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.conftest import make_completions, make_model, refused
from tests.training.test_packing import CASES, assert_same, draws, one_by_one, scored, use_layout
from tests.training.trainers import new_policy
from topr_exp.models.policy import Policy
from topr_exp.store import Store
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import TokenScores, score_completions, score_tokens
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.training.output_layer import LOGITS_AT_A_TIME
from topr_exp.types import Batch, LossOutput

CPU = torch.device("cpu")


@pytest.fixture
def small_chunks(monkeypatch):
    """Have the output layer take three states at a time."""
    monkeypatch.setitem(LOGITS_AT_A_TIME, "cpu", 33)


def test_chunks_change_nothing(small_chunks):
    model = make_model(11, initializer_range=0.2)

    assert_same(scored(model, CASES["both"], entropy=True), one_by_one(model, CASES["both"]))


def test_in_bfloat16_chunks_give_the_output_layer_the_gradient_of_one(request):
    """Each chunk's part is added in float32: with one cast of the layer for all chunks it would be 5e-3."""
    # One token throughout, so that the parts do not cancel.
    data = [(prompt, np.full_like(completion, 3)) for prompt, completion in draws([[3, 4], [5]], 32)]
    policy = Policy(make_model(11), None, "test", torch.bfloat16)

    def output_gradient():
        with policy.autocast():
            logp = score_tokens(policy.model, Inputs(data, CPU)).logp
        return torch.autograd.grad(logp.sum(), policy.model.lm_head.weight)[0]

    at_once = output_gradient()
    request.getfixturevalue("small_chunks")
    by_chunks = output_gradient()

    assert float((by_chunks - at_once).norm() / at_once.norm()) < 1.5e-3


@pytest.mark.parametrize("layout", ["padded", "both"])
def test_entropy_and_vocabulary_kl_equal_their_definitions(monkeypatch, small_chunks, layout):
    model, reference = (make_model(11, seed=seed, initializer_range=0.2) for seed in (0, 1))
    use_layout(monkeypatch, layout)

    scores = score_tokens(model, Inputs(CASES["both"], CPU), entropy=True, reference=reference)

    assert scores.vocab_kl.requires_grad
    assert not scores.entropy.requires_grad
    for row, (prompt, completion) in enumerate(CASES["both"]):
        ids = torch.tensor(np.concatenate([prompt, completion])).long()[None]
        log_p, log_q = (side(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for side in (model, reference))
        entropy, vocab_kl = -(log_p.exp() * log_p).sum(-1), (log_p.exp() * (log_p - log_q)).sum(-1)
        tokens = slice(0, len(completion))
        torch.testing.assert_close(scores.entropy[row, tokens], entropy, atol=1e-5, rtol=0)
        torch.testing.assert_close(scores.vocab_kl[row, tokens], vocab_kl, atol=1e-5, rtol=0)


def test_a_model_that_changes_its_logits_is_refused():
    model = make_model(11)
    model.config.final_logit_softcapping = 30.0

    with refused("final_logit_softcapping; not supported"):
        score_tokens(model, Inputs(CASES["one sequence"], CPU))


# ---- scores in the store

PROMPTS = [np.array(ids, np.int32) for ids in ([0, 4, 5], [0, 7], [0, 3, 8, 9, 4])]
TOKENS = [[4, 6, 3, 9], [5], [8, 8, 2], [3, 9, 9, 7, 5], [6, 1], [10, 4, 3], [7], [5, 5, 6, 8, 3, 4]]
IN_BFLOAT16 = {"compute_dtype": torch.bfloat16, "float32_head": True}


def tokens_scored(policy, folder, table="rollouts/a"):
    """Score completions of several lengths in no order."""
    completions = make_completions([2, 0, 1, 0, 2, 1, 1, 0], PROMPTS, table, [0, 5, len(TOKENS)], tokens=TOKENS)
    return score_completions(policy, completions, Store(folder), 8, "scoring")[1]


@pytest.mark.parametrize(
    ("stored", "changes", "table", "is_scored_again"),
    [
        ({}, {}, "rollouts/a", False),
        ({}, {"float32_head": False}, "rollouts/a", False),  # in float32 the output layer is, too
        ({}, {}, "rollouts/b", True),
        ({}, {"fingerprint": "other weights"}, "rollouts/a", True),
        ({}, IN_BFLOAT16, "rollouts/a", True),
        (IN_BFLOAT16, IN_BFLOAT16 | {"float32_head": False}, "rollouts/a", True),
    ],
)
def test_scores_are_reused_for_the_same_completions_weights_and_precision(
    tmp_path, stored, changes, table, is_scored_again
):
    policy = new_policy()
    tokens_scored(dataclasses.replace(policy, **stored), tmp_path)

    count = tokens_scored(dataclasses.replace(policy, **changes), tmp_path, table)

    assert count == is_scored_again * sum(map(len, TOKENS))


# ---- metrics


def test_effective_sample_size_and_spent_negatives():
    """Ratios 2, 1, 0.009, 0.011, 0.001; all but the first are negatives."""
    ratio = torch.tensor([2.0, 1.0, 0.009, 0.011, 0.001], dtype=torch.float64)
    logp = torch.full((5, 1), -1.0, dtype=torch.float64)
    mu_logp, mask = logp - ratio.log()[:, None], torch.ones(5, 1, dtype=torch.bool)
    accumulator = MetricAccumulator()
    for rows in (slice(0, 2), slice(2, 5)):
        batch = Batch(logp[rows], mu_logp[rows], mask[rows], torch.ones(5)[rows], torch.arange(5)[rows] == 0)
        accumulator.add(batch, LossOutput(torch.ones(len(batch.reward))), TokenScores(batch.logp, None, None))

    record = accumulator.record(10)

    assert record["loss"] == pytest.approx(0.5)
    assert record["ess"] == pytest.approx(float(ratio.sum() ** 2 / (5 * ratio.square().sum())))
    assert record["ess_pos"] == pytest.approx(1)
    assert record["spent_share_neg"] == 0.5
    assert math.exp(record["log_ratio_pos"]) == pytest.approx(2)
