"""What finds stored data again: each input of each key, changed alone, gives another key; what doesn't count, none."""

import dataclasses
import importlib
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from tests.conftest import make_completions, make_model
from tests.sampling.test_generation import CONFIG, QUESTIONS, Plain
from topr_exp.config.data import Grading
from topr_exp.config.model import Mismatch, VLLMConfig
from topr_exp.grading.verdicts import grade_by_log, grade_completions
from topr_exp.models.policy import Policy
from topr_exp.sampling.generation import sampling_key
from topr_exp.training import logprobs
from topr_exp.training.logprobs import score_completions
from topr_exp.types import Problem

HALF = make_model(11).bfloat16()


def policy(**changes: Any) -> Policy:
    return dataclasses.replace(Policy(make_model(11), Plain(), "weights", torch.float32), **changes)


def rollouts(**changes: Any) -> Any:
    columns = {"tokens": [[4, 1], [5], [6]], "text": ["4", "5", "6"], "name": "rollouts/one", **changes}
    return make_completions([0, 0, 1], [[0, 3]] * 2, **columns)


def vllm(**changes: Any) -> VLLMConfig:
    more = {"name": "vllm", "eager": False, "sleep": False}
    return VLLMConfig(**{**dataclasses.asdict(CONFIG), "mismatch": Mismatch(), **more, **changes})


def key_of_rollouts(**changes: Any) -> Any:
    given = {"config": CONFIG, "policy": policy(), "questions": QUESTIONS, "n": 3, "seed": 0, "keeps_drawable": False}
    return sampling_key(**{**given, **changes})


class Asked(Exception):
    """The key that a store was asked for, before anything is made."""


class Asking:
    """A store that holds nothing and makes nothing."""

    def table(self, kind: str, key: dict[str, Any], *_: Any) -> Any:
        raise Asked(kind, key)


STORE: Any = Asking()


def asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """The key of the table that a call asks a store for."""
    with pytest.raises(Asked) as found:
        call(*arguments)
    return found.value.args


def key_of_scores(**changes: Any) -> Any:
    given = {"policy": policy(), "rollouts": rollouts(), "batch_size": 2, **changes}
    return asked(score_completions, given["policy"], given["rollouts"], STORE, given["batch_size"], "scoring")


def key_of_verdicts(**changes: Any) -> Any:
    problems = [Problem("a", "?", "4"), Problem("b", "?", "6")]
    given = {"rollouts": rollouts(), "problems": problems, "grading": Grading("math"), **changes}
    completions = dataclasses.replace(given["rollouts"], problems=given["problems"])
    return asked(grade_completions, completions, given["grading"], STORE)


def key_of_given(**changes: Any) -> Any:
    given = {"rollouts": rollouts(), "threshold": 0.5, **changes}
    completions = given["rollouts"].with_columns({"reward": pa.array([0.0, 1.0, 1.0])})
    return asked(grade_by_log, completions, given["threshold"], STORE)


def assert_each_differs(key_of: Callable[..., Any], changes: Iterable[dict[str, Any]]) -> None:
    """Assert that the inputs as they are and each of these changes have a key each."""
    assert key_of() == key_of()
    keys = {str(change): json.dumps(key_of(**change), sort_keys=True) for change in [{}, *changes]}
    for (first, one), (second, other) in itertools.combinations(keys.items(), 2):
        assert one != other, (first, second)


OTHER_VALUES: dict[str, Any] = {
    "name": "vllm", "temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_new_tokens": 7, "prompts_per_shard": 3,
    "mismatch": Mismatch("int8"),
}  # fmt: skip
NO_PART_OF_A_COMPLETION = {
    "seed": 7, "python": "other", "gpu_memory_utilization": 0.5, "eager": True, "sleep": True,
}  # fmt: skip


