"""docs/own_problems.md: what is refused in its source of problems, and what is counted."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import config_of, refused
from tests.extending import SOURCE, project
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.runs import preflight
from topr_exp.types import ConfigError, Problem


@pytest.fixture
def coins(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, SOURCE):
        yield tmp_path


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "coins.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("coins", None)


def settings(*more: str) -> list[str]:
    return ["--config-dir", "conf", "data=coins", "experiment=smoke", "cluster.threads=1", *more]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('if (first * more % 5 == 0) == (split == "test")', 'if split == "train"',
         "the test split of data=coins holds no problems"),
        ('id=f"coins/{first}+{more}"', 'id=f"{first}"', "data=coins: "),
        ("answer=str(first + more)", "answer=first + more", "id, question and answer must be texts and not empty; got"),
        ("answer=str(first + more)", "answer='\\ud800'", "half of a surrogate pair is no character; got"),
        ("yield Problem(", "yield dict(", "data._target_=coins.Coins: problems('test') yields dict, not Problem"),
        ("answer=str(first + more)", "answer=str(1 / (first - 5))",
         "problems('test') raised ZeroDivisionError: division by zero (coins.py, line "),
        ("== gold", "== gold + '.'",
         "data=coins: the grader coins:grade refuses the gold of 24 of 24 problems; the first is coins/"),
        ("numbers = re", "1 / 0; numbers = re", "grader coins:grade raised ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_what_a_source_must_not_do_is_one_line(coins: Path, old: str, new: str, message: str) -> None:
    change(coins, old, new)
    with refused(re.escape(message), ConfigError):
        config_of(*settings())


def test_few_refused_golds_are_counted(coins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(coins, "== gold else", "== gold != '5' else")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    told = "warning: data=coins: the grader coins:grade refuses the gold of 2 of 1444 problems; the first is coins/"
    assert f"\n{told}" in f"\n{capsys.readouterr().err}"
    change(coins, "def grade(", "Coins.solution = lambda self, problem: None\n\n\ndef grade(")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    assert "warning" not in capsys.readouterr().err


def test_problems_without_end_and_ones_that_are_elsewhere(coins: Path) -> None:
    change(coins, "    def problems", "    generated = True\n    at_hand = False\n\n    def problems")
    without_end = r"^data\.train_problems must be a number: Coins problems have no end; got null"
    with pytest.raises(ConfigError, match=without_end):
        config_of(*settings("data.train_problems=null"))
    config = config_of(*settings("data.grader=gsm8k"))
    assert preflight.problems(config.data) is None
    assert [one.id for one in load_problems(config.data).train[:2]] == ["coins/2+2", "coins/2+3"]


def test_the_prompt_may_name_further_fields(coins: Path) -> None:
    prompter = build_prompter(config_of(*settings(r"data.template='{hint} {question} \boxed{x}'")).data)
    problem = Problem("a", "What is {hint}?", "1", fields={"hint": "{question}"})
    assert prompter.render(problem.question, fields=problem.fields) == r"{question} What is {hint}? \boxed{x}"
