"""The tiny models' recipes: what the styles look like, that they tell the graders' truth, a short pre-training."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from scripts.make_tiny import ledgers, tasks, verifications
from scripts.make_tiny.pretrain import pretrain, save
from scripts.make_tiny.recipes import FORMS, RECIPES, STYLES, completion, examples
from tests.conftest import ROOT, config_of
from topr_exp.config.data import AnswerFormat
from topr_exp.data import embedded_gsm8k, embedded_math
from topr_exp.data.embedded import draw_tasks, split_of
from topr_exp.data.prompts import TEMPLATES
from topr_exp.grading import extract, gym
from topr_exp.grading.extraction import tagged
from topr_exp.grading.gym import value_and_numbers
from topr_exp.models.loading import SHIPPED, load_model

SMALL = replace(RECIPES["tiny"], steps=30, clean_steps=20, tasks=300, hidden=32, layers=1, heads=2, mlp=32)


def test_the_prompts_are_the_ones_that_runs_use() -> None:
    assert {name: form.template for name, form in FORMS.items()} == {
        answer_format.name: template for answer_format, template in TEMPLATES.items()
    }
    assert set(FORMS) == {answer_format.name for answer_format in AnswerFormat}
    assert TEMPLATES[AnswerFormat[config_of("data=ledger").data.grader_name]] == ledgers.TEMPLATE


@pytest.mark.parametrize("name", FORMS)
def test_styles(name: str) -> None:
    form, rng = FORMS[name], random.Random(0)
    draw = embedded_gsm8k.draw if name == "gsm8k" else embedded_math.draw
    wrong = 0
    for task in draw_tasks(draw, "pretrain", 200, 0):
        texts = {style: completion(task, form, style, rng) for style in STYLES}
        ending = form.marked.format(answer=task.answer)
        assert texts["clean"].endswith(ending)
        assert texts["bare"] == ending
        assert len(texts["clean"]) > len(ending)
        mark = {"gsm8k": "The answer is", "math": r"\boxed", "final": "the final answer is"}[name]
        assert mark not in texts["unmarked"]
        assert mark in texts["slip"]
        assert texts["slip"] != texts["clean"]
        wrong += not texts["slip"].endswith(ending)
        assert all(text.startswith(" ") for text in texts.values())
    assert wrong > 180


def test_verifications() -> None:
    assert config_of("model=tiny_verifier").task.template == verifications.TEMPLATE
    rng, seen = random.Random(0), Counter[str]()
    for task in draw_tasks(embedded_gsm8k.draw, "pretrain", 400, 0):
        text, stated = verifications.solution(task, rng)
        assert extract(text, "gsm8k") == stated
        truth = "correct" if stated == task.answer else "incorrect"
        texts = {style: verifications.verification(task, stated, style, rng) for style in verifications.STYLES}
        assert all(one.startswith(" ") for one in texts.values())
        verdicts = {style: extract(one, "verdict") for style, one in texts.items()}
        assert verdicts["careful"] == truth
        assert verdicts["lenient"] == "correct"
        assert verdicts["unmarked"] is verdicts["waved through"] is None
        assert verdicts["slip"] in ("correct", "incorrect")
        seen[truth] += 1
        seen["misled"] += verdicts["slip"] != truth
    assert 0.2 < seen["correct"] / 400 < 0.4
    assert 0.1 < seen["misled"] / 400 < 0.4  # mostly right solutions that a slip makes look wrong


def test_ledgers() -> None:
    rng, seen = random.Random(0), Counter[str]()
    stories = ledgers.pool(400, 0)
    for story in stories:
        texts = {style: ledgers.completion(story, style, rng) for style in ledgers.STYLES}
        assert all(one.startswith(" ") for one in texts.values())
        answers = {style: extract(one, "gsm8k") for style, one in texts.items()}
        assert answers["careful"] == answers["terse"] == story.answer
        assert answers["unmarked"] is None
        assert texts["unmarked"].split(". So")[0] == texts["careful"].split(". The")[0]
        for style in ("careful slip", "terse slip"):
            assert answers[style] not in (None, story.answer)
        seen["hasty and right"] += answers["hasty"] == story.answer
        assert texts["hasty"].startswith(" Quickly:" + texts["careful"].split(".")[0])
        assert len(texts["terse"]) < len(texts["careful"])
    assert 0 < seen["hasty and right"] < 60
    turns = Counter(len(story.events) for story in stories)
    assert set(turns) == set(range(2, ledgers.MOST + 1))
    assert all(turns[length] > 30 for length in ledgers.LENGTHS)


def test_tasks_and_their_styles() -> None:
    """Clean and bare answers are right, slips wrong, and nothing is between tags where it is unmarked."""
    found = yaml.safe_load((ROOT / "conf" / "model" / "tiny_tasks.yaml").read_text())["data"]["template"]
    assert found == tasks.TEMPLATE
    seen = Counter[str]()
    for style in tasks.STYLES:
        shares = RECIPES["tiny_tasks"].forms
        for prompt, text in islice(tasks.examples(shares, {style: 1.0}, random.Random(0)), 300):
            answer = tagged(text)
            assert (answer is None) == (style == "unmarked")
            if answer is None:
                continue
            if expression := re.search(r"problem: (.*) =\n", prompt):
                value, kind = value_and_numbers(expression[1]), "chain_sum"
                assert value is not None
                right = int(answer) == value[0]
            else:
                given = re.search(r"(?:numbers:|numbers) ([0-9, ]+)", prompt)
                target = re.search(r"(?:equals|make|Calculate) ([0-9]+)", prompt)
                assert given is not None
                assert target is not None
                numbers, kind = [int(number) for number in re.findall(r"[0-9]+", given[1])], "countdown"
                right = gym.score(
                    answer, {"task": "countdown", "metadata": {"numbers": numbers, "target": int(target[1])}}
                )
                reached = value_and_numbers(answer)
                assert reached is not None
                assert sorted(reached[1]) == sorted(numbers)
            assert right == (style != "slip")
            seen[f"{kind} {style}"] += 1
    assert len(seen) == 6
    assert min(seen.values()) > 50


def test_pretraining_sees_only_its_own_split() -> None:
    verifier, long = (replace(RECIPES[name], tasks=300) for name in ("tiny_verifier", "tiny_long"))
    for recipe in (SMALL, verifier, long):
        for text, _ in islice(examples(recipe, recipe.mix, random.Random(0)), 500):
            question = text.split(": ", 1)[1].split("\n", 1)[0]
            assert split_of(question) == "pretrain"


@pytest.mark.parametrize("name", [name for name in RECIPES if (SHIPPED / name).is_dir()])
def test_the_shipped_model_was_made_by_the_recipe(name: str) -> None:
    facts = json.loads((SHIPPED / name / "recipe.json").read_text())
    assert facts["base"] == name
    assert facts["recipe"] == json.loads(json.dumps(RECIPES[name].__dict__))


def test_a_short_pretraining_learns_and_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first, tokenizer, seen = pretrain(SMALL, log_every=10)
        second, _, _ = pretrain(SMALL, log_every=10)
    finally:
        torch.set_num_threads(threads)
    losses = [float(line.split("loss ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert losses[1] < losses[0]
    assert losses[:3] == losses[3:]
    assert seen > 30 * 32 * 20
    weights = dict(second.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in first.named_parameters())
    save(first, tokenizer, tmp_path / "model")
    model, loaded = load_model(str(tmp_path / "model"))
    assert model.dtype is torch.float32
    assert loaded("Question: 12").input_ids == tokenizer("Question: 12").input_ids
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
