"""A user's own function as a grader: found by name, run in the workers, its mistakes reported instead of scored."""

import re
import shlex
import subprocess
import sys
from ast import literal_eval
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.conftest import (
    ROOT,
    append_text,
    config_of,
    each_row,
    make_completions,
    parted,
    refused,
    values_of,
)
from tests.extending import LOSS, REWARD, SOURCE, project
from tests.grading.cases import CASES
from tests.grading.conftest import decisions, verdicts_on
from tests.sweep_tools import wait_for
from topr_exp.evaluate import main as evaluate
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import grade, votes_are_known, with_verdicts
from topr_exp.pipeline import run
from topr_exp.store import Store
from topr_exp.types import ConfigError, Problem

# What the grader gives | whether it can be voted on | classes of the answers
VOTES = """
['"correct"', '"correct"', '"incorrect"'] | False | [0, 0, -1]
['["incorrect", "7"]', '"correct"', '["incorrect", "8"]', '["incorrect", "7"]'] | True | [0, 2, 1, 0]
['["correct", "5"]', '["correct", "5.0"]', '["incorrect", "x"]', '"invalid"'] | True | [0, 0, 1, -1]
"""  # correct ones count as one answer; mistakes are named; all answers are


@each_row("values votes classes", VOTES, literals=True)
def test_a_vote_needs_the_answers_of_incorrect_completions(values, votes, classes, obedient):
    completions = make_completions([0] * len(values), text=values)

    table = grade(obedient, values, completions.problem_index, [Problem("a", "?", "5")])
    graded = with_verdicts(completions, table)

    assert votes_are_known(graded) == votes
    assert graded.answer_classes.tolist() == classes


def test_a_mistake_names_the_completion_among_all(obedient):
    with refused(r"no idea \(completion 300\)"):
        list(obedient.grade([("1", "")] * 299 + [("raise", "")]))


ACTS = """
die | incorrect | died
hoard | incorrect | died
hang | incorrect | timeout
1 | correct | user
die | incorrect | died
0 | incorrect | user
"""


def test_a_worker_that_ends_or_takes_too_long_is_replaced():
    acts, verdicts, paths = zip(*parted(ACTS), strict=True)

    with Grader("own_graders.obedient", workers=2, deadline=4.0) as grader:
        outcomes = decisions(grader, [(act, "") for act in acts])

    assert outcomes == list(zip(verdicts, paths, strict=True))


def test_a_worker_that_has_grown_costs_the_next_completion_nothing(obedient):
    assert verdicts_on(obedient, [("swell", "")] * 3) == ["correct"] * 3


def test_workers_hash_alike_since_sympy_orders_terms_by_hashes(obedient):
    assert values_of(obedient.grade([("randomness", "")]), "reward") == [0]


# What it does | verdict, answer, what decided and reward
OUTCOMES = """
0.5 | ("correct", None, "user", 0.5)
1 | ("correct", None, "user", 1.0)
library | ("incorrect", None, "user", 0.25)
[2.5, "5"] | ("correct", "5", "user", 2.5)
["invalid", null, -3] | ("invalid", None, "user", -3.0)
die | ("incorrect", None, "died", None)
"""


@pytest.mark.parametrize("name", ["obedient", "graded"])
def test_it_may_give_numbers(name, request):
    grader = request.getfixturevalue(name)
    acts, expected = zip(*parted(OUTCOMES), strict=True)

    outcomes = grader.grade((act, "5") for act in acts)

    assert list(map(astuple, outcomes)) == list(map(literal_eval, expected))


RESULT = "one of correct, incorrect, invalid, or a number, or one of these and the answer's text, or a verdict, the"
MISTAKES = CASES["own"]["mistakes"] | {f"1{400 * '0'}": "gave the reward 1000"}


@pytest.mark.parametrize("act", MISTAKES)
def test_its_mistakes_are_one_line_and_not_scored(act, graded, tmp_path):
    message = MISTAKES[act].replace("RESULT", f"{RESULT} answer and a number")
    completion = act.replace("FILE", str(tmp_path / "file"))

    with refused(rf"^grader own_graders\.obedient {re.escape(message)}.*\(completion 2\)$"):
        list(graded.grade([("1", ""), (completion, "")]))

    assert not any(tmp_path.iterdir())


def test_it_may_read_literals_and_import_late(obedient):
    pairs = [("literal (1, 2)", "[1, 2]"), ("literal (1, 3)", "[1, 2]")]
    assert verdicts_on(obedient, pairs) == ["correct", "incorrect"]


