"""What finds stored data again: each input of each key, changed alone, gives another key; what doesn't count, none."""

import importlib
import json
from dataclasses import asdict, fields, replace

import pyarrow as pa
import pytest
import torch

from tests.conftest import make_completions, make_model
from tests.sampling.test_generation import CONFIG, QUESTIONS, Plain
from topr_exp.config.model import Mismatch, SamplerConfig, VLLMConfig
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import grade_by_log, grade_completions
from topr_exp.models.policy import Policy
from topr_exp.sampling.generation import sampling_key
from topr_exp.store.layout import canonical_json, key_hash
from topr_exp.training.logprobs import read_or_score
from topr_exp.types import Problem

VOCABULARY = 11
POLICY = Policy(make_model(VOCABULARY), Plain(), "weights", torch.float32)
HALF = replace(POLICY, compute_dtype=torch.bfloat16)
HALF_WEIGHTS = replace(HALF, model=make_model(VOCABULARY).bfloat16())
VLLM = VLLMConfig(**asdict(CONFIG) | {"name": "vllm", "mismatch": Mismatch()}, sleep=False)
PROBLEMS = [Problem("a", "?", "4"), Problem("b", "?", "6")]
MATH = Grader("math")
OWN_GRADER = "tests.grading.own_graders.contains"
OWN_CLASS = "tests.grading.own_graders.Scaled"


def rollouts(name="rollouts/one"):
    columns = {"tokens": [[4, 1], [5], [6]], "text": ["4", "5", "6"]}
    return make_completions([0, 0, 1], [[0, 3]] * 2, name=name, **columns)


class Requested(Exception):
    """The key that a store was asked for, before anything is made."""


class RequestedStore:
    """A store that holds nothing and makes nothing."""

    def table(self, kind, key, *arguments):
        raise Requested(kind, key)


STORE = RequestedStore()


def requested_key(derive, *arguments):
    with pytest.raises(Requested) as requested:
        derive(*arguments)
    return requested.value.args


def key_of_rollouts(config=CONFIG, policy=POLICY, questions=QUESTIONS, n=3, seed=0, keeps=False):
    return sampling_key(config, policy, questions, n, seed=seed, keeps_drawable=keeps)


def key_of_scores(policy=POLICY, name="rollouts/one", batch_size=2):
    return requested_key(read_or_score, policy, rollouts(name), STORE, batch_size, "scoring")


def key_of_verdicts(grader=MATH, name="rollouts/one", problems=PROBLEMS):
    return requested_key(grade_completions, replace(rollouts(name), problems=problems), grader, STORE)


def key_of_given_verdicts(threshold=0.5, name="rollouts/one"):
    completions = rollouts(name).with_columns({"reward": pa.array([0.0, 1.0, 1.0])})
    return requested_key(grade_by_log, completions, threshold, STORE)


SAMPLER_CHANGES = {
    "name": "vllm",
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "max_new_tokens": 7,
    "prompts_per_shard": 3,
    "mismatch": Mismatch("int8"),
    "top_logprobs": 5,
}
NO_PART_OF_A_COMPLETION = {"seed": 7, "python": "other", "gpu_memory_utilization": 0.5, "sleep": True}
ROLLOUTS_CHANGES = [
    *({"config": replace(CONFIG, **{name: value})} for name, value in SAMPLER_CHANGES.items()),
    {"config": replace(CONFIG, mismatch=Mismatch(logits_noise=0.1))},
    {"config": VLLM, "policy": HALF},
    {"n": 4},
    {"seed": 1},
    {"keeps": True},
    {"policy": replace(POLICY, fingerprint="other")},
    {"policy": HALF},
    {"policy": HALF_WEIGHTS},
    {"questions": replace(QUESTIONS, stop=("\n",))},
    {"questions": replace(QUESTIONS, stop=("\n", "Q"))},
    {"questions": replace(QUESTIONS, prompts=QUESTIONS.prompts[::-1])},
    {"questions": replace(QUESTIONS, problems=QUESTIONS.problems[::-1])},
]
SCORES_CHANGES = [
    {"name": "rollouts/other"},
    {"policy": replace(POLICY, fingerprint="other")},
    {"policy": HALF},
    {"policy": HALF_WEIGHTS},
]
VERDICTS_CHANGES = [
    {"name": "rollouts/other"},
    {"problems": [PROBLEMS[0], Problem("b", "?", "7")]},
    {"problems": [Problem("a", "?", "6"), Problem("b", "?", "4")]},
    {"grader": Grader("gsm8k")},
    {"grader": Grader("final")},
    {"grader": Grader(OWN_GRADER)},
    {"grader": Grader(OWN_GRADER, graded=True)},
    {"grader": Grader(OWN_GRADER, threshold=0.9)},
    {"grader": Grader(OWN_CLASS, settings={"factor": 1.0})},
    {"grader": Grader(OWN_CLASS, settings={"factor": 2.0})},
]
GIVEN_CHANGES = [{"name": "rollouts/other"}, {"threshold": 0.9}]


