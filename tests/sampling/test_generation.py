"""Completions in the store: found again, drawn anew where they are missing, checked where a user drew them."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.conftest import make_model, refused, small_config
from tests.observed import OBSERVED, Observer, observed
from topr_exp.config.model import SamplerConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.models.policy import Policy
from topr_exp.pipeline import run
from topr_exp.runtime.terminal import warn_once
from topr_exp.sampling.generation import check_samples, fingerprint, sample_completions
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample
from topr_exp.store import Store
from topr_exp.types import Problem

SETTINGS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 6, "prompts_per_shard": 2}
CONFIG = SamplerConfig(name="hf", seed=0, **SETTINGS)
PROBLEMS = [Problem(f"p{i}", "", "") for i in range(5)]
PROMPTS = [np.array([0, 3 + i], np.int32) for i in range(5)]
QUESTIONS = TokenizedProblems(PROBLEMS, PROMPTS, (), 0)


class Plain:
    """A tokenizer whose text is the numbers of its tokens."""

    eos_token_id = 1

    def decode(self, tokens, **options):
        return " ".join(map(str, tokens))

    def __call__(self, text, **options):
        return {"input_ids": [ord(character) % 11 for character in text]}


def policy():
    return Policy(make_model(11), Plain(), "test", torch.float32)


def sample(folder, questions=QUESTIONS, seed=0, n=3):
    return sample_completions(HFSampler(CONFIG), policy(), questions, n, seed=seed, store=Store(folder))


def test_completions_in_the_store_are_found_and_not_counted_again(tmp_path, capsys):
    sampled = sample(tmp_path)
    stored = sample(tmp_path)

    assert sampled.stored.tokens_sampled == sampled.tokens.lengths().sum() > 0
    assert stored.stored.tokens_sampled == 0
    assert stored.table.equals(sampled.table)
    assert stored.problem_index.tolist() == np.repeat(range(5), 3).tolist()
    problem_ids = stored.table["problem_id"].to_pylist()
    assert problem_ids == [f"p{index}" for index in stored.problem_index]
    assert stored.sample_index.tolist() == [0, 1, 2] * 5
    assert stored.stored.sharding.sizes == (6, 6, 3)
    assert capsys.readouterr().err.count("15/15 completions") == 2


def test_processes_that_get_no_shard_are_told_where_completions_are_sampled(tmp_path, capsys, monkeypatch):
    warn_once.cache_clear()
    for count in (3, 8):
        monkeypatch.setattr("topr_exp.runtime.distributed.world_size", lambda count=count: count)
        for seed in range(2):  # as of two evaluations
            sample(tmp_path / str(count), seed=seed)

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line.endswith("5 of 8 processes have nothing to sample: sampler.prompts_per_shard=2 makes 3 shards")


def test_every_shard_of_every_seed_has_randomness_of_its_own_and_always_the_same(tmp_path):
    """Prompts that are all alike are not answered alike."""
    alike = dataclasses.replace(QUESTIONS, prompts=PROMPTS[:1] * 5)

    first = sample(tmp_path / "a", alike)
    repeated = sample(tmp_path / "b", alike)
    of_other_seed = sample(tmp_path / "a", alike, seed=1)

    shard_texts = set()
    for completions in (first, of_other_seed):
        for shard in (0, 1):
            texts = completions.texts(completions.stored.sharding.rows(shard))
            shard_texts.add("/".join(texts))
    assert len(shard_texts) == 4
    assert repeated.table.equals(first.table)


def test_stop_strings_reach_the_sampler(tmp_path):
    stopping = dataclasses.replace(QUESTIONS, stop=("5",))

    completions = sample(tmp_path, stopping, n=8)

    assert "stop_string" in completions.table["finish"].to_pylist()
    assert not any("5" in text for text in completions.texts(range(len(completions))))


@pytest.mark.parametrize("rows", [[[1], [2, 3]], [[1, 2, 3]], [[3], [1, 2]], [[1, 2, 0], [3]], []], ids=str)
def test_a_fingerprint_knows_where_rows_end(rows):
    def fingerprint_of(rows):
        return fingerprint([np.array(row, np.int32) for row in rows])

    assert fingerprint_of(rows) != fingerprint_of([[1, 2], [3]])


# ---- samplers of users


@pytest.mark.parametrize(
    "tokens, logprobs, finish, line",
    [
        ([], [], "stop", "one token or more"),
        ([3, 11], [-0.5, -0.5], "stop", "tokens from 0 to 10; got 11"),
        ([-1, 3], [-0.5, -0.5], "stop", "tokens from 0 to 10; got -1"),
        ([3, 1.5], [-0.5, -0.5], "stop", r"tokens from 0 to 10; got 1\.5"),
        ([3, 1], [-0.5], "stop", "one log-probability per token; got 1 for 2 tokens"),
        ([3, 1], [-0.5, 0.1], "stop", r"finite log-probabilities of at most 0; got 0\.1"),
        ([3, 1], [-0.5, -np.inf], "stop", "finite log-probabilities of at most 0; got -inf"),
        ([3, 1], [np.nan, -0.5], "stop", "finite log-probabilities of at most 0; got nan"),
        ([3, 1], [-0.5, -0.5], "eos", "finish must be one of stop, length, stop_string; got 'eos'"),
    ],
)
def test_a_wrong_completion_of_a_users_sampler_is_refused(tokens, logprobs, finish, line):
    right = Sample([3, 1], [-0.5, 0.0], "stop")
    wrong = Sample(tokens, logprobs, finish)
    check_samples([[right, right]], 1, 2, name="mine", vocabulary=11)

    with refused(f"^sampler=mine.*{line}"):
        check_samples([[right, wrong]], 1, 2, name="mine", vocabulary=11)


@pytest.mark.parametrize("sizes", [[1], [2, 1], []], ids=str)
def test_a_wrong_number_of_completions_of_a_users_sampler_is_refused(sizes):
    groups = [[Sample([1], [0.0], "stop")] * size for size in sizes]

    with refused(r"^sampler=mine must return 2 completions for each of 1 prompts; got \["):
        check_samples(groups, 1, 2, name="mine", vocabulary=11)


class Short(HFSampler):
    """A user's sampler that loses a log-probability."""

    def sample(self, *arguments):
        groups = super().sample(*arguments)
        groups[0][0].logprobs.pop()
        return groups


class ShortConfig(SamplerConfig):
    def build_sampler(self):
        return Short(self)


def test_a_users_sampler_is_checked_before_anything_is_stored(tmp_path):
    sampler = ShortConfig(name="short", seed=0, **SETTINGS).build_sampler()

    with refused("one log-probability per token"):
        sample_completions(sampler, policy(), QUESTIONS, 2, seed=0, store=Store(tmp_path))

    assert not [*tmp_path.rglob("shard-*.arrow")]


class GivesProbabilities(Observer):
    """Has the sampler of the rounds, not of the evaluation, give probabilities for their logarithms."""

    def after_sample(self, prompts, n, seed, groups):
        if n > 1:
            groups[0][0].logprobs[:] = np.exp(groups[0][0].logprobs)


def test_a_users_sampler_is_checked_in_rounds_too(tmp_path):
    config = small_config(tmp_path, "schedule=on_policy", "mu=sampler", "data.eval_n=1", *OBSERVED)

    with observed(GivesProbabilities()), refused("^sampler=observed.*finite log-probabilities of at most 0"):
        run(config)
