"""`data=reasoning_gym`: what is drawn, how it is graded, what is refused, and whole runs with two tasks."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.make_tiny import tasks
from tests.conftest import ROOT, config_of, needs_gym, refused
from topr_exp.data.problems import load_problems
from topr_exp.data.reasoning_gym import EXCLUDED, TASKS, ReasoningGym, seed_of
from topr_exp.grading import gym
from topr_exp.pipeline import run
from topr_exp.runs import preflight
from topr_exp.types import ConfigError

GRADER = "topr_exp.grading.gym.grade"


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    preflight._problem_sets.clear()
    yield
    preflight._problem_sets.clear()


def settings(*more: str) -> list[str]:
    return ["data=reasoning_gym", *more]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    said = "data=reasoning_gym: the package reasoning-gym is not installed (pip install 'topr-exp[tasks]')"
    with refused(re.escape(said), ConfigError):
        config_of(*settings("dry_run=true"))


def test_the_document_lists_the_tasks_and_none_is_both_offered_and_left_out() -> None:
    assert not set(TASKS) & EXCLUDED.keys()
    assert sorted({*TASKS}) == TASKS
    text = (ROOT / "docs" / "problems.md").read_text()
    listed = text.partition("changed. The tasks:\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", listed) == TASKS


def test_neighbouring_seeds_share_no_problems() -> None:
    seeds = sorted(seed_of("gcd", seed, split) for seed in range(50) for split in ("train", "test"))
    assert min(after - before for before, after in pairwise(seeds)) > 1000


@needs_gym
def test_some_tasks_do_what_the_list_says() -> None:
    """One that is offered, one with a scorer of our own, and one for each reason to be left out."""
    first = {reason: task for task, reason in reversed(EXCLUDED.items())}
    sample = ["chain_sum", "countdown", *(task if task != "codeio" else "word_ladder" for task in first.values())]
    command = [sys.executable, "-m", "scripts.try_gym_tasks", *sample]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout


class Sums(list[dict[str, Any]]):
    """A stand-in for a task of the library: the next number, up to `most`."""

    def __init__(self, task: str, seed: int, size: int, most: int = 10**6) -> None:
        assert most > 0, "most must be\npositive"
        draw = random.Random(f"{task}/{seed}")
        numbers = [draw.randrange(most) for _ in range(size)]
        super().__init__({"question": f"{n} + 1 = ", "answer": str(n + 1), "metadata": {"n": n}} for n in numbers)

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        return 1.0 if Fraction(answer) == int(entry["answer"]) else 0.01


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=Sums))
    gym.task_of.cache_clear()
    yield
    gym.task_of.cache_clear()


def source(**changes: Any) -> ReasoningGym:
    plain: dict[str, Any] = {"train_problems": 30, "test_problems": 10, "n": 1, "eval_n": 1, "shots": 0, "seed": 0}
    asked = {"name": "gym", "grader": {"_target_": GRADER}, "task": "gcd", "options": None}
    return ReasoningGym(**plain | asked | changes)


def test_what_is_drawn(library: None) -> None:
    one, again = load_problems(source()), load_problems(source())
    assert (one.train, one.test) == (again.train, again.test)
    assert (len(one.train), len(one.test)) == (30, 10)
    assert (one.train[0].id, one.test[0].id) == ("gym/gcd/train0/000000", "gym/gcd/test0/000000")
    questions = {problem.question for problem in (*one.train, *one.test)}
    assert len(questions) == 40
    assert not questions & {problem.question for problem in load_problems(source(seed=1)).train}
    gold = json.loads(one.test[0].answer)
    assert gold | {"metadata": None} == {"task": "gcd", "options": {}, "answer": gold["answer"], "metadata": None}
    assert one.test[0].question == f"{gold['metadata']['n']} + 1 ="
    assert gym.grade(source().solution(one.test[0]), one.test[0].answer)[0] == "correct"
    few = load_problems(
        source(options={"most": 10}, test_problems=3)
    )  # a task with fewer problems gives what there are
    assert len(few.train) + len(few.test) == 10
    assert json.loads(few.train[0].answer)["options"] == {"most": 10}


@pytest.mark.parametrize("options", [{"max_term": 3}, {"most": 0}, {"most": "three"}, {"seed": 3}])
def test_options_that_the_task_refuses(options: Any, library: None) -> None:
    with refused(r"^data\.options=.*: gcd does not take these: "):
        load_problems(source(options=options))


def test_an_answer_stands_between_tags_and_scores_1_or_less(library: None) -> None:
    gold = json.dumps({"task": "gcd", "options": {}, "answer": "-12", "metadata": {}})
    cases = {
        "2 - 14 = <answer>-12</answer>": ("correct", "-12", 1),
        "<answer> 5 </answer> no, <answer>\n-12.0\n</answer>": ("correct", "-12.0", 1),
        "<answer>-12 or 5</answer>": ("incorrect", "-12 or 5", 0),  # on which the scorer fails
        "<answer>5</answer>": ("incorrect", "5", 0.01),
        "-12": ("invalid", None, 0),
        "<answer>-12": ("invalid", None, 0),
        "<answer> </answer>": ("invalid", None, 0),
        "<answer>-12</answer></think> so": ("invalid", None, 0),
        "<answer>-12</answer>\nQuestion: 1 + 1 <answer>2</answer>": ("correct", "-12", 1),
    }
    assert [gym.grade(completion, gold) for completion in cases] == [*cases.values()]


@needs_gym
@pytest.mark.extended
@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_model_that_knows_a_task_learns_it(task: str, tmp_path: Path) -> None:
    """The shipped model solves at least a tenth of the problems, and more of them when it has been trained."""
    options = ", ".join(f"{name}: {value}" for name, value in tasks.TASKS[task].items())
    own = [
        "model=tiny_tasks",
        f"data.task={task}",
        f"data.options={{{options}}}",
        "data.train_problems=100",
        "data.test_problems=60",
    ]
    own += ["data.n=8", "data.eval_n=4", "optim.lr=4e-4", "optim.epochs=2"]
    config = config_of(*own, f"output_dir={tmp_path}", "cluster.threads=1")
    summary = run(config)
    assert summary["source"] == f"reasoning-gym's {task}"
    noted = json.loads((config.folder / "inputs.json").read_text())["files"]
    assert {"data.task (RECORD)", "data.grader (gym.py)"} <= noted.keys()
    assert summary["base"]["pass@1"] >= 0.1
    assert summary["final"]["pass@1"] > summary["base"]["pass@1"]


@needs_gym
def test_another_version_of_the_library_would_be_noticed() -> None:
    """It may draw other problems; a run whose files changed is refused, and this one holds the hashes of all."""
    ((key, record),) = config_of(*settings()).data.files()
    assert (key, record.name) == ("task", "RECORD")
    assert "reasoning_gym/games/countdown.py,sha256=" in record.read_text()
