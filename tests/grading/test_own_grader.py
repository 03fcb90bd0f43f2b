"""A user's own function as a grader: found by name, run in the workers, its mistakes reported instead of scored."""

import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, config_of, make_completions, refused
from tests.extending import LOSS, REWARD, SOURCE, project
from topr_exp.evaluate import main as evaluate
from topr_exp.grading import Grader, Outcome
from topr_exp.grading.verdicts import grade, votes_are_known, with_verdicts
from topr_exp.pipeline import run
from topr_exp.report.__main__ import main as report
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store
from topr_exp.types import ConfigError, Problem, TOPRError

PROBLEMS = [Problem("a", "?", "5"), Problem("b", "?", "6")]


def graded_completions(grader: Grader, texts: list[str], problem: list[int]) -> Completions:
    completions = make_completions(problem, text=texts)
    return with_verdicts(completions, grade(grader, texts, completions.problem_index, PROBLEMS))


def test_a_function_by_name() -> None:
    with Grader("own_graders.contains", workers=2, deadline=60) as grader:
        pairs = [("a 5", "5"), ("a 6", "5"), ("", "5")] * 400
        found = [(one.verdict, one.path) for one in grader.grade(pairs)]
        assert found == [("correct", "user"), ("incorrect", "user"), ("incorrect", "user")] * 400
        graded = graded_completions(grader, ["a 5", "b 5", "c", "d", "6"], [0, 0, 0, 1, 1])
        assert not votes_are_known(graded)
        assert graded.answer_classes.tolist() == [0, 0, -1, -1, 0], "correct ones without an answer count as one answer"


def test_a_correct_answer_without_its_text_is_no_vote_for_a_wrong_one() -> None:
    """A grader that names wrong answers alone: 2 of 5 are correct, 2 say 7, 1 says 8."""
    with Grader("own_graders.naming_mistakes", workers=1, deadline=60) as grader:
        graded = graded_completions(grader, ["7", "5", "8", "7", "5"], [0] * 5)
    assert votes_are_known(graded)
    assert graded.answer_classes.tolist() == [0, 2, 1, 0, 2]


def test_a_function_may_tell_the_answer() -> None:
    with Grader("own_graders.with_answer", workers=1, deadline=60) as grader:
        assert votes_are_known(graded_completions(grader, ["c", "6"], [0, 1]))
        outcomes = list(grader.grade([("a 5", "5"), ("", "5")]))
        assert outcomes == [Outcome("correct", "5", "user"), Outcome("invalid", None, "user")]
        assert grader.classes(["5", "5.0", "x", None]) == [0, 0, 1, -1]


def test_a_mistake_names_the_completion_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.grading.grader.CHUNK", 2)
    with Grader("own_graders.obedient", workers=1, deadline=60) as grader, refused(r"no idea \(completion 5\)"):
        list(grader.grade([("1", "")] * 4 + [("raise", "")]))


def test_workers_hash_alike_since_sympy_orders_terms_by_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        with Grader("own_graders.hashing", workers=1, deadline=60) as grader:
            answers |= {one.answer for one in grader.grade([("x", "")])}
    assert len(answers) == 1


def test_a_worker_that_ends_or_takes_too_long_is_replaced() -> None:
    with Grader("own_graders.obedient", workers=2, deadline=5.0) as grader:
        cut = [("die", "died"), ("hoard", "died"), ("hang", "timeout"), ("1", "user"), ("die", "died"), ("0", "user")]
        outcomes = list(grader.grade((act, "") for act, _ in cut))
    assert [one.path for one in outcomes] == [path for _, path in cut]
    assert [one.verdict == "correct" for one in outcomes] == [act == "1" for act, _ in cut]


def test_a_worker_that_has_grown_costs_the_next_completion_nothing(obedient: Grader) -> None:
    """What one completion took may be missing for the next, which then has a fresh worker."""
    assert [one.verdict for one in obedient.grade([("swell", "")] * 3)] == ["correct"] * 3


@pytest.mark.parametrize("graded", [False, True])
def test_it_may_give_numbers(graded: bool) -> None:
    said = ["0.5", "1", "library", '[2.5, "5"]', '["invalid", null, -3]', "die"]
    with Grader("own_graders.obedient", 1, 60, graded, threshold=0.5) as grader:
        assert list(grader.grade([(each, "5") for each in said])) == [
            Outcome("correct", None, "user", 0.5),
            Outcome("correct", None, "user", 1.0),
            Outcome("incorrect", None, "user", 0.25),
            Outcome("correct", "5", "user", 2.5),
            Outcome("invalid", None, "user", -3.0),
            Outcome("incorrect", None, "died", None),
        ]


