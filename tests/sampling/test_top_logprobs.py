"""What a sampler notes of its distribution: by a forward pass of its own, and in whole runs that are centered by it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM

import topr_exp
from tests.conftest import config_of, lines_of, make_model, overrides
from tests.sampling.test_sampler import EOS, settings
from topr_exp.config.model import Mismatch
from topr_exp.models.model_folder import SHIPPED
from topr_exp.models.policy import Policy
from topr_exp.pipeline import run
from topr_exp.sampling.hf import HFSampler, normal_of
from topr_exp.sampling.mismatch import rounded_weights
from topr_exp.types import Batch

VOCABULARY = 11
PROMPTS = [[0, 3], [0, 4, 2]]


def draw(top_logprobs: int, n: int = 8, **changes: Any) -> Any:
    """The model, and n completions of each prompt with what was noted of them."""
    model = make_model(VOCABULARY)
    policy = Policy(model, SimpleNamespace(eos_token_id=EOS), "test", torch.float32)
    sampler = HFSampler(settings(top_logprobs=top_logprobs, **changes))
    return model, sampler.sample(policy, PROMPTS, n, (1,), ())


def probabilities(model: Any, prefix: list[int], noise: float, temperature: float, top_p: float) -> np.ndarray:
    """Of the next token, [V]: the softmax of noised logits, cut to the likeliest tokens that have top_p together."""
    with torch.no_grad():
        logits = model(torch.tensor([prefix])).logits[0, -1]
    logits = logits + noise * normal_of(0, [tuple(prefix)], logits[None])[0]
    chances = np.exp((logits / temperature).double().numpy())
    chances /= chances.sum()
    order = np.argsort(-chances)
    has_enough_before = np.cumsum(chances[order]) - chances[order] >= top_p
    chances[order[has_enough_before]] = 0
    return chances / chances.sum()


@pytest.mark.parametrize("weights", ["none", "int4"])
@pytest.mark.parametrize(
    ("noise", "temperature", "top_p"), [(0.0, 1.0, 1.0), (0.5, 1.0, 1.0), (0.0, 0.7, 0.8), (0.5, 0.7, 0.8)]
)
def test_what_is_noted_is_what_each_token_was_drawn_from(weights, noise, temperature, top_p):
    changes = {"temperature": temperature, "top_p": top_p, "mismatch": Mismatch(weights, noise)}

    model, groups = draw(VOCABULARY, **changes)
    _, groups_of_three = draw(3, **changes)

    for prompt, group, group_of_three in zip(PROMPTS, groups, groups_of_three, strict=True):
        for sample, sample_of_three in zip(group, group_of_three, strict=True):
            assert sample.tokens == sample_of_three.tokens
            noted_pairs = zip(sample.top_tokens, sample_of_three.top_tokens, strict=True)
            for place, (vocabulary, likeliest) in enumerate(noted_pairs):
                with rounded_weights(model, weights):
                    expected = probabilities(model, [*prompt, *sample.tokens[:place]], noise, temperature, top_p)
                np.testing.assert_allclose(np.exp(vocabulary.logp), expected, atol=1e-5)
                assert vocabulary.ids is None
                assert vocabulary.logp[sample.tokens[place]] == np.float32(sample.logprobs[place])
                assert likeliest.logp.tolist() == sorted(vocabulary.logp.tolist(), reverse=True)[:3]
                assert vocabulary.logp[likeliest.ids].tolist() == likeliest.logp.tolist()


def test_each_token_has_its_place_though_ended_completions_stay_in_the_batch():
    _, groups = draw(VOCABULARY, n=200)

    lengths = {len(sample.tokens) for sample in groups[0]}
    assert len(lengths) > 1
    assert all(len(sample.top_tokens) == len(sample.tokens) for sample in groups[0])


# ---- whole runs

ALL = 1000  # more than the vocabulary has
ONE_UPDATE = ("mu=sampler", "sampler.mismatch.logits_noise=0.5", "optim.batch_size=64", "algo.ratio=token")


class Update(NamedTuple):
    """Loss and norm of the gradient of a first update."""

    loss: float
    norm: float


def run_with(folder: Path, *words: str) -> Any:
    config = config_of(*overrides(folder, *ONE_UPDATE, *words))
    run(config)
    return config


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return tmp_path_factory.mktemp("centered")


@pytest.fixture(scope="module")
def exact_run(outputs):
    """A run that is centered by the whole distribution; 64 completions, one update in four micro-batches."""
    return run_with(outputs, "algo.center_scores=true", f"sampler.top_logprobs={ALL}")


def stored_table(config: Any, kind: str) -> pa.Table:
    """The shards of a table that a run read, one after the other."""
    sources = json.loads((config.folder / "iteration-1" / "sources.json").read_text())
    shards = sorted((config.store / sources[kind]).glob("*.arrow"))
    return pa.concat_tables([pa.ipc.open_file(str(shard)).read_all() for shard in shards], promote_options="default")


def prompts_of(config: Any) -> list[list[int]]:
    """The tokens of the prompts, by problem."""
    prompts = []
    sources = json.loads((config.folder / "iteration-1" / "sources.json").read_text())
    for shard in sorted((config.store / sources["rollouts"]).glob("*.arrow")):
        metadata = pa.ipc.open_file(str(shard)).schema.metadata
        prompts += [prompt["prompt_tokens"] for prompt in json.loads(metadata[b"prompts"])]
    return prompts


def batch_of_own_loop(config: Any, model: Any, head_size: int | None) -> Batch:
    """The whole set of a run that noted all: from its store's files and logits of transformers."""
    rollouts, verdicts, prompts = stored_table(config, "rollouts"), stored_table(config, "verdicts"), prompts_of(config)
    sequences = []
    for problem, tokens in zip(rollouts["problem"].to_pylist(), rollouts["tokens"].to_pylist(), strict=True):
        sequences.append((prompts[problem], tokens))
    width = max(len(prompt) + len(tokens) for prompt, tokens in sequences)
    input_ids = torch.zeros(len(sequences), width, dtype=torch.int64)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    sampler_logits = torch.zeros(len(sequences), width, model.config.vocab_size)
    mu_logp = torch.zeros(len(sequences), max(len(tokens) for _, tokens in sequences))
    for row, (prompt, tokens) in enumerate(sequences):
        end = len(prompt) + len(tokens)
        input_ids[row, :end] = torch.tensor([*prompt, *tokens])
        mask[row, len(prompt) : end] = True
        noted = torch.tensor(rollouts["top_logp"][row].as_py())
        sampler_logits[row, len(prompt) - 1 : end - 1] = noted.reshape(len(tokens), -1)
        mu_logp[row, : len(tokens)] = torch.tensor(rollouts["sampler_logp"][row].as_py())
    is_correct = torch.tensor([verdict == "correct" for verdict in verdicts["verdict"].to_pylist()])
    return topr_exp.batch_from_logits(
        model(input_ids).logits, input_ids, mask, mu_logp=mu_logp, reward=2.0 * is_correct - 1,
        sampler_logits=sampler_logits, head_size=head_size,
    )  # fmt: skip


def update_of_own_loop(config: Any, head_size: int | None, *, center_scores: bool = True) -> Update:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "tiny")
    loss = topr_exp.loss("topr", ratio="token", center_scores=center_scores)

    mean_loss = loss(batch_of_own_loop(config, model, head_size)).loss.mean()
    mean_loss.backward()

    norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    return Update(mean_loss.item(), torch.stack(norms).norm().item())


def first_update(config: Any) -> Update:
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

    weights = [(config.folder / "model" / "model.safetensors").read_bytes() for config in (noting_run, plain_run)]
    assert weights[0] == weights[1]
    evaluations = [lines_of(config.folder / "eval.jsonl") for config in (noting_run, plain_run)]
    assert evaluations[0][0] == evaluations[1][0], "of the base, from the same table of the store"
    assert evaluations[0][1]["pass@k"] == evaluations[1][1]["pass@k"]
    assert evaluations[0][1]["length"] == evaluations[1][1]["length"]
    tables = [stored_table(config, "rollouts") for config in (exact_run, noting_run, plain_run)]
    assert tables[0].equals(tables[1]), "the same table of the store"
    assert tables[1].drop_columns(["top_logp"]).equals(tables[2])