PRINTING = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT)!r}]
from topr_exp.grading import Grader
with Grader("own_graders.obedient", workers=1, deadline=60.0) as grader:
    pairs = [(f"print {{i}} " + i % 2 * 100_000 * "x", "") for i in range(8)]
    verdicts = [outcome.verdict for outcome in grader.grade(pairs)]
print(*verdicts, grader._pool._server.pid)
"""


def print_in_workers(redirection):
    """The verdicts on completions whose grader prints, and the process id of its server."""
    script = f'exec 3>&1; "$0" -c "$1" {redirection}'
    words = ["bash", "-c", script, sys.executable, PRINTING]
    *verdicts, server = subprocess.run(words, capture_output=True, text=True).stdout.split()
    return verdicts, server


@pytest.mark.parametrize("redirection", ["2>>LOG", "2>&1 >&3 3>&- | cat >LOG"], ids=["file", "pipe"])
def test_it_may_print_wherever_standard_error_is(redirection, tmp_path):
    """A file is what it is in every run of a sweep, and a worker may write to none."""
    log = tmp_path / "log"

    verdicts, server = print_in_workers(redirection.replace("LOG", str(log)))

    assert verdicts == ["correct"] * 8
    wait_for(lambda: server not in map(session_of, Path("/proc").glob("[0-9]*/stat")))
    words = log.read_text().split()
    assert words.count("said") == 8
    assert words.count("wrote") == 8
    assert words.count("nobody") == 0


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&1 >&3 3>&- | true"], ids=["disk full", "reader gone"])
def test_what_it_prints_where_nothing_can_be_written_changes_no_verdict(redirection):
    verdicts, _ = print_in_workers(redirection)

    assert verdicts == ["correct"] * 8


def session_of(path):
    """The session of a process; "" where it is gone, or a zombie."""
    try:
        state, *numbers = path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else numbers[2]


@pytest.mark.parametrize("name", CASES["own"]["unknown_names"])
def test_an_unknown_name_is_refused_in_one_line(name):
    with refused("gsm8k, lenient, math, final, verdict or package.module.name", ConfigError):
        Grader(name)


def test_a_module_that_fails_while_it_is_imported_is_named_with_its_line(working_folder):
    (working_folder / "failing_grader.py").write_text("import json\nimport absent_thing\n")

    place = r"failing_grader\.py, line 2, raised ModuleNotFoundError: No module named 'absent_thing'"
    with refused(f"^grader failing_grader.grade cannot be loaded: {place}", ConfigError):
        Grader("failing_grader.grade")


# ---- the documents: a run with their loss, source and graded reward

CLOSENESS = ["data.grader={_target_: closeness.Closeness, word_cost: 0.001}", "data.reward=graded"]
LOSS_AND_SOURCE = ["--config-dir", "conf", "algo=soft_topr", "data=coins"]
OUTPUT = ["output_dir=out", "cluster.threads=1"]


@pytest.fixture
def folder(tmp_path):
    with project(tmp_path, LOSS, SOURCE, REWARD):
        solution = 'Coins.solution = lambda self, problem: f"The answer is {problem.answer}."\n'
        append_text(tmp_path / "coins.py", solution)
        yield tmp_path


@pytest.mark.extended
def test_a_run_with_all_three_and_an_evaluation(folder, capsys):
    config = config_of("experiment=smoke", *LOSS_AND_SOURCE, *CLOSENESS, *OUTPUT, "baseline=-1.5", "data.threshold=0.4")

    summary = run(config)

    header = capsys.readouterr().out
    assert "rewards as graded" in header
    assert "tested on   8 problems of coins from Coins" in header
    base = summary["base"]
    verdicts = Store(config.store).open(Path(base["verdicts"])).read().to_pandas()
    assert ((verdicts["verdict"] == "correct") == (verdicts["reward"] >= 0.4)).all()
    assert verdicts["reward"].nunique() > 3
    assert base["mean_reward"] == pytest.approx(verdicts["reward"].mean())
    assert f" {base['mean_reward']:.3g}\n" in (config.folder / "model/README.md").read_text()

    printed_words = shlex.split(header.splitlines()[-1])[3:]
    printed_words.remove("data.eval_n=64")
    words_without_grader = [word for word in printed_words if not word.startswith("data.grader.")]
    assert evaluate([*words_without_grader, *OUTPUT]) == 2
    assert "data.grader._target_=closeness.Closeness of the run that wrote the model" in capsys.readouterr().err
    assert evaluate([*printed_words, *OUTPUT]) == 0
    assert f"mean reward {summary['final']['mean_reward']:.3g} [" in capsys.readouterr().out

    append_text(folder / "coins.py", "# another source\n")
    with refused(r"data\._target_ \(coins\.py\) has changed since"):
        run(config)