RESULT = r"must return one of correct, incorrect, invalid, or a number, .*; got "


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("raise", r"raised ValueError: no idea \(completion 2\)$"),
        ("write FILE", r"raised RuntimeError: a grading worker writes no file \(completion 2\)$"),
        ("eval (1, 2)", r"raised RuntimeError: a grading worker executes no text \(completion 2\)$"),
        ("tree (1, 2)", r"raised RuntimeError: a grading worker executes no text \(completion 2\)$"),
        ("object", RESULT + r"\"{'correct'}\""),
        ("true", RESULT + r"True \(completion 2\)$"),
        ('[true, "5"]', RESULT + r"\[True, '5'\]"),
        ('[0.5, "5", 0.5]', RESULT + r"\[0\.5, '5', 0\.5\]"),
        ("[]", RESULT + r"\[\]"),
        ('["correct", "5", "0.5"]', RESULT + r"\['correct', '5', '0\.5'\]"),
        ('["correct", "5", 1, 1]', RESULT + r"\['correct', '5', 1, 1\]"),
        (r'["correct", "\ud800"]', r"gave an answer with half of a surrogate pair, .*: '\\ud800' \(completion 2\)$"),
        ('"correct"', r"must give a number where data\.reward=graded; got 'correct' \(completion 2\)$"),
        ("NaN", r"gave the reward nan, which is not finite \(completion 2\)$"),
        ('[-Infinity, "5"]', r"gave the reward -inf, which is not finite \(completion 2\)$"),
        ("1" + "0" * 400, r"gave the reward 10+, which is not finite \(completion 2\)$"),
    ],
)
def test_its_mistakes_are_one_line_and_not_scored(said, message, obedient, tmp_path, monkeypatch):
    monkeypatch.setattr(obedient, "graded", True)
    said = said.replace("FILE", str(tmp_path / "file"))
    with refused(rf"^grader own_graders.obedient {message}"):
        list(obedient.grade([("1", ""), (said, "")]))
    assert not any(tmp_path.iterdir())


PRINTING = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT)!r}]
from topr_exp.grading import Grader
with Grader("own_graders.obedient", workers=1, deadline=60.0) as grader:
    answers = [one.verdict for one in grader.grade([(f"print {{i}} " + i % 2 * 100_000 * "x", "") for i in range(8)])]
