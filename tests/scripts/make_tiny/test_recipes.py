"""The tiny models' recipes: what the styles look like, that they tell the graders' truth, a short pre-training."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from scripts.make_tiny import ledgers, tasks, verifications
from scripts.make_tiny.pretrain import cut, length, pretrain, save
from scripts.make_tiny.recipes import FORMS, RECIPES, STYLES, completion, examples
from tests.conftest import ROOT, config_of, needs_gym
from topr_exp.config.data import AnswerFormat
from topr_exp.data import embedded_gsm8k, embedded_math, ledger, reasoning_gym
from topr_exp.data.embedded import draw_tasks, split_of
from topr_exp.data.prompts import TEMPLATES
from topr_exp.grading import extract, gym
from topr_exp.grading.extraction import tagged
from topr_exp.grading.gym import value_and_numbers
from topr_exp.models.loading import SHIPPED, load_model
from topr_exp.verifier.solutions import fill

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


def test_ledgers_slip_early_whatever_their_length() -> None:
    rng = random.Random(0)
    for turns in (2, 4, 22):
        found = Counter(ledgers.early(turns, rng) for _ in range(4000))
        assert max(found) < turns
        assert found[0] / 4000 == pytest.approx(0.5, abs=0.03)
        if turns > 2:
            assert found[1] / 4000 == pytest.approx(0.25, abs=0.03)


def test_short_ledgers_come_first_in_the_clean_part_alone() -> None:
    recipe = replace(RECIPES["tiny_long"], tasks=300, short=50)

    def turns(mix: dict[str, float]) -> list[int]:
        prompts = [prompt for prompt, _ in islice(examples(recipe, mix, random.Random(0)), 200)]
        return [int(re.search(r"after (\d+) turns", one)[1]) for one in prompts]

    assert max(turns(recipe.clean)[:50]) == ledgers.FEW
    assert max(turns(recipe.clean)[50:]) > 20
    assert max(turns(recipe.mix)[:50]) > 20


def test_batches_of_about_as_many_tokens() -> None:
    rows = [([1] * 3, [2] * n) for n in range(97, 500)]
    recipe = RECIPES["tiny_long"]
    parts = list(cut(rows, recipe))
    assert [row for part in parts for row in part] == rows
    assert len(parts[0]) > 3 * len(parts[-2])
    padded = [len(part) * length(part[-1]) for part in parts[:-1]]
    assert 0.7 * recipe.batch_tokens < min(padded) < max(padded) < 1.5 * recipe.batch_tokens
    assert len(list(cut([([1], [2] * 2000)] * 2, recipe))) == 2  # one that is longer than a batch is a batch
    assert [len(part) for part in cut(rows[:78], SMALL)] == [32, 32, 14]


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


@needs_gym
@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_questions_are_those_of_the_library(task: str) -> None:
    def forms(texts: Iterable[str]) -> set[str]:
        return {re.sub(r"[0-9]+", "N", re.sub(r" [+-] ", " +- ", text)) for text in texts}

    drawn = reasoning_gym.draw(task, json.dumps(tasks.TASKS[task]), 0, "train", 300)
    ours = islice(tasks.examples({task: 1.0}, {"clean": 1.0}, random.Random(1)), 300)
    assert forms(question for question, _ in drawn) == forms(prompt.removesuffix("\n") for prompt, _ in ours)


def test_pretraining_sees_only_its_own_split() -> None:
    verifier, long = (replace(RECIPES[name], tasks=300) for name in ("tiny_verifier", "tiny_long"))
    for recipe in (SMALL, verifier, long):
        for text, _ in islice(examples(recipe, recipe.mix, random.Random(0)), 500):
            question = text.split(": ", 1)[1].split("\n", 1)[0]
            assert split_of(question) == "pretrain"


def texts(name: str) -> Iterator[str]:
    """What a model of this recipe is asked; of tasks, answers too."""
    if name == "tiny_tasks":
        recipe = RECIPES[name]
        yield from (text for text, _ in islice(examples(recipe, recipe.mix, random.Random(7)), 600))
        return
    template = {"tiny_long": ledgers.TEMPLATE}.get(name, FORMS["gsm8k"].template)
    for split in ("train", "test"):
        given = (
            ledger.generate(split, 300, 5, turns=24) if name == "tiny_long" else embedded_gsm8k.generate(split, 300, 5)
        )
        for problem in given:
            verified = fill(verifications.TEMPLATE, problem.question, "The answer is 12.")
            yield verified if name == "tiny_verifier" else template.format(question=problem.question)


@pytest.mark.parametrize("name", [name for name in RECIPES if (SHIPPED / name).is_dir()])
def test_the_shipped_vocabulary_covers_the_problems(name: str) -> None:
    _, tokenizer = load_model(name)
    most, letters = {"tiny_long": (140, 0), "tiny_tasks": (120, 600)}.get(name, (70, 0))  # "a"
    single = 0
    for text in texts(name):
        tokens = tokenizer.tokenize(text)
        assert len(tokens) <= most
        single += sum(len(token) == 1 and token in string.ascii_letters for token in tokens)
    assert single <= letters


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
