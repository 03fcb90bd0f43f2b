"""Verdicts in the store: what decides them is in their key, each completion has those of its own problem."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from topr_exp.config.data import Grading
from topr_exp.grading import verdicts
from topr_exp.grading.verdicts import Verdicts, grade_rollouts, warn_of_failures
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store
from topr_exp.types import Problem

GOLDS = ("5", "7", "x = 9", "(1, 2)")
SAID = ("5", "The answer is 5.", "The answer is 7.", "The answer is 9.", "The answer is (1, 2).", "The answer is 5.0.")
PROBLEMS = [Problem(f"p{i}", "?", gold) for i, gold in enumerate(GOLDS)]


def rollouts(name: str = "rollouts/a") -> Rollouts:
    """What stands in SAID, of each problem; a shard has one and a half of them."""
    rows = len(PROBLEMS) * len(SAID)
    columns = pa.table(
        {
            "text": pa.array([*SAID] * len(PROBLEMS)),
            "problem": pa.array(np.repeat(np.arange(len(PROBLEMS)), len(SAID)), pa.int32()),
        }
    )
    return Rollouts(name, columns, [np.zeros(1, np.int32)] * len(PROBLEMS), [0, 9, 18, rows], 0)


def test_each_completion_is_graded_against_its_own_problem_s_gold(tmp_path: Path) -> None:
    found = grade_rollouts(rollouts(), PROBLEMS, Grading("gsm8k"), Store(tmp_path))
    right = {0: (1, 5), 1: (2,), 2: (3,), 3: (4,)}
    expected = [
        "invalid" if i == 0 else "correct" if i in right[problem] else "incorrect"
        for problem in range(len(PROBLEMS))
        for i in range(len(SAID))
    ]
    assert found.verdict.tolist() == expected
    assert found.positive.tolist() == [verdict == "correct" for verdict in expected], "nothing invalid is a positive"
    classes = found.classes.reshape(len(PROBLEMS), -1)
    assert (classes[:, 0] == -1).all()
    # Equal answers are one class wherever a shard ends, and no other answer is with them.
    assert (classes[[0, 2, 3], 1] == classes[[0, 2, 3], 5]).all()
    assert all(len({*row[1:5].tolist()}) == 4 for row in classes[[0, 2, 3]])


def test_classes_count_from_0_within_each_problem(tmp_path: Path) -> None:
    """Also where a problem has one completion; what has no answer has no class."""
    texts = ["The answer is 5.", "5", "The answer is 9.", "The answer is 8."]
    columns = pa.table({"text": pa.array(texts), "problem": pa.array([0, 1, 2, 2], pa.int32())})
    one = Rollouts("rollouts/one", columns, [np.zeros(1, np.int32)] * len(PROBLEMS), [0, 4], 0)
    assert grade_rollouts(one, PROBLEMS, Grading("gsm8k"), Store(tmp_path)).classes.tolist() == [0, -1, 0, 1]


def test_rewards_lie_with_the_verdicts_and_change_nothing_where_they_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    said, store = ("number", "whole", "died", "with verdict", "of a library"), Store(tmp_path)
    columns = pa.table({"text": pa.array(said), "problem": pa.array([0, 0, 0, 1, 1], pa.int32())})
    asked = Rollouts("rollouts/a", columns, [np.zeros(1, np.int32)] * 2, [0, 3, 5], 0), PROBLEMS[:2]
    name = "own_graders:closeness"
    two_valued, graded, low = (
        grade_rollouts(*asked, each, store)
        for each in (Grading(name), Grading(name, graded=True), Grading(name, graded=True, threshold=0.5))
    )
    assert two_valued.reward is None
    assert two_valued.columns.column_names == ["verdict", "answer", "path", "class"]
    assert store.open(tmp_path / two_valued.name).key.keys() == {"rollouts", "grader", "golds", "version"}
    for found in (graded, low):
        assert found.reward is not None
        assert found.reward.tolist() == [0.5, 1.0, -3.0, -3.0, 0.25], "what was cut off is worth the least"
    assert graded.verdict.tolist() == ["incorrect", "correct", "incorrect", "invalid", "incorrect"]
    assert low.verdict.tolist() == ["correct", "correct", "incorrect", "invalid", "incorrect"]
    assert two_valued.verdict.tolist() == graded.verdict.tolist()
    assert len({two_valued.name, graded.name, low.name}) == 3
    kept = Verdicts("", graded.columns.filter(pa.array([True, True, True, False, False])))
    assert kept.reward is not None
    assert kept.reward.tolist() == [0.5, 1.0, 0.0], "where all numbers are above 0 it is worth 0"


def test_what_decides_the_verdicts_is_in_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something else is asked, nothing that lies there is taken for the answer."""
    asked: dict[str, Any] = {"rollouts": rollouts(), "problems": PROBLEMS, "grading": Grading("gsm8k")}
    other_gold = [*PROBLEMS[:-1], dataclasses.replace(PROBLEMS[-1], answer="(2, 1)")]
    others = {"final": Grading("final"), "threshold": Grading("gsm8k", threshold=0.5)}
    changes = (
        {},
        {"rollouts": rollouts("rollouts/b")},
        {"problems": other_gold},
        *({"grading": each} for each in others.values()),
    )
    found = [grade_rollouts(**asked | change, store=Store(tmp_path)) for change in changes]
    monkeypatch.setattr(verdicts, "version", lambda name: "another")
    found.append(grade_rollouts(**asked, store=Store(tmp_path)))
    assert len({each.name for each in found}) == len(changes) + 1
    assert found[2].verdict[-2] == "incorrect"
    assert set(found[3].verdict) == {"invalid"}


@pytest.mark.parametrize(("verdict", "known"), [("incorrect", False), ("correct", True), ("invalid", True)])
def test_votes_are_known_unless_an_incorrect_completion_has_no_answer(verdict: str, known: bool) -> None:
    columns = {"verdict": ["correct", verdict], "answer": ["5", None], "path": ["user"] * 2}
    assert Verdicts("", pa.table({**columns, "class": pa.array([0, -1], pa.int32())})).votes_known == known


def decided(*paths: str) -> Verdicts:
    rows = {"verdict": ["incorrect"] * len(paths), "answer": ["1"] * len(paths), "path": list(paths)}
    return Verdicts("name", pa.table(rows | {"class": pa.array([0] * len(paths), pa.int32())}))


def test_errors_of_the_comparison_and_comparisons_that_were_cut_off_are_told(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_failures(decided("raised", "timeout", "died", "string", "raised"), "math", "; try again")
    assert [record.getMessage() for record in caplog.records] == [
        "warning: grader math was cut off twice (its time, its memory, or by another program) on 2 of 5 completions, "
        "which count as incorrect; try again",
        "warning: grader math failed with an error on 2 of 5 completions, which count as incorrect",
    ]
    caplog.clear()
    warn_of_failures(decided("string", "none"), "math")
    assert not caplog.records