print(*answers, grader._pool._server.pid)
"""


@pytest.mark.parametrize("place", ["file", "pipe"])
def test_it_may_print_wherever_standard_error_is(place: str, tmp_path: Path) -> None:
    """A file is what it is in every run of a sweep, and a worker may write to none."""
    log = tmp_path / "log"
    where = {"file": f"2>>{log}", "pipe": f"2>&1 >&3 3>&- | cat >{log}"}
    command = ["bash", "-c", f'exec 3>&1; "$0" -c "$1" {where[place]}', sys.executable, PRINTING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    *verdicts, server = done.stdout.split()
    assert verdicts == ["correct"] * 8, done
    deadline = time.monotonic() + 30
    while any(session_of(path) == server for path in Path("/proc").glob("[0-9]*/stat")):
        assert time.monotonic() < deadline, "a process of the server's session is left"
        time.sleep(0.1)
    words = log.read_text().split()
    assert (words.count("said"), words.count("wrote")) == (8, 8)
    assert "nobody" not in words


def session_of(path: Path) -> str:
    """The session of a process; "" where it is gone, or a zombie."""
    try:
        state, *numbers = path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else numbers[2]


def test_it_may_read_literals_and_import_late(obedient: Grader) -> None:
    outcomes = obedient.grade([("literal (1, 2)", "[1, 2]"), ("literal (1, 3)", "[1, 2]")])
    assert [one.verdict for one in outcomes] == ["correct", "incorrect"]


@pytest.mark.parametrize(
    "name",
    ["mmlu", "", "own_graders", "own_graders.", ".contains", "own_graders.absent", "absent_module.f", "a b.c", "json.",
     "own_graders.NOT_CALLABLE", "...f", "own_graders.contains.x", "own_graders:contains"],
)  # fmt: skip
def test_bad_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        Grader(name)
    assert "\n" not in str(error.value)
    assert "gsm8k, lenient, math, final, verdict or package.module.name" in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import json\nimport absent_thing\n", "line 2, raised ModuleNotFoundError: No module named 'absent_thing'"),
        ("from json import nothing\n", "line 1, raised ImportError: cannot import name 'nothing' from 'json'"),
        ("def grade(c, g)\n    return 1\n", "line 1, raised SyntaxError: expected ':'"),
        ("\n\n1 / 0\n", "line 3, raised ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", "line 2, raised JSONDecodeError: Expecting property name"),
        ("import sys\nsys.exit('no\\nidea')\n", "line 2, raised SystemExit: no idea"),
    ],
)
def test_a_module_that_fails_while_it_is_imported_is_named_with_its_line(source, message, tmp_path, monkeypatch):
    name = f"failing_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with refused(rf"^grader {name}.grade cannot be loaded: {name}\.py, {re.escape(message)}", ConfigError):
        Grader(f"{name}.grade")


# ---- the documents: a run with their loss, source and graded reward


CLOSENESS = ["data.grader={_target_: closeness.Closeness, word_cost: 0.001}", "data.reward=graded"]
OWN = ["--config-dir", "conf", "algo=soft_topr", "data=coins", *CLOSENESS]
PLACE = ["output_dir=out", "cluster.threads=1"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, LOSS, SOURCE, REWARD):
        with (tmp_path / "coins.py").open("a") as file:
            file.write('Coins.solution = lambda self, problem: f"The answer is {problem.answer}."\n')
        yield tmp_path


@pytest.mark.extended
def test_a_run_with_all_three_its_report_and_an_evaluation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("experiment=smoke", *OWN, *PLACE, "baseline=-1.5", "data.threshold=0.4")
    summary = run(config)
    shown = capsys.readouterr().out
    assert "rewards as graded" in shown
    assert "tested on   8 problems of coins from Coins" in shown
    assert config.folder.name.startswith("soft-topr_coins")
    noted = json.loads((config.folder / "inputs.json").read_text())["files"]
    assert noted.keys() == {
        "algo._target_ (soft_topr.py)", "data._target_ (coins.py)", "data.grader._target_ (closeness.py)"
    }  # fmt: skip
    stored = json.loads((config.folder / "config.json").read_text())
    assert stored["identity"]["data"]["_target_"] == stored["resolved"]["data"]["_target_"] == "coins.Coins"
    assert "mean reward" in shown
    record = json.loads((config.folder / "eval.jsonl").read_text().splitlines()[0])
    verdicts = Store(config.store).open(Path(record["verdicts"])).read()
    rewards, correct = np.array(verdicts["reward"].to_pylist()), np.array(verdicts["verdict"].to_pylist()) == "correct"
    assert (correct == (rewards >= 0.4)).all()
    assert len(set(rewards.tolist())) > 3
    assert summary["base"]["mean_reward"] == record["mean_reward"] == pytest.approx(rewards.mean())
    assert summary["base"]["pass@1"] == pytest.approx(correct.mean())
    each = rewards.reshape(-1, config.data.eval_n).mean(axis=1)
    assert summary["base"]["mean_reward_se"] == pytest.approx(each.std(ddof=1) / len(each) ** 0.5)
    trained = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())
    assert summary["mean_reward"] == trained["mean_reward"]
    line = json.loads((config.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert line["mean_reward"] != line["positive_share"]
    card = (config.folder / "model" / "README.md").read_text()
    assert "mean reward\n" in card
    assert f" {summary['base']['mean_reward']:.3g}\n" in card

    assert report(["out/runs", "--out", "shown"]) == 0
    (row,) = csv.DictReader((folder / "shown" / "tables" / "runs.csv").open())
    assert float(row["final_mean_reward"]) == pytest.approx(summary["final"]["mean_reward"])
    page = (folder / "shown" / "report.html").read_text()
    assert f">{summary['final']['mean_reward']:.3g} [" in page

    capsys.readouterr()
    words = [f"model={config.folder}", *PLACE]
    assert evaluate(words) == 2
    assert "data._target_=coins.Coins of the run that wrote the model decides" in capsys.readouterr().err
    assert evaluate([*OWN[:2], *words]) == 2
    assert "data.grader._target_=closeness.Closeness of the run that wrote the model" in capsys.readouterr().err
    assert evaluate([*OWN[:2], *words, CLOSENESS[0]]) == 0
    assert f"mean reward {summary['final']['mean_reward']:.3g} [" in capsys.readouterr().out

    source = folder / "coins.py"
    source.write_text(source.read_text().replace("last number is", "very last number is"))
    with pytest.raises(TOPRError, match=r"data\._target_ \(coins\.py\) has changed since"):
        run(config)