@pytest.mark.parametrize(
    "key_of, changes",
    [
        (key_of_rollouts, ROLLOUTS_CHANGES),
        (key_of_scores, SCORES_CHANGES),
        (key_of_verdicts, VERDICTS_CHANGES),
        (key_of_given_verdicts, GIVEN_CHANGES),
    ],
)
def test_each_input_changed_alone_gives_another_key(key_of, changes):
    keys = {json.dumps(key_of(**change), sort_keys=True) for change in [{}, *changes]}

    assert len(keys) == 1 + len(changes)
    assert key_of() == key_of()


def test_what_changes_no_completion_or_score_is_in_no_key():
    sampler_settings = {field.name for field in fields(VLLMConfig)}
    assert sampler_settings == {*SAMPLER_CHANGES, *NO_PART_OF_A_COMPLETION}, (
        "a new setting: does it change completions?"
    )

    for name, value in NO_PART_OF_A_COMPLETION.items():
        assert key_of_rollouts(config=replace(VLLM, **{name: value})) == key_of_rollouts(config=VLLM), name
    assert key_of_scores(batch_size=3) == key_of_scores()


def test_completions_without_noted_tokens_have_the_key_of_earlier_releases():
    notes_all = replace(CONFIG, top_logprobs=VOCABULARY)
    asks_for_more = replace(CONFIG, top_logprobs=VOCABULARY + 1)

    assert "top_logprobs" not in key_of_rollouts()["sampler"]
    assert key_of_rollouts(config=asks_for_more) == key_of_rollouts(config=notes_all)


OWN_SAMPLER = """
from topr_exp.config.model import SamplerConfig

class Own(SamplerConfig):
    number = {}

    def build_sampler(self): ...
"""
OWN_GRADER_CODE = """
def grade(completion, gold):
    return {}
"""


def test_the_code_of_users_is_in_the_keys(working_folder):
    values = {field.name: getattr(CONFIG, field.name) for field in fields(SamplerConfig)}
    keys = []
    for number in (1, 22):
        (working_folder / "own_sampler_of_keys.py").write_text(OWN_SAMPLER.format(number))
        (working_folder / "own_grader_of_keys.py").write_text(OWN_GRADER_CODE.format(number))
        module = importlib.reload(importlib.import_module("own_sampler_of_keys"))
        sampler_key = key_of_rollouts(config=module.Own(**values))
        keys.append((sampler_key, key_of_verdicts(Grader("own_grader_of_keys.grade"))))

    first_keys, second_keys = keys
    assert first_keys[0] != second_keys[0]
    assert first_keys[1] != second_keys[1]


# ---- keys as text and hash


def test_the_order_of_members_is_no_part_of_a_key():
    key = {"a": {"c": 1, "d": [2, 3]}, "b": None}
    reordered = {"b": None, "a": {"d": [2, 3], "c": 1}}
    other_list = {"a": {"c": 1, "d": [3, 2]}, "b": None}

    assert canonical_json(key) == canonical_json(reordered)
    assert json.loads(canonical_json(key)) == key
    assert key_hash(key) == key_hash(reordered) != key_hash(other_list)


def test_the_hash_never_changes_between_versions():
    """Users' stores outlive a release: another hash would sample everything again."""
    sampler = {"temperature": 1.0, "top_k": 500, "seed": 0}
    key = {"weights": "ab12", "sampler": sampler, "stop": ["\n\n"], "x": None}

    assert key_hash(key) == "e96ded1fc75f05fe"
    assert len({canonical_json({"x": value}) for value in (1, 1.0, True, "1")}) == 4
