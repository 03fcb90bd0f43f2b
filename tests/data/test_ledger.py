"""`data=ledger`: distinct stories of the length asked for, with golds that an independent reader finds."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.data import ledger
from topr_exp.data.embedded import Calc, draw_tasks, split_of
from topr_exp.data.ledger import HIGHEST, LOWEST, LedgerTask, draw, generate
from topr_exp.data.problems import load_problems
from topr_exp.runs import preflight
from topr_exp.types import ConfigError

GOLDEN = (
    "ledger/embedded/train/8dde92b95a080a02",
    "The bag holds 48 toys. In turn Anna takes 4 and Ben takes 7. How many toys does it hold after 2 turns?",
    "37",
)
STEP = re.compile(r" (\d+): (\w+) (adds|takes) (\d), so (\d\d)([+-])(\d)=(\d\d)\.")


def stories(turns: int, count: int = 100) -> list[LedgerTask]:
    return draw_tasks(lambda rng: draw(rng, turns), "train", count, 1)


def worked(story: LedgerTask, way: Any, calc: Calc | None = None) -> tuple[str, str]:
    answer = way(story.start, story.events, calc := calc or Calc())
    return calc.steps, answer


def read(question: str) -> tuple[int, list[tuple[str, int]]]:
    """The first total and each turn's name and change, read from the story alone."""
    start, turns = (int(re.search(text, question)[1]) for text in (r"holds (\d+)", r"after (\d+) turns"))
    told = re.findall(r"(\w+) (adds|takes) (\d)", question)
    people = [(name, int(n) if verb == "adds" else -int(n)) for name, verb, n in told]
    assert [name for name, _ in people] in (["Anna", "Ben"], ["Anna", "Ben", "Carl"])
    return start, [people[turn % len(people)] for turn in range(turns)]


@pytest.mark.parametrize("turns", [2, 4, 10, 22])
def test_there_are_distinct_problems_apart_from_the_other_splits(turns: int) -> None:
    train = generate("train", 3000, 0, turns)
    questions = {problem.question for problem in train}
    assert len(questions) == len({problem.id for problem in train}) == 3000
    for split in ("test", "pretrain"):
        others = {problem.question for problem in generate(split, 1000, 7, turns)}
        assert not others & questions
        assert {split_of(question) for question in others} == {split}
    assert generate("train", 80, 3, turns)[:50] == generate("train", 50, 3, turns)
    assert generate("train", 50, 3, turns) != generate("train", 50, 4, turns)


def test_the_first_problem_stays_what_it_is() -> None:
    # Runs and the shipped model rest on it: a change of the generator must be seen.
    first = generate("train", 1, 0, 2)[0]
    assert (first.id, first.question, first.answer) == GOLDEN


@pytest.mark.parametrize("turns", [2, 4, 10, 24])
def test_golds_are_what_the_story_says_and_totals_stay_in_range(turns: int) -> None:
    for problem in generate("test", 300, 1, turns):
        total, changes = read(problem.question)
        assert len(changes) == turns
        for _, change in changes:
            total += change
            assert 1 <= abs(change) <= 9
            assert LOWEST <= total <= HIGHEST
        assert problem.answer == str(total)


def test_careful_and_terse_steps_are_right() -> None:
    for story in stories(12):
        total, changes = read(story.question)
        careful, answer = worked(story, ledger.careful)
        assert (careful, answer) == story.work(Calc())
        assert STEP.sub("", careful) == ""
        totals = []
        for turn, ((name, change), step) in enumerate(zip(changes, STEP.findall(careful), strict=True), 1):
            assert (int(step[0]), step[1], int(step[5] + step[6]), int(step[4])) == (turn, name, change, total)
            assert (step[2] == "adds") == (change > 0)
            total += change
            totals.append(total)
            assert (int(step[3]), int(step[7])) == (abs(change), total)
        terse, same = worked(story, ledger.terse)
        assert same == answer == str(total)
        lines = enumerate(zip(changes, totals, strict=True), 1)
        assert terse == "".join(f" {turn} {name} {value}." for turn, ((name, _), value) in lines)


def test_a_slip_spoils_the_answer_of_either_way_and_totals_keep_two_digits() -> None:
    for story in stories(5):
        for way in (ledger.careful, ledger.terse):
            for at in range(5):
                steps, answer = worked(story, way, Calc(at, random.Random(at)))
                assert answer != story.answer
                assert len(answer) == 2
                right, _ = worked(story, way)
                assert steps.split(".")[:at] == right.split(".")[:at]
                assert steps.split(".")[at] != right.split(".")[at]


def test_hasty_steps_stop_half_way() -> None:
    right = 0
    for story in stories(5, 300):
        steps, answer = worked(story, ledger.hasty)
        assert [step[0] for step in STEP.findall(steps)] == ["1", "2", "3"]
        start, changes = read(story.question)
        assert int(answer) == start + sum(change for _, change in changes[:3])
        right += answer == story.answer
    assert 0 < right < 60


def test_the_source_draws_what_is_asked_without_overlap() -> None:
    config = config_of("model=tiny_long", "data.turns=5", "data.train_problems=30", "data.test_problems=20")
    assert (config.data.name, config.data.turns) == ("ledger", 5)
    sets = load_problems(config.data)
    assert sets.train == generate("train", 30, 0, 5)
    assert sets.test == generate("test", 20, 0, 5)
    more = ("data.test_split=validation", "data.seed=4")
    sizes = ("data.train_problems=30", "data.test_problems=20")
    held_out = load_problems(config_of("model=tiny_long", *sizes, *more).data)
    assert [*held_out.train, *held_out.test] == generate("train", 50, 4, 10)
    assert len(held_out.test) == 20
    assert {problem.question for problem in held_out.test}.isdisjoint(one.question for one in held_out.train)
    assert {split_of(problem.question) for problem in held_out.test} == {"train"}


@pytest.mark.parametrize("turns", ["1", "25", "many"])
def test_a_wrong_number_of_turns_is_one_line(turns: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.turns"):
        config_of("data=ledger", f"data.turns={turns}")


def test_every_gold_is_graded_correct() -> None:
    config = config_of("data=ledger", "data.train_problems=20", "data.test_problems=20")
    assert preflight.refused_golds(preflight.key_of(config.data)) is None
