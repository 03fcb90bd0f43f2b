"""Generated problems: the same for ever, bit for bit, distinct, and split for good."""

import hashlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.data import embedded_gsm8k, embedded_math, ledger
from topr_exp.data.embedded import SPLITS, Calc, Task, draw_problems, draw_tasks, split_of
from topr_exp.data.problems import load_problems
from topr_exp.runs import preflight
from topr_exp.types import Problem, TOPRError

Draw = Callable[[random.Random], Task]
GENERATORS: dict[str, Draw] = {
    "gsm8k": embedded_gsm8k.draw,
    "math": embedded_math.draw,
    **{f"ledger {turns}": partial(ledger.draw, turns=turns) for turns in (2, 5, 10, 22)},
}


def problems(name: str, split: str, count: int, seed: int) -> list[Problem]:
    return draw_problems(GENERATORS[name], name.split()[0], split=split, count=count, seed=seed)


every_generator = pytest.mark.parametrize("name", GENERATORS)
DIGESTS = {"gsm8k": "d0d5bbc448223153", "math": "d8fa4b8b7078c00e"}
DIGESTS |= {"ledger 2": "4eebd6a3a7b3ac4a", "ledger 10": "77379083a6bd2e46"}


def digest(found: list[Any]) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_problems_and_their_workings_stay_what_they_are(name: str) -> None:
    """Runs and the shipped models rest on them: a change of a generator must be seen."""
    made = problems(name, "train", 500, 0)
    found: list[Any] = [(one.id, one.question, one.answer, one.level, one.subject) for one in made]
    for task in draw_tasks(GENERATORS[name], "pretrain", count=500, seed=5):
        right = Calc()
        answer = task.solve(right)
        found.append((right.steps, answer))
        for wrong in (Calc(at, random.Random(at)) for at in range(right.calls)):
            answer = task.solve(wrong)
            found.append((wrong.steps, answer))
    assert digest(found) == DIGESTS[name]


@every_generator
def test_problems_are_distinct_and_split_for_good(name: str) -> None:
    train = problems(name, "train", 2000, 0)
    questions = {problem.question for problem in train}
    assert len(questions) == len({problem.id for problem in train}) == 2000
    for split in ("test", "pretrain"):
        others = {problem.question for problem in problems(name, split, 500, 7)}
        assert not others & questions
        assert {split_of(question) for question in others} == {split}
    assert sorted(tenth for tenths in SPLITS.values() for tenth in tenths) == list(range(10))


@every_generator
def test_problems_depend_on_the_seed_alone(name: str) -> None:
    assert problems(name, "train", 50, 3) == problems(name, "train", 80, 3)[:50] != problems(name, "train", 50, 4)
    ids = {problem.question: problem.id for problem in problems(name, "train", 2000, 3)}
    assert all(ids.get(problem.question, problem.id) == problem.id for problem in problems(name, "train", 2000, 4))


def test_more_problems_than_there_are_is_an_error() -> None:
    with pytest.raises(TOPRError, match="were asked for"):
        draw_tasks(lambda rng: embedded_gsm8k.draw(type(rng)(0)), "train", count=5, seed=0)


def test_the_source_draws_what_is_asked_without_overlap_and_its_golds_are_correct(capsys):
    sizes = ("model=tiny_long", "data.train_problems=30", "data.test_problems=20")
    config = config_of(*sizes, "data.turns=5")
    sets = load_problems(config.data)
    assert (config.data.name, sets.train) == ("ledger", problems("ledger 5", "train", 30, 0))
    assert sets.test == problems("ledger 5", "test", 20, 0)
    assert preflight.problems_at_hand(config.data) == sets
    assert not capsys.readouterr().err, "no gold is refused"
    held_out = load_problems(config_of(*sizes, "data.test_split=validation", "data.seed=4").data)
    assert [*held_out.train, *held_out.test] == problems("ledger 10", "train", 50, 4)
    assert len(held_out.test) == 20
