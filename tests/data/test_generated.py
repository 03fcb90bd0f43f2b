"""Generated problems: the same for ever, bit for bit, distinct, and split for good."""

import hashlib
import random
from functools import partial

import pytest

from tests.conftest import config_of, each_row, refused, values_of
from topr_exp.data import embedded_gsm8k, embedded_math, ledger
from topr_exp.data.embedded import Calc, draw_problems, draw_tasks, split_of
from topr_exp.data.problems import load_problems

GENERATORS = {"gsm8k": embedded_gsm8k.draw, "math": embedded_math.draw}
for turns in (2, 5, 10, 22):
    GENERATORS[f"ledger {turns}"] = partial(ledger.draw, turns=turns)
every_generator = pytest.mark.parametrize("name", GENERATORS)


def draw(name, split, count, seed):
    return draw_problems(GENERATORS[name], name.split()[0], split=split, count=count, seed=seed)


def questions_of(problems):
    return set(values_of(problems, "question"))


DIGESTS = """
gsm8k | d0d5bbc448223153
math | d8fa4b8b7078c00e
ledger 2 | 4eebd6a3a7b3ac4a
ledger 10 | 77379083a6bd2e46
"""


def workings_of(task):
    """The steps and the answer of a task, without a mistake and with one at each place."""
    right = Calc()
    answer = task.solve(right)
    content = [(right.steps, answer)]
    for place in range(right.calls):
        wrong = Calc(place, random.Random(place))
        answer = task.solve(wrong)
        content.append((wrong.steps, answer))
    return content


@each_row("name digest", DIGESTS)
def test_problems_and_their_workings_stay_what_they_are(name, digest):
    """Runs and the shipped models rest on them: a change of a generator must be seen."""
    content = []
    for problem in draw(name, "train", 500, 0):
        content.append((problem.id, problem.question, problem.answer, problem.level, problem.subject))
    for task in draw_tasks(GENERATORS[name], "pretrain", count=500, seed=5):
        content += workings_of(task)

    assert hashlib.sha256(repr(content).encode()).hexdigest()[:16] == digest


@every_generator
def test_problems_are_distinct_and_split_for_good(name):
    train = draw(name, "train", 2000, 0)
    train_questions = questions_of(train)

    assert len(train_questions) == len(set(values_of(train, "id"))) == 2000
    for split in ("test", "pretrain"):
        questions = questions_of(draw(name, split, 500, 7))
        assert not questions & train_questions
        assert set(map(split_of, questions)) == {split}


@every_generator
def test_problems_depend_on_the_seed_alone(name):
    problems = draw(name, "train", 2000, 3)
    problems_of_another_seed = draw(name, "train", 2000, 4)

    assert draw(name, "train", 50, 3) == problems[:50] != problems_of_another_seed[:50]
    id_by_question = {problem.question: problem.id for problem in problems}
    for problem in problems_of_another_seed:
        assert id_by_question.get(problem.question, problem.id) == problem.id


def test_more_problems_than_there_are_is_an_error():
    with refused("were asked for"):
        draw_tasks(lambda rng: embedded_gsm8k.draw(type(rng)(0)), "train", count=5, seed=0)


def test_the_source_draws_what_is_asked_and_its_golds_are_correct(capsys):
    config = config_of("model=tiny_long", "data.turns=5", "data.train_problems=30", "data.test_problems=20")

    sets = load_problems(config.data)

    assert sets.train == draw("ledger 5", "train", 30, 0)
    assert sets.test == draw("ledger 5", "test", 20, 0)
    assert not capsys.readouterr().err, "no gold is refused"
