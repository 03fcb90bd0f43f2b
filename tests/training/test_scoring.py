"""Scores in the store: what decides them is in their key, and each completion has its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conftest import make_model
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store
from topr_exp.training.logprobs import score_rollouts

PROMPTS = [np.array(ids, np.int32) for ids in ([0, 4, 5], [0, 7], [0, 3, 8, 9, 4])]
TOKENS = [[4, 6, 3, 9], [5], [8, 8, 2], [3, 9, 9, 7, 5], [6, 1], [10, 4, 3], [7], [5, 5, 6, 8, 3, 4]]
PROBLEM = [2, 0, 1, 0, 2, 1, 1, 0]


def rollouts(name: str = "rollouts/a") -> Rollouts:
    """Completions of several lengths in no order."""
    columns = {"tokens": pa.array(TOKENS, pa.list_(pa.int32())), "problem": pa.array(PROBLEM, pa.int32())}
    return Rollouts(name, pa.table(columns), PROMPTS, [0, 5, len(TOKENS)], 0)


def test_each_completion_has_its_own_log_probabilities(tmp_path: Path, make_policy: Any) -> None:
    policy = make_policy(make_model(11))
    logp, scored = score_rollouts(policy, rollouts(), Store(tmp_path), 3, "scoring")
    assert scored == sum(map(len, TOKENS))
    for found, tokens, problem in zip(logp, TOKENS, PROBLEM, strict=True):
        ids = torch.tensor([[*PROMPTS[problem], *tokens]])
        with torch.no_grad():
            whole = policy.model(input_ids=ids).logits[0].log_softmax(-1)
        first = len(PROMPTS[problem])
        expected = [float(whole[first + t - 1, token]) for t, token in enumerate(tokens)]
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert score_rollouts(policy, rollouts(), Store(tmp_path), 3, "scoring")[1] == 0


def test_what_decides_the_scores_is_in_their_key(tmp_path: Path, make_policy: Any) -> None:
    """Where something else is asked, nothing that lies there is taken for the answer: all is scored again."""
    policy = make_policy(make_model(11))
    asked: list[tuple[Any, Rollouts]] = [
        (policy, rollouts()),
        (policy, rollouts("rollouts/b")),
        (dataclasses.replace(policy, fingerprint="other weights"), rollouts()),
        (dataclasses.replace(policy, compute=torch.bfloat16), rollouts()),
    ]
    for one, some in asked:
        assert score_rollouts(one, some, Store(tmp_path), 8, "scoring")[1] == sum(map(len, TOKENS))
    assert len([*(tmp_path / "logprobs").iterdir()]) == len(asked)
