"""Rollouts in the store: which settings name another table, what is counted, what is found again."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_model, refused
from topr_exp.config.model import Mismatch, SamplerConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.models.policy import Policy
from topr_exp.runtime import progress
from topr_exp.sampling.generation import check_samples, fingerprint, sample_completions, sampling_key
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample, seed_of
from topr_exp.store import Store
from topr_exp.types import Problem

CONFIG = SamplerConfig(name="hf", seed=0, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=6, prompts_per_shard=2)
QUESTIONS = TokenizedProblems(
    [Problem(f"p{i}", "", "") for i in range(5)], [np.array([0, 3 + i], np.int32) for i in range(5)], (), 0
)


class Plain:
    eos_token_id = 1

    def decode(self, tokens: Sequence[int], **kwargs: Any) -> str:
        return " ".join(map(str, tokens))

    def __call__(self, text: str, **kwargs: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) % 11 for character in text]}


def policy(**changes: Any) -> Policy:
    made = Policy(make_model(11), Plain(), "test", torch.float32)
    return dataclasses.replace(made, **changes)


def key(**changes: Any) -> dict[str, Any]:
    values = {"config": CONFIG, "policy": policy(), "questions": QUESTIONS, "n": 3, "seed": 0} | changes
    return sampling_key(**values)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 4},
        {"seed": 1},
        {"policy": policy(fingerprint="other")},
        {"policy": policy(compute_dtype=torch.bfloat16)},
        {"config": dataclasses.replace(CONFIG, temperature=0.5)},
        {"config": dataclasses.replace(CONFIG, name="vllm")},
        {"config": dataclasses.replace(CONFIG, prompts_per_shard=3)},
        {"config": dataclasses.replace(CONFIG, mismatch=Mismatch("int8"))},
        {"keeps_drawable": True},
        {"config": dataclasses.replace(CONFIG, mismatch=Mismatch(logits_noise=0.1))},
        {"questions": dataclasses.replace(QUESTIONS, stop=("\n",))},
        {"questions": dataclasses.replace(QUESTIONS, prompts=QUESTIONS.prompts[::-1])},
        {"questions": dataclasses.replace(QUESTIONS, problems=QUESTIONS.problems[::-1])},
    ],
    ids=lambda changes: "".join(changes),
)
def test_what_decides_the_completions_is_in_their_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()
    assert key() == key()


def test_what_is_in_the_store_is_found_and_not_counted_again(tmp_path, capsys):
    first, second = (
        sample_completions(HFSampler(CONFIG), policy(), QUESTIONS, 3, seed=0, store=Store(tmp_path)) for _ in range(2)
    )
    assert first.stored.tokens_sampled == first.tokens.lengths().sum() > 0
    assert second.stored.tokens_sampled == 0
    assert second.table.equals(first.table)
    assert first.table["problem_id"].to_pylist() == [f"p{i}" for i in range(5) for _ in range(3)]
    assert first.problem_index.tolist() == [i for i in range(5) for _ in range(3)]
    assert first.sample_index.tolist() == [0, 1, 2] * 5
    assert first.stored.bounds == [0, 6, 12, 15]
    assert capsys.readouterr().err.count("15/15 completions") == 2


def test_every_shard_of_every_seed_has_randomness_of_its_own(tmp_path: Path) -> None:
    """Prompts that are all alike are not answered alike."""
    alike = dataclasses.replace(QUESTIONS, prompts=[np.array([0, 3], np.int32)] * 5)
    drawn = []
    for seed in (0, 1):
        found = sample_completions(HFSampler(CONFIG), policy(), alike, 3, seed=seed, store=Store(tmp_path))
        drawn += [str([found.tokens[row + i] for i in range(6)]) for row in (0, 6)]  # two prompts a shard
    assert len({*drawn}) == len(drawn) == 4


def test_stop_strings_reach_the_sampler(tmp_path: Path) -> None:
    stopping = dataclasses.replace(QUESTIONS, stop=("5",))
    found = sample_completions(HFSampler(CONFIG), policy(), stopping, 8, seed=0, store=Store(tmp_path))
    assert "stop_string" in found.table["finish"].to_pylist()
    assert not any("5" in text for text in found.texts(range(len(found))))


def test_a_fingerprint_knows_where_rows_end() -> None:
    texts = ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [[3], [1, 2]], [[1, 2, 0], [3]], [])
    assert len({fingerprint([np.array(row, np.int32) for row in rows]) for rows in texts}) == len(texts)


def test_every_tuple_of_numbers_is_a_seed_of_its_own() -> None:
    tuples = [(), (0,), (0, 0), (1, 23), (12, 3), (1, 2), (2, 1), (3,), (0, 3), (3, 0)]
    assert len({seed_of(*numbers) for numbers in tuples}) == len(tuples)


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        (Sample([3, 1], [-0.5], "stop"), "one log-probability per token; got 1 for 2 tokens"),
        (Sample([3, 1], [-0.5, 0.1], "stop"), r"finite log-probabilities of at most 0; got 0\.1"),
        (Sample([3, 1], [-0.5, -np.inf], "stop"), "finite log-probabilities of at most 0; got -inf"),
        (Sample([3, 1], [np.nan, -0.5], "stop"), "finite log-probabilities of at most 0; got nan"),
        (Sample([3, 1], [-0.5, -0.5], "eos"), "finish must be one of stop, length, stop_string; got 'eos'"),
    ],
)
def test_what_a_samplers_own_class_returns_is_checked(sample: Sample, line: str) -> None:
    right = Sample([3, 1], [-0.5, 0.0], "stop")
    check_samples([[right, right]], 1, 2, "mine")
    with refused(f"^sampler=mine.*{line}"):
        check_samples([[right, sample]], 1, 2, "mine")
    for groups in ([[right]], [[right, right], [right]], []):
        with refused(r"^sampler=mine must return 2 completions for each of 1 prompts; got \["):
            check_samples(groups, 1, 2, "mine")


def test_a_users_sampler_is_checked_before_anything_is_stored(tmp_path: Path) -> None:
    class Short(HFSampler):
        def sample(self, *given: Any) -> Any:
            groups = super().sample(*given)
            groups[0][0].logprobs.pop()
            return groups

    class ShortConfig(SamplerConfig):
        def build_sampler(self) -> Short:
            return Short(self)

    config = ShortConfig(**{field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)})
    with refused("one log-probability per token"):
        sample_completions(Short(config), policy(), QUESTIONS, 2, seed=0, store=Store(tmp_path))
    assert not [path for path in tmp_path.rglob("shard-*") if path.suffix != ".claim"]


class Watcher:
    """Notes the tokens under way whenever it is told of progress."""

    def __init__(self) -> None:
        self.under_way: list[float] = []

    def note_progress(self, work: progress.Progress) -> None:
        self.under_way.append(work.amount_under_way)

    def end_progress(self, work: progress.Progress) -> None:
        self.amount = work.amount

    def seconds_left(self, under_way: Sequence[progress.Progress]) -> None:
        return None


def test_progress_counts_each_token_of_a_shard_as_it_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher()
    monkeypatch.setattr(progress, "_watcher", watcher)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_NOTES", 0.0)
    rollouts = sample_completions(HFSampler(CONFIG), policy(), QUESTIONS, 3, seed=0, store=Store(tmp_path))
    lengths = [len(part) for part in rollouts.tokens]
    assert watcher.amount == sum(lengths)
    assert rollouts.stored is not None
    stored = rollouts.stored
    shards = [[lengths[row] for row in stored.shard_rows(shard)] for shard in range(stored.shards)]
    reached = [max(watcher.under_way[: index + 1]) for index in range(len(watcher.under_way))]
    assert watcher.under_way.count(0) == len(shards)  # after each of them
    assert max(reached) == max(map(sum, shards))
