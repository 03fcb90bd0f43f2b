"""`data=reasoning_gym`: what is drawn, how it is graded, what is refused, and whole runs with two tasks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scripts.make_tiny import tasks
from tests.conftest import ROOT, config_of, needs_gym
from topr_exp.data import reasoning_gym
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.data.reasoning_gym import EXCLUDED, TASKS
from topr_exp.grading import Grader
from topr_exp.pipeline import run
from topr_exp.runs import preflight
from topr_exp.types import ConfigError

GRADER = "topr_exp.grading.gym:grade"


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    caches = (preflight.read_problems, reasoning_gym.draw)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def settings(*more: str) -> list[str]:
    return ["data=reasoning_gym", "data.train_problems=null", "data.test_problems=null", *more]


def sets(*more: str) -> ProblemSets:
    return load_problems(config_of(*settings("data.size=30", "data.test_size=10", *more)).data)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=chainsum"], f"data.task must be one of {len(TASKS)} tasks of reasoning-gym (docs/using.md); got "
                            "chainsum; did you mean chain_sum?"),
        (["task=7"], "(docs/using.md); got 7"),
        (["task=n_queens"], "data.task must be one that can be graded; n_queens can't: its scorer evaluates text"),
        (["size=0"], "data.size must be 1 or more; got 0"),
        (["options={seed: 3}"], "data.options must be settings of the task other than seed and size, as in "
                                "{max_terms: 3}; got {'seed': 3}"),
        (["options=3"], "data.options must be settings of the task"),
    ],
)  # fmt: skip
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(*settings(*(f"data.{word}" for word in words)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError) as caught:
        config_of(*settings("dry_run=true"))
    said = "data=reasoning_gym: the package reasoning-gym is not installed (pip install 'topr-exp[tasks]')"
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_the_document_lists_the_tasks_and_none_is_both_offered_and_left_out() -> None:
    assert not set(TASKS) & EXCLUDED.keys()
    assert sorted({*TASKS}) == TASKS
    offered, _, left_out = (
        (ROOT / "docs" / "using.md").read_text().partition("changed. The tasks:")[2].partition("Left out,")
    )
    assert re.findall(r"`(\w+)`", offered) == TASKS
    assert set(re.findall(r"`(\w+)`", left_out.partition("\n`python")[0])) == EXCLUDED.keys()


def test_neighbouring_seeds_share_no_problems() -> None:
    seeds = [reasoning_gym.seed_of("gcd", seed, split) for seed in range(50) for split in ("train", "test")]
    seeds.sort()
    assert min(after - before for before, after in pairwise(seeds)) > 1000


@needs_gym
def test_some_tasks_do_what_the_list_says() -> None:
    """One that is offered, one with a scorer of our own, and one for each reason to be left out."""
    first = {reason: task for task, reason in reversed(EXCLUDED.items())}
    sample = ["chain_sum", "countdown", *(task if task != "codeio" else "word_ladder" for task in first.values())]
    subprocess.run([sys.executable, "-m", "scripts.try_gym_tasks", *sample], cwd=ROOT, check=True, timeout=600)


@needs_gym
def test_what_is_drawn() -> None:
    one, again = sets(), sets()
    assert (one.train, one.test) == (again.train, again.test)
    assert (len(one.train), len(one.test)) == (30, 10)
    assert one.train[0].id == "reasoning_gym/chain_sum/train0/000000"
    questions = [problem.question for problem in (*one.train, *one.test)]
    assert len(set(questions)) == 40
    assert not set(questions) & {problem.question for problem in sets("data.seed=1").train}
    gold = json.loads(one.test[0].answer)
    assert gold.keys() == {"task", "options", "answer", "metadata"}
    assert str(gold["metadata"]["expression"]) in one.test[0].question
    asked = build_prompter(config_of(*settings()).data).render(one.test[0].question)
    assert asked.startswith(one.test[0].question)
    assert asked.endswith("between <answer> and </answer>.\n")
    short = sets("data.options={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}")
    assert all(json.loads(problem.answer)["metadata"]["num_terms"] == 2 for problem in short.train)


@needs_gym
def test_a_task_with_fewer_problems_gives_what_there_are() -> None:
    few = "data.options={min_terms: 1, max_terms: 1, min_digits: 1, max_digits: 1}"
    assert len(sets(few, "data.test_size=3").train) + 3 == 10  # 0 to 9, those to test on left out of training
    with pytest.raises(ConfigError, match="no problem is left; every training question is also a test question"):
        config_of(*settings(few))


@needs_gym
@pytest.mark.parametrize("options", ["{max_term: 3}", "{max_terms: 0}", "{max_terms: three}"])
def test_options_that_the_task_refuses(options: str) -> None:
    with pytest.raises(ConfigError, match=r"^data\.options=.*: chain_sum does not take these: ") as caught:
        config_of(*settings(f"data.options={options}"))
    assert "\n" not in str(caught.value)


@needs_gym
def test_an_answer_stands_between_tags_and_scores_1_or_nothing() -> None:
    gold = json.dumps({"task": "chain_sum", "options": {}, "answer": "-12", "metadata": {"difficulty": {}}})
    cases = {
        "2 - 14 = <answer>-12</answer>": ("correct", "-12"),
        "<answer> 5 </answer> no, <answer>\n-12.0\n</answer>": ("correct", "-12.0"),
        "<answer>-12 or 5</answer>": ("incorrect", "-12 or 5"),
        "<answer>5</answer>": ("incorrect", "5"),
        "-12": ("invalid", None),
        "<answer>-12": ("invalid", None),
        "<answer> </answer>": ("invalid", None),
        "<answer>-12</answer></think> so": ("invalid", None),
        "<answer>-12</answer>\nQuestion: 1 + 1 <answer>2</answer>": ("correct", "-12"),
    }
    with Grader(GRADER, workers=1, deadline=60, graded=True) as grader:  # of a matrix some tasks pay a part
        found = list(grader.grade((completion, gold) for completion in cases))
    assert [(one.verdict, one.answer) for one in found] == list(cases.values())
    assert all(one.reward == 1 if one.verdict == "correct" else 0 <= (one.reward or 0) < 1 for one in found)
    assert all(one.reward == 0 for one in found if one.verdict == "invalid")


@needs_gym
def test_the_workers_are_sealed_with_the_library_in_them() -> None:
    """n_queens evaluates lists: left out, but the seal would stop it too."""
    entry: dict[str, Any] = {"task": "n_queens", "options": {}, "answer": "", "metadata": {"valid_answers": [""]}}
    gold = json.dumps(entry)
    attack = "[print, __import__('os').mkdir('made-by-an-answer')]"
    with Grader(GRADER, workers=1, deadline=60) as grader:
        (outcome,) = grader.grade([(f"<answer>{attack}</answer>", gold)])
    assert outcome.verdict == "incorrect"
    assert not Path("made-by-an-answer").exists()


@needs_gym
@pytest.mark.extended
@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_model_that_knows_a_task_learns_it(task: str, tmp_path: Path) -> None:
    """The shipped model solves at least a tenth of the problems, and more of them when it has been trained."""
    options = ", ".join(f"{name}: {value}" for name, value in tasks.TASKS[task].items())
    own = ["model=tiny_tasks", f"data.task={task}", f"data.options={{{options}}}", "data.size=100", "data.test_size=60"]
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
