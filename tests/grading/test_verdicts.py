"""Verdicts in the store: what decides them is in their key, each completion has those of its own problem; pruning."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import config_of, make_completions, overrides
from topr_exp.config.data import Grading
from topr_exp.grading import verdicts
from topr_exp.grading.verdicts import (
    grade_by_log,
    grade_completions,
    votes_are_known,
    warn_of_failures,
    warn_of_invalid,
)
from topr_exp.pipeline import run
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store
from topr_exp.store.__main__ import main
from topr_exp.store.shards import write_shard
from topr_exp.types import VERDICTS, Problem

GOLDS = ("5", "7", "x = 9", "(1, 2)")
SAID = ("5", "The answer is 5.", "The answer is 7.", "The answer is 9.", "The answer is (1, 2).", "The answer is 5.0.")
PROBLEMS = [Problem(f"p{i}", f"{i}?", gold) for i, gold in enumerate(GOLDS)]


def rollouts(texts: list[str], problem: list[int], bounds: list[int], name: str = "rollouts/a") -> Completions:
    return make_completions(problem, [[0]] * len(PROBLEMS), name, bounds, text=texts, problems=PROBLEMS)


def all_said(name: str = "rollouts/a") -> Completions:
    """SAID as completions of each problem; a shard has one and a half of them."""
    problem = np.repeat(np.arange(len(PROBLEMS)), len(SAID)).tolist()
    return rollouts([*SAID] * len(PROBLEMS), problem, [0, 9, 18, len(problem)], name)


def named(found: Completions) -> list[str]:
    return [VERDICTS[code] for code in found.verdicts]


def test_each_completion_is_graded_against_its_own_problem_s_gold(tmp_path: Path) -> None:
    found = grade_completions(all_said(), Grading("gsm8k"), Store(tmp_path))
    right = {0: (1, 5), 1: (2,), 2: (3,), 3: (4,)}
    places = [(problem, i) for problem in range(len(PROBLEMS)) for i in range(len(SAID))]
    expected = ["invalid" if i == 0 else "correct" if i in right[problem] else "incorrect" for problem, i in places]
    assert named(found) == expected
    assert found.is_correct.tolist() == [verdict == "correct" for verdict in expected], "nothing invalid is a positive"
    classes = found.answer_classes.reshape(len(PROBLEMS), -1)
    assert (classes[:, 0] == -1).all()
    # Equal answers are one class wherever a shard ends, and no other answer is with them.
    assert (classes[[0, 2, 3], 1] == classes[[0, 2, 3], 5]).all()
    assert all(len({*row[1:5].tolist()}) == 4 for row in classes[[0, 2, 3]])


def test_classes_count_from_0_within_each_problem(tmp_path: Path) -> None:
    """Also where a problem has one completion; what has no answer has no class."""
    one = rollouts(["The answer is 5.", "5", "The answer is 9.", "The answer is 8."], [0, 1, 2, 2], [0, 4])
    assert grade_completions(one, Grading("gsm8k"), Store(tmp_path)).answer_classes.tolist() == [0, -1, 0, 1]


def test_rewards_lie_with_the_verdicts_and_change_nothing_where_they_are_not_asked_for(tmp_path: Path) -> None:
    said, store = ["0.5", "1", "die", '["invalid", null, -3]', "library"], Store(tmp_path)
    asked, name = rollouts(said, [0, 0, 0, 1, 1], [0, 3, 5]), "own_graders.obedient"
    ways = [Grading(name), Grading(name, graded=True), Grading(name, graded=True, threshold=0.5)]
    two_valued, graded, low = (grade_completions(asked, each, store) for each in ways)
    assert two_valued.reward is None
    assert two_valued.stored is not None
    assert store.open(tmp_path / two_valued.stored.verdicts).read().column_names == [
        "verdict",
        "answer",
        "path",
        "class",
    ]
    assert store.open(tmp_path / two_valued.stored.verdicts).key.keys() == {"rollouts", "grader", "golds", "version"}
    for found in (graded, low):
        assert found.reward is not None
        assert found.reward.tolist() == [0.5, 1.0, -3.0, -3.0, 0.25], "what was cut off is worth the least"
    assert named(graded) == ["incorrect", "correct", "incorrect", "invalid", "incorrect"]
    assert named(low) == ["correct", "correct", "incorrect", "invalid", "incorrect"]
    assert named(two_valued) == named(graded)
    assert len({found.stored.verdicts for found in (two_valued, graded, low)}) == 3
    kept = graded.first_rows(3)
    assert kept.reward is not None
    assert kept.reward.tolist() == [0.5, 1.0, 0.0], "where all numbers are above 0 it is worth 0"


def test_what_decides_the_verdicts_is_in_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something else is asked, nothing that lies there is taken for the answer."""
    asked: dict[str, Any] = {"completions": all_said(), "grading": Grading("gsm8k")}
    other_golds = [*PROBLEMS[:-1], dataclasses.replace(PROBLEMS[-1], answer="(2, 1)")]
    changes: list[dict[str, Any]] = [
        {},
        {"completions": all_said("rollouts/b")},
        {"completions": dataclasses.replace(all_said(), problems=other_golds)},
        {"grading": Grading("final")},
        {"grading": Grading("gsm8k", threshold=0.5)},
    ]
    found = [grade_completions(**asked | change, store=Store(tmp_path)) for change in changes]
    monkeypatch.setattr(verdicts, "version", lambda name: "another")
    found.append(grade_completions(**asked, store=Store(tmp_path)))
    assert len({each.stored.verdicts for each in found}) == len(changes) + 1
    assert named(found[2])[-2] == "incorrect"
    assert set(named(found[3])) == {"invalid"}


