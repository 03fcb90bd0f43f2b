"""What a sampler notes of its distribution: by a forward pass of its own, and in whole runs that are centered by it."""

import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM

import topr_exp
from tests.conftest import column, lines_of, make_model, read_json, small_config
from tests.plain_scoring import padded, padded_sequences
from tests.reference.model import table_of
from tests.sampling.test_sampler import PROMPTS, draw, settings, token_probabilities
from tests.sweep_tools import result
from topr_exp.config.model import Mismatch
from topr_exp.config.model_choice import SHIPPED
from topr_exp.pipeline import run
from topr_exp.sampling.mismatch import rounded_weights

VOCABULARY = 11


@pytest.mark.parametrize("weights", ["none", "int4"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.7, 0.8)])
def test_what_is_noted_is_what_each_token_was_drawn_from(weights, noise, temperature, top_p):
    model = make_model(VOCABULARY)
    changes = {"temperature": temperature, "top_p": top_p, "mismatch": Mismatch(weights, noise)}

    groups = draw(model, 8, top_logprobs=VOCABULARY, **changes)

    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            assert len(sample.tokens) == len(sample.top_tokens), "though completions end before others of their batch"
            for place, noted in enumerate(sample.top_tokens):
                prefix = [*prompt, *sample.tokens[:place]]
                with rounded_weights(model, weights):
                    expected = token_probabilities(model, prefix, settings(**changes))
                np.testing.assert_allclose(np.exp(noted.logp), expected, atol=1e-5)
                assert noted.ids is None
                assert noted.logp[sample.tokens[place]] == np.float32(sample.logprobs[place])


def test_the_likeliest_tokens_are_the_largest_of_the_whole_vocabulary():
    changes = {"temperature": 0.7, "top_p": 0.8, "mismatch": Mismatch("int4", 0.5)}

    samples, _ = draw(make_model(VOCABULARY), 8, top_logprobs=VOCABULARY, **changes)
    samples_of_three, _ = draw(make_model(VOCABULARY), 8, top_logprobs=3, **changes)

    for sample, sample_of_three in zip(samples, samples_of_three, strict=True):
        assert sample.tokens == sample_of_three.tokens
        for noted, likeliest in zip(sample.top_tokens, sample_of_three.top_tokens, strict=True):
            from_likeliest = np.sort(noted.logp)[::-1]
            assert np.array_equal(likeliest.logp, from_likeliest[:3])
            assert np.array_equal(likeliest.logp, noted.logp[likeliest.ids])


# ---- whole runs

ALL = 1000  # more than the vocabulary has
ONE_UPDATE = ("mu=sampler", "sampler.mismatch.logits_noise=0.5", "optim.batch_size=64", "algo.ratio=token")


class Update(NamedTuple):
    """Loss and norm of the gradient of a first update."""

    loss: float
    norm: float


def run_with(folder, *words):
    config = small_config(folder, *ONE_UPDATE, *words)
    run(config)
    return config


@pytest.fixture(scope="module")
def exact_run(outputs):
    """A run that is centered by the whole distribution; 64 completions, one update in four micro-batches."""
    return run_with(outputs, "algo.center_scores=true", f"sampler.top_logprobs={ALL}")


def prompts_of(config):
    """The tokens of the prompts, by problem, from the metadata of the shards that a run read."""
    sources = read_json(config.folder / "iteration-1/sources.json")
    prompts = []
    for path in sorted((config.store / sources["rollouts"]).glob("*.arrow")):
        metadata = pa.ipc.open_file(path).schema.metadata
        prompts += column(json.loads(metadata[b"prompts"]), "prompt_tokens")
    return prompts


def batch_of_own_loop(config, model, head_size):
    """The whole set of a run that noted all: from its store's files and logits of transformers."""
    prompts = prompts_of(config)
    rollouts = table_of(config.folder, "rollouts")
    sequences, sampler_logits = [], []
    for row in rollouts:
        prompt = prompts[row["problem"]]
        tokens = row["tokens"]
        noted = np.reshape(row["top_logp"], (len(tokens), -1)).astype(np.float32)
        sequences.append((prompt, tokens))
        sampler_logits.append(np.pad(noted, ((len(prompt) - 1, 1), (0, 0))))
    input_ids, mask = padded_sequences(sequences)
    verdicts = column(table_of(config.folder, "verdicts"), "verdict")
    is_correct = torch.tensor([verdict == "correct" for verdict in verdicts])
    return topr_exp.batch_from_logits(
        model(input_ids).logits,
        input_ids,
        mask,
        mu_logp=padded(column(rollouts, "sampler_logp")),
        reward=2.0 * is_correct - 1,
        sampler_logits=padded(sampler_logits),
        head_size=head_size,
    )


def update_of_own_loop(config, head_size, *, center_scores=True):
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "tiny")
    loss = topr_exp.loss("topr", ratio="token", center_scores=center_scores)
    batch = batch_of_own_loop(config, model, head_size)

    mean_loss = loss(batch).loss.mean()
    mean_loss.backward()

    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return Update(mean_loss.item(), norm.item())


def first_update(config):
    record = lines_of(config.folder / "metrics.jsonl")[0]
    assert record["samples"] == 64
    return Update(record["loss"], record["grad_norm"])


@pytest.mark.parametrize("head_size", [None, 5])
def test_a_runs_first_update_is_that_of_a_loop_over_its_stored_completions(outputs, exact_run, head_size):
    centered_run = exact_run
    if head_size is not None:
        centered_run = run_with(outputs, "algo.center_scores=true", f"sampler.top_logprobs={head_size}")

    expected = update_of_own_loop(exact_run, head_size)

    update = first_update(centered_run)
    assert update.loss == pytest.approx(expected.loss, rel=1e-4)
    assert update.norm == pytest.approx(expected.norm, rel=1e-4)
    uncentered = update_of_own_loop(exact_run, head_size, center_scores=False)
    assert abs(uncentered.norm / expected.norm - 1) > 0.01, "centering shows"


def test_what_is_noted_changes_nothing_that_is_drawn_trained_or_evaluated(outputs, exact_run):
    noting_run = run_with(outputs, f"sampler.top_logprobs={ALL}")
    plain_run = run_with(outputs)

    noting = result(noting_run.folder)
    plain = result(plain_run.folder)
    assert noting["weights"] == plain["weights"]
    assert noting["evaluations"] == plain["evaluations"]
    rollouts = table_of(noting_run.folder, "rollouts")
    assert len(rollouts) == 64
    assert table_of(exact_run.folder, "rollouts") == rollouts, "the same table of the store"
    for row in rollouts:
        assert row.pop("top_logp")
    assert rollouts == table_of(plain_run.folder, "rollouts")