def test_every_setting_of_a_sampler_is_in_the_key_of_completions_or_known_to_change_none() -> None:
    assert {field.name for field in dataclasses.fields(VLLMConfig)} == {*OTHER_VALUES, *NO_PART_OF_A_COMPLETION}
    assert_each_differs(
        key_of_rollouts,
        [{"config": dataclasses.replace(CONFIG, **{name: value})} for name, value in OTHER_VALUES.items()],
    )
    own = {"seed": 7}  # of the settings; the seed of a table is an argument
    assert key_of_rollouts(config=dataclasses.replace(CONFIG, **own)) == key_of_rollouts()
    for name, value in NO_PART_OF_A_COMPLETION.items():
        assert key_of_rollouts(config=vllm(**{name: value})) == key_of_rollouts(config=vllm()), name


def test_each_other_input_of_completions_is_in_their_key() -> None:
    assert_each_differs(
        key_of_rollouts,
        [
            {"n": 4},
            {"seed": 1},
            {"keeps_drawable": True},
            {"policy": policy(fingerprint="other")},
            {"policy": policy(compute_dtype=torch.bfloat16)},
            {"policy": policy(compute_dtype=torch.bfloat16, model=HALF)},
            {"questions": dataclasses.replace(QUESTIONS, stop=("\n",))},
            {"questions": dataclasses.replace(QUESTIONS, stop=("\n", "Q"))},
            {"questions": dataclasses.replace(QUESTIONS, prompts=QUESTIONS.prompts[::-1])},
            {"questions": dataclasses.replace(QUESTIONS, problems=QUESTIONS.problems[::-1])},
        ],
    )
    half = policy(compute_dtype=torch.bfloat16)
    heads = [key_of_rollouts(config=vllm(), policy=dataclasses.replace(half, float32_head=head)) for head in (0, 1)]
    assert heads[0] != heads[1]  # an engine's output layer is another


OWN_SAMPLER = """
from topr_exp.config.model import SamplerConfig

class Own(SamplerConfig):
    number = {number}

    def build_sampler(self): ...
"""


def test_a_users_sampler_is_in_the_key_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for number in (1, 2):
        (tmp_path / "own_sampler_of_keys.py").write_text(OWN_SAMPLER.format(number=number))
        sampler = importlib.reload(importlib.import_module("own_sampler_of_keys"))
        settings = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG)}
        keys.append(key_of_rollouts(config=sampler.Own(**settings)))
    assert keys[0] != keys[1]


def test_each_input_of_scores_is_in_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"compute_dtype": torch.bfloat16}
    assert_each_differs(
        key_of_scores,
        [
            {"rollouts": rollouts(name="rollouts/other")},
            {"policy": policy(fingerprint="other")},
            {"policy": policy(**half, float32_head=True)},
            {"policy": policy(**half, float32_head=False)},
            {"policy": policy(**half, float32_head=False, model=HALF)},
        ],
    )
    assert key_of_scores(batch_size=3) == key_of_scores()
    before = key_of_scores()
    monkeypatch.setattr(logprobs, "VERSION", logprobs.VERSION + 1)
    assert key_of_scores() != before


def test_each_input_of_verdicts_is_in_their_key() -> None:
    own = "tests.grading.own_graders.contains"
    settings = {"graded": True, "threshold": 0.9, "settings": '{"cost": 1}'}
    assert {field.name for field in dataclasses.fields(Grading)} == {"grader", *settings}
    assert_each_differs(
        key_of_verdicts,
        [
            {"rollouts": rollouts(name="rollouts/other")},
            {"problems": [Problem("a", "?", "4"), Problem("b", "?", "7")]},
            {"problems": [Problem("a", "?", "6"), Problem("b", "?", "4")]},
            *({"grading": Grading(name)} for name in ("gsm8k", "final", own)),
            *({"grading": Grading(own, **{name: value})} for name, value in settings.items()),
        ],
    )


def test_a_users_grader_is_in_the_key_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for number in (1, 22):
        (tmp_path / "own_grader_of_keys.py").write_text(f"def grade(completion, gold):\n    return {number}\n")
        keys.append(key_of_verdicts(grading=Grading("own_grader_of_keys.grade")))
    assert keys[0] != keys[1]


def test_each_input_of_given_verdicts_is_in_their_key() -> None:
    assert_each_differs(key_of_given, [{"rollouts": rollouts(name="rollouts/other")}, {"threshold": 0.9}])