def test_the_rewards_of_a_log_are_judged_from_the_threshold_that_is_asked_for(tmp_path: Path) -> None:
    said = rollouts(["x", "y", "z"], [0, 0, 0], [0, 3]).with_columns({"reward": pa.array([0.0, 0.5, 1.0])})
    found = [named(grade_by_log(said, threshold, Store(tmp_path))) for threshold in (0.5, 1.0)]
    assert found == [["incorrect", "correct", "correct"], ["incorrect", "incorrect", "correct"]]


def decided(verdict: str, *paths: str, classes: tuple[int, ...] = ()) -> Completions:
    count = len(paths)
    columns = {"verdict": [VERDICTS.index(verdict)] * count, "answer": ["1"] * count, "path": list(paths)}
    return make_completions([0] * count, **columns, **{"class": classes or [0] * count})


@pytest.mark.parametrize(("verdict", "known"), [("incorrect", False), ("correct", True), ("invalid", True)])
def test_votes_are_known_unless_an_incorrect_completion_has_no_answer(verdict: str, known: bool) -> None:
    assert votes_are_known(decided(verdict, "user", "user", classes=(0, -1))) == known


def test_errors_of_the_comparison_and_comparisons_that_were_cut_off_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn_of_failures(decided("incorrect", "raised", "timeout", "died", "string", "raised"), "math", "; try again")
    assert capsys.readouterr().err.splitlines() == [
        "warning: grader math was cut off twice (its time, its memory, or by another program) on 2 of 5 completions, "
        "which count as incorrect; try again",
        "warning: grader math failed with an error on 2 of 5 completions, which count as incorrect",
    ]
    warn_of_failures(decided("incorrect", "string", "none"), "math")
    assert not capsys.readouterr().err


INVALID = ("so \\boxed{5}", "The answer is", "<think> 5", "5 " * 60 + "\x1b[2J")


@pytest.mark.parametrize(("correct", "warned"), [(3, True), (4, False)])
def test_where_more_than_half_is_invalid_three_are_shown_with_the_reason(correct, warned, tmp_path, capsys):
    texts = [*INVALID, *["The answer is 5."] * correct]
    grade_completions(rollouts(texts, [0] * len(texts), [0, len(texts)]), Grading("gsm8k"), Store(tmp_path))
    shown = [line for line in capsys.readouterr().err.splitlines() if "completions/s" not in line]
    expected = [
        "warning: grader gsm8k finds no answer in 4 of 7 completions (data.grader=lenient also reads \\boxed{12}, "
        "#### 12, Answer: 12 and a last number), such as",
        "  it has no \"The answer is\": 'so \\\\boxed{5}'",
        "  nothing that can be read follows \"The answer is\": 'The answer is'",
        "  its thought does not end: '<think> 5'",
    ]
    assert shown == (expected if warned else [])


def test_an_invalid_completion_is_shown_by_its_end_without_control_characters_and_with_its_truncation(capsys):
    columns = {"text": INVALID[-1:], "finish": ["length"], "verdict": [VERDICTS.index("invalid")]}
    warn_of_invalid(make_completions([0], **columns, path=["none"]), "math")
    warn_of_invalid(make_completions([0], **columns, path=["user"]), "own:grade")
    assert capsys.readouterr().err.splitlines() == [
        "warning: grader math finds no answer in 1 of 1 completions, such as",
        r"  it has no \boxed{...}, and the token limit cut it off: ...'" + (" 5" * 60)[-95:] + r" \x1b[2J'",
        "warning: grader own:grade finds no answer in 1 of 1 completions, such as",
        "  the grader calls it invalid, and the token limit cut it off: ...'" + (" 5" * 60)[-95:] + r" \x1b[2J'",
    ]


def test_a_run_says_what_was_cut_off_and_a_later_one_grades_it_once_they_are_pruned(smoke, tmp_path, capsys):
    shutil.copytree(smoke[0].output_dir, tmp_path, dirs_exist_ok=True)
    first = smoke[1]
    assert [part["grader_timeouts"] for part in (first, first["base"], first["final"])] == [0, 0, 0]
    config = config_of(*overrides(tmp_path, "name=second"))
    store, base = Store(config.store), Path(first["base"]["verdicts"]).name
    for table in map(store.open, (config.store / "verdicts").iterdir()):
        columns = table.shard(0).to_pydict()  # some rows as a worker that was killed leaves them
        for row in (0, 1, 2) if table.folder.name == base else (3,):
            columns["verdict"][row], columns["path"][row], columns["class"][row] = "incorrect", "died", -1
        write_shard(table.shard_file(0), pa.table(columns, schema=table.shard(0).schema))
    capsys.readouterr()
    second = run(config)
    assert [part["grader_timeouts"] for part in (second, second["base"], second["final"])] == [1, 3, 0]
    said = capsys.readouterr()
    assert "note: the grader was cut off twice on 4 completions, which count as incorrect" in said.out
    commands = re.findall(r"python -m topr_exp\.store (--root \S+ prune --yes --key verdicts/\w+)", said.err)
    assert len(commands) == 2
    assert [main(command.split()) for command in commands] == [0, 0]
    third = run(config_of(*overrides(tmp_path, "name=third")))
    assert third["grader_timeouts"] == 0
    for name in ("base", "final"):
        assert third[name]["pass@k"] == first[name]["pass@k"]
