"""`data=reasoning_gym`: what is drawn, how it is graded, what is refused, and whole runs with two tasks."""

import json
import random
import re
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import pytest

from scripts.make_tiny import tasks
from tests.conftest import config_of, each_row, needs_gym, read_json, refused, run_python, values_of
from topr_exp.data.problems import load_problems
from topr_exp.data.reasoning_gym import EXCLUDED, TASKS, ReasoningGym, seed_of
from topr_exp.grading import gym
from topr_exp.pipeline import run
from topr_exp.types import ConfigError


class Sums(list):
    """A stand-in for a task of the library: the next number, up to `largest`."""

    def __init__(self, task, seed, size, largest=10**6):
        assert largest > 0, "largest must be\npositive"
        rng = random.Random(f"{task}/{seed}")
        for _ in range(size):
            number = rng.randrange(largest)
            self.append({"question": f"{number} + 1 = ", "answer": str(number + 1), "metadata": {"n": number}})

    def score_answer(self, answer, entry):
        return 1.0 if Fraction(answer) == int(entry["answer"]) else 0.01


@pytest.fixture
def library(stand_in):
    stand_in("reasoning_gym", SimpleNamespace(create_dataset=Sums))
    gym.task_of.cache_clear()
    yield
    gym.task_of.cache_clear()


SMALL = {"train_problems": 30, "test_problems": 10, "n": 1, "eval_n": 1, "shots": 0, "seed": 0}
GRADER = {"_target_": "topr_exp.grading.gym.grade"}


def source(options=None, **changes):
    return ReasoningGym(**SMALL | changes, name="gym", grader=GRADER, task="gcd", options=options)


def all_questions(data):
    sets = load_problems(data)
    return set(values_of([*sets.train, *sets.test], "question"))


# ---- the list of tasks


def test_tasks_are_sorted_and_none_is_both_offered_and_left_out():
    assert sorted(set(TASKS)) == TASKS
    assert not set(TASKS) & EXCLUDED.keys()


@needs_gym
def test_some_tasks_do_what_the_list_says():
    """One that is offered, one with a scorer of our own, and one for each reason to be left out."""
    task_by_reason = {reason: task for task, reason in reversed(EXCLUDED.items())}
    task_by_reason[EXCLUDED["codeio"]] = "word_ladder"
    tasks_to_try = ["chain_sum", "countdown", *task_by_reason.values()]

    process = run_python("-m", "scripts.try_gym_tasks", *tasks_to_try)

    assert process.returncode == 0, process.stdout


def test_without_the_package_a_line_says_how_to_install_it(stand_in):
    stand_in("reasoning_gym", None)
    command = "pip install -e '.[tasks]' -c constraints.txt"
    line = f"data=reasoning_gym: the package reasoning-gym is not installed (in the checkout: {command})"

    with refused(re.escape(line), ConfigError):
        config_of("data=reasoning_gym", "data.seed=77", "dry_run=true")


@needs_gym
def test_another_version_of_the_library_would_be_noticed():
    """It may draw other problems; a run whose files changed is refused, and this one holds the hashes of all."""
    ((key, record),) = config_of("data=reasoning_gym").data.files()

    assert key == "task"
    assert record.name == "RECORD"
    assert "reasoning_gym/games/countdown.py,sha256=" in record.read_text()


# ---- problems and answers


def test_neighbouring_seeds_share_no_problems():
    seeds = [seed_of("gcd", seed, split) for seed in range(50) for split in ("train", "test")]

    assert min(after - seed for seed, after in pairwise(sorted(seeds))) > 1000


def test_problems_are_those_of_the_seed(library):
    sets = load_problems(source())

    assert load_problems(source()) == sets
    assert len(sets.train) == 30
    assert len(sets.test) == 10
    questions = all_questions(source())
    assert len(questions) == 40
    assert not questions & all_questions(source(seed=1))


def test_a_problem_has_its_task_in_its_gold_which_is_graded_correct(library):
    problem = load_problems(source()).test[0]

    gold = json.loads(problem.answer)
    assert problem.id == "gym/gcd/test0/000000"
    assert gold["task"] == "gcd"
    assert gold["options"] == {}
    assert problem.question == f"{gold['metadata']['n']} + 1 ="
    assert gym.grade(source().solution(problem), problem.answer)[0] == "correct"


def test_a_task_with_fewer_problems_gives_what_there_are(library):
    sets = load_problems(source({"largest": 10}, test_problems=3))

    assert len(sets.train) + len(sets.test) == 10
    assert json.loads(sets.train[0].answer)["options"] == {"largest": 10}


REFUSED_OPTIONS = """
{"max_term": 3}
{"largest": 0}
{"largest": "three"}
{"seed": 3}
"""


@each_row("options", REFUSED_OPTIONS, literals=True)
def test_options_that_the_task_refuses_are_one_line(options, library):
    with refused(r"^data\.options=.*: gcd does not take these: "):
        load_problems(source(options))


# A completion | verdict, answer and reward where the gold is -12
GRADED = r"""
"2 - 14 = <answer>-12</answer>" | ("correct", "-12", 1)
"<answer> 5 </answer> no, <answer>\n-12.0\n</answer>" | ("correct", "-12.0", 1)
"<answer>-12 or 5</answer>" | ("incorrect", "-12 or 5", 0)
"<answer>5</answer>" | ("incorrect", "5", 0.01)
"<answer>-12" | ("invalid", None, 0)
"<answer>-12</answer></think> so" | ("invalid", None, 0)
"<answer>-12</answer>\nQuestion: 1 + 1 <answer>2</answer>" | ("correct", "-12", 1)
"""  # of the third the scorer raises an error


@each_row("completion outcome", GRADED, literals=True)
def test_an_answer_stands_between_tags_and_scores_1_or_less(library, completion, outcome):
    gold = json.dumps({"task": "gcd", "options": {}, "answer": "-12", "metadata": {}})

    assert gym.grade(completion, gold) == outcome


SIZES = """
data.train_problems=100 data.test_problems=60 data.n=8 data.eval_n=4 optim.lr=4e-4 optim.epochs=2 cluster.threads=1
"""


@needs_gym
@pytest.mark.extended
@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_model_that_knows_a_task_learns_it(task, tmp_path):
    """The shipped model solves at least a tenth of the problems, and more of them when it has been trained."""
    options = json.dumps(tasks.TASKS[task]).replace('"', "")
    words = ["model=tiny_tasks", f"data.task={task}", f"data.options={options}", *SIZES.split()]
    config = config_of(*words, f"output_dir={tmp_path}")

    summary = run(config)

    assert summary["source"] == f"reasoning-gym's {task}"
    inputs = read_json(config.folder / "inputs.json")["files"]
    assert {"data.task (RECORD)", "data.grader (gym.py)"} <= inputs.keys()
    assert 0.1 <= summary["base"]["pass@1"] < summary["final"]["pass@1"]
