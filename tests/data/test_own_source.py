"""docs/extending.md, the second part: its source of problems, as printed there; and what is refused in one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of
from topr_exp.config.data import DataConfig
from topr_exp.data.problems import load_problems
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run
from topr_exp.runs import preflight
from topr_exp.types import ConfigError, Problem, TOPRError

PAGE = (ROOT / "docs" / "extending.md").read_text()
DOC = PAGE.partition("\n# A source of problems\n")[2].partition("\n# A graded reward\n")[0]
SMALL = ["experiment=smoke", "cluster.threads=1"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The two files of the document, and nothing else; the working folder, as for the reader."""
    for name, language in (("coins.py", "python"), ("conf/data/coins.yaml", "yaml")):
        match = re.search(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)```", DOC, re.DOTALL)
        assert match, name
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(match[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "coins", raising=False)
    preflight._read.clear()
    yield tmp_path
    sys.modules.pop("coins", None)


def change(project: Path, old: str, new: str) -> None:
    path = project / "coins.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("coins", None)


def settings(*more: str) -> list[str]:
    return ["--config-dir", "conf", "data=coins", *SMALL, *more]


def test_the_commands_find_it(project: Path) -> None:
    lines = [line for line in DOC.splitlines() if line.startswith("python -m topr_exp")]
    assert len(lines) == 3
    for line in lines:
        words = [*line.split()[3:], *([] if "dry_run" in line else ["dry_run=true"])]
        done = subprocess.run([sys.executable, "-m", "topr_exp", *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "Question: Mia has " in done.stdout
        assert done.stdout.count("_coins_tiny_lr1e-4_s") == (4 if "-m data" in line else 1)
    with pytest.raises(ConfigError) as caught:
        config_of(*settings("data.largest=5"))
    assert str(caught.value) in DOC


def test_a_run_with_it_and_an_evaluation_of_what_it_trained(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(*settings("output_dir=out"))
    assert isinstance(config.data, DataConfig)
    summary = run(config)
    assert summary["source"] == "Coins"
    assert summary["base"]["correct"] > 0.1
    assert "tested on   8 problems of coins from Coins" in capsys.readouterr().out
    noted = json.loads((config.folder / "inputs.json").read_text())["files"]
    assert noted.keys() == {"data._target_ (coins.py)", "data.grader (coins.py)"}
    stored = json.loads((config.folder / "config.json").read_text())
    assert stored["identity"]["data"]["_target_"] == stored["resolved"]["data"]["_target_"] == "coins.Coins"

    assert evaluate(["--config-dir", "conf", f"model={config.folder}", "output_dir=out2", "cluster.threads=1"]) == 0
    (path,) = Path("out2").glob("*/*/eval.json")
    assert json.loads(path.read_text())["figures"]["pass@1"] == summary["final"]["pass@1"]
    assert evaluate([f"model={config.folder}", "output_dir=out2"]) == 2
    assert "data._target_=coins.Coins of the run that wrote the model decides" in capsys.readouterr().err

    change(project, "last number is", "very last number is")
    with pytest.raises(TOPRError, match=r"data\.grader \(coins\.py\) has changed since"):
        run(config_of(*settings("output_dir=out")))


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
def test_what_a_source_must_not_do_is_one_line(project: Path, old: str, new: str, message: str) -> None:
    change(project, old, new)
    with pytest.raises(ConfigError) as caught:
        config_of(*settings())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_few_refused_golds_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(project, "== gold else", "== gold != '5' else")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    assert re.search(
        r"^warning: data=coins: the grader coins:grade refuses the gold of 2 of 1444 problems; the first is coins/\d",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    change(project, "def grade(", "Coins.solution = lambda self, problem: None\n\n\ndef grade(")
    config_of(*settings("data.train_problems=null", "data.test_problems=null"))
    assert "warning" not in capsys.readouterr().err


def test_problems_without_end_and_ones_that_are_elsewhere(project: Path) -> None:
    change(project, "    def problems", "    generated = True\n    at_hand = False\n\n    def problems")
    without_end = r"^data\.train_problems must be a number: Coins problems have no end; got null"
    with pytest.raises(ConfigError, match=without_end):
        config_of(*settings("data.train_problems=null"))
    config = config_of(*settings("data.grader=gsm8k"))
    assert preflight.problems(config.data) is None
    assert [one.id for one in load_problems(config.data).train[:2]] == ["coins/2+2", "coins/2+3"]


def test_the_prompt_may_name_further_fields(project: Path) -> None:
    from topr_exp.data.prompts import build_prompter

    prompter = build_prompter(config_of(*settings(r"data.template='{hint} {question} \boxed{x}'")).data)
    problem = Problem("a", "What is {hint}?", "1", fields={"hint": "{question}"})
    assert prompter.render(problem.question, fields=problem.fields) == r"{question} What is {hint}? \boxed{x}"
