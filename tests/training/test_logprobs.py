"""Scoring: equal to the plain computation with any padding and chunks; the metrics of an update."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.conftest import make_model, refused
from tests.training.test_packing import (
    SHARED,
    assert_same,
    draws,
    make_smooth_model,
    one_by_one,
    tree_of,
    with_gradient,
)
from topr_exp.models.policy import Policy
from topr_exp.training.hidden_states import Inputs, states_in_layout
from topr_exp.training.logprobs import ScoreFunction, distribution_of, score_tokens
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.training.output_layer import ChunkedScoring, OutputLayer, ScoresByChunk

CPU = torch.device("cpu")


def scores_by_chunk(model, sequences, reference, *, chunk_size, layout="padded"):
    """log π, KL to the reference and entropy of all tokens, the logits of so many held at a time."""
    inputs = Inputs(sequences, CPU)
    score = ScoreFunction(inputs, distribution_of(reference, inputs, True), entropy=True)
    layer = OutputLayer(model, float32=True)
    scoring = ChunkedScoring(layer, score, chunk_size)
    hidden = states_in_layout(model, inputs, tree_of(model, sequences, layout))
    return ScoresByChunk.apply(hidden, layer.weight, layer.bias, scoring)


@pytest.mark.parametrize("layout", ["padded", "both"])
def test_by_chunks_every_score_is_its_definition(layout):
    model, reference = make_smooth_model(), make_smooth_model(seed=1)

    logp, vocab_kl, entropy = scores_by_chunk(model, SHARED, reference, chunk_size=3, layout=layout)

    assert vocab_kl.requires_grad
    assert_same(with_gradient(model, logp), one_by_one(model, SHARED))
    entropies, kls = [], []
    for prompt, completion in SHARED:
        ids = torch.tensor(np.concatenate([prompt, completion])).long()[None]
        log_p, log_q = (side(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for side in (model, reference))
        entropies.append(-(log_p.exp() * log_p).sum(-1))
        kls.append((log_p.exp() * (log_p - log_q)).sum(-1))
    assert_close(entropy, torch.cat(entropies), atol=1e-5, rtol=0)
    assert_close(vocab_kl, torch.cat(kls), atol=1e-5, rtol=0)


def test_in_bfloat16_chunks_give_the_output_layer_the_gradient_of_one():
    """Each chunk's part is added in float32: with one cast of the layer for all chunks it would be 5e-3."""
    # One token throughout, so that the parts do not cancel.
    sequences = [(prompt, np.full_like(completion, 3)) for prompt, completion in draws([[3, 4], [5]], 32)]
    policy = Policy(make_model(11), None, "test", torch.bfloat16)
    gradients = []

    for chunk_size in (3, 1000):
        with policy.autocast():
            logp, *_ = scores_by_chunk(policy.model, sequences, policy.model, chunk_size=chunk_size)
        gradients += torch.autograd.grad(logp.sum(), policy.model.lm_head.weight)

    by_chunks, at_once = gradients
    assert float((by_chunks - at_once).norm() / at_once.norm()) < 1.5e-3


def test_entropy_has_no_gradient_and_padding_no_scores():
    inputs = Inputs(SHARED, CPU)

    scores = score_tokens(make_smooth_model(), inputs, entropy=True)

    assert not scores.entropy.requires_grad
    for values in (scores.logp, scores.entropy):
        assert torch.equal(values != 0, inputs.mask)


def test_a_model_that_changes_its_logits_is_refused():
    model = make_model(11)
    model.config.final_logit_softcapping = 30.0

    with refused("final_logit_softcapping; not supported"):
        score_tokens(model, Inputs(SHARED, CPU))


# ---- metrics


def test_effective_sample_size_and_spent_negatives():
    """Of two micro-batches; all but the first are negatives."""
    ratio = torch.tensor([2.0, 1.0, 0.009, 0.011, 0.001], dtype=torch.float64)
    is_positive = torch.arange(5) == 0
    metrics = MetricAccumulator(ratio.log().split([2, 3]), is_positive.split([2, 3]), tokens=5)

    record = metrics.record(5)

    assert record["ess"] == pytest.approx(float(ratio.sum() ** 2 / (5 * ratio.square().sum())))
    assert record["ess_pos"] == pytest.approx(1)
    assert record["spent_share_neg"] == 0.5
    assert math.exp(record["log_ratio_pos"]) == pytest.approx(2)
