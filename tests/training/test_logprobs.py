"""Scoring: equal to the plain computation with any padding and chunks; the metrics of an update."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.conftest import each_row, make_model, refused
from tests.plain_scoring import completion_logits
from tests.training.test_packing import (
    SHARED,
    assert_same,
    draws,
    make_smooth_model,
    one_by_one,
    tree_of,
    with_gradient,
)
from tests.training.trainers import new_policy, policy_of
from topr_exp.training.example_scores import example_gradients, score_completions
from topr_exp.training.hidden_states import Inputs, states_in_layout
from topr_exp.training.logprobs import TokenScorer, distribution_of, score_tokens
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.training.output_layer import ChunkedScoring, OutputLayer, ScoresByChunk

CPU = torch.device("cpu")


def scores_by_chunk(model, sequences, reference, *, chunk_size, layout="padded"):
    """log π, KL to the reference and entropy of all tokens, the logits of so many held at a time."""
    inputs = Inputs(sequences, CPU)
    score = TokenScorer(inputs, distribution_of(reference, inputs), entropy=True)
    layer = OutputLayer(model)
    scoring = ChunkedScoring(layer, score, chunk_size)
    hidden = states_in_layout(model, inputs, tree_of(model, sequences, layout))
    return ScoresByChunk.apply(hidden, layer.weight, layer.bias, scoring)


@pytest.mark.parametrize("layout", ["padded", "both"])
def test_by_chunks_every_score_is_its_definition(layout):
    model = make_smooth_model()
    reference = make_smooth_model(seed=1)

    logp, vocab_kl, entropy = scores_by_chunk(model, SHARED, reference, chunk_size=3, layout=layout)

    entropies, kls = [], []
    for prompt, completion in SHARED:
        log_p = completion_logits(model, prompt, completion).log_softmax(-1)
        log_q = completion_logits(reference, prompt, completion).log_softmax(-1)
        p = log_p.exp()
        entropies.append(-(p * log_p).sum(-1))
        kls.append((p * (log_p - log_q)).sum(-1))
    assert vocab_kl.requires_grad
    assert_same(with_gradient(model, logp), one_by_one(model, SHARED))
    assert_close(entropy, torch.cat(entropies), atol=1e-5, rtol=0)
    assert_close(vocab_kl, torch.cat(kls), atol=1e-5, rtol=0)


def test_in_bfloat16_chunks_give_the_output_layer_the_gradient_of_one():
    """Each chunk's part is added in float32: with one cast of the layer for all chunks it would be 5e-3."""
    sequences = []
    for prompt, completion in draws([[3, 4], [5]], 32):
        sequences.append((prompt, np.full_like(completion, 3)))  # one token, so that the parts do not cancel
    policy = policy_of(make_model(11), torch.bfloat16)
    gradients = []

    for chunk_size in (3, 1000):
        with policy.autocast():
            logp, *_ = scores_by_chunk(policy.model, sequences, policy.model, chunk_size=chunk_size)
        gradients += torch.autograd.grad(logp.sum(), policy.model.lm_head.weight)

    by_chunks, at_once = gradients
    assert float((by_chunks - at_once).norm() / at_once.norm()) < 1.5e-3


# A prompt | a completion | what is said
WRONG_IDS = """
[5] | [] | "each have one token or more; got an empty one"
[] | [5] | "each have one token or more; got an empty one"
[11] | [5] | "token ids must be from 0 to 10, the vocabulary; got 11"
[5] | [4, -1] | "token ids must be from 0 to 10, the vocabulary; got -1"
[5, 5, 5] | [4, 4] | "a prompt and its completion have 5 tokens, the model's context is 4"
"""


@each_row("prompt completion line", WRONG_IDS, literals=True)
@pytest.mark.parametrize("function", [score_completions, lambda *inputs: list(example_gradients(*inputs))])
def test_ids_that_are_no_completion_are_one_line(function, prompt, completion, line):
    policy = new_policy(max_position_embeddings=4)

    with refused(line):
        function(policy, [prompt], [completion])


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_without_completions_is_one_line_and_scores_nothing(batch_size):
    with refused(f"batch_size must be 1 or more; got {batch_size}"):
        score_completions(new_policy(), [[5]], [[4]], batch_size=batch_size)


def example_gradient(policy):
    """The gradient of a single completion, flat."""
    (prompt, completion), *_ = SHARED
    (gradient,) = example_gradients(policy, [prompt], [completion])
    return gradient


def test_gradients_are_float32_whatever_the_weights_are():
    exact = example_gradient(new_policy())
    rounded = example_gradient(policy_of(make_model(11).bfloat16(), torch.bfloat16))

    assert rounded.dtype is torch.float32
    assert float((rounded - exact).norm() / exact.norm()) < 0.2


def test_weights_that_no_text_uses_have_a_gradient_of_0():
    """As those of a tower for images."""
    policy = new_policy()
    gradient = example_gradient(policy)
    policy.model.unused = torch.nn.Parameter(torch.ones(3))

    gradient_with_unused = example_gradient(policy)

    assert torch.equal(gradient_with_unused, torch.cat([torch.zeros(3), gradient]))


def test_a_model_that_changes_its_logits_is_refused():
    model = make_model(11)
    model.config.final_logit_softcapping = 30.0

    with refused("final_logit_softcapping; not supported"):
        score_tokens(model, Inputs(SHARED, CPU))


# ---- metrics


def test_effective_sample_sizes_and_spent_negatives():
    """Five answers to four problems, in two micro-batches; the first one alone is correct."""
    ratio = torch.tensor([3.0, 1.0, 0.009, 0.011, 1.0], dtype=torch.float64)
    is_positive = torch.arange(5) == 0
    problem = torch.tensor([0, 1, 2, 3, 0])
    ages = np.array([0, 3, 2, 5])  # by problem
    metrics = MetricAccumulator(ratio.log().split([2, 3]), is_positive.split([2, 3]), group=[problem], tokens=5)

    record = metrics.record(5, ages)

    sample_sizes = {name: size for name, size in record.items() if name.startswith("ess")}
    assert sample_sizes == pytest.approx(
        {
            "ess": 5.02**2 / (5 * (9 + 1 + 0.009**2 + 0.011**2 + 1)),
            "ess_pos": 1,
            "ess_neg": 2.02**2 / (4 * (1 + 0.009**2 + 0.011**2 + 1)),
            "ess_age0": (3 + 1) ** 2 / (2 * (9 + 1)),
            "ess_age2": 1.009**2 / (2 * (1 + 0.009**2)),  # of ages 2 and 3
            "ess_age4": 1,
        }
    )
    assert record["spent_share_neg"] == 1 / 4  # below 0.01
    assert math.exp(record["log_ratio_pos"]) == pytest.approx(3)
