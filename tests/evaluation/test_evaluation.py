"""An evaluation hands its parts over: which problems, seed and number are asked, whose verdicts are summarised."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from topr_exp.data.prompts import TokenizedProblems
from topr_exp.evaluation.evaluation import Evaluation
from topr_exp.grading.verdicts import Verdicts
from topr_exp.store import Store
from topr_exp.store.shards import Ragged
from topr_exp.types import Problem

# Of each problem four completions: their verdicts and the classes of their answers.
SAID = {
    "a": (["correct", "correct", "incorrect", "incorrect"], [0, 0, 1, 2]),
    "b": (["incorrect", "incorrect", "correct", "invalid"], [0, 0, 1, -1]),
    "c": (["invalid", "invalid", "invalid", "correct"], [-1, -1, -1, 0]),
    "d": (["incorrect"] * 4, [0, 1, 2, 3]),
}
LEVELS, SUBJECTS, SOURCES = (1, 2, 1, 3), ("sums", "sums", "words", None), ("x", "x", "y", "y")
PROBLEMS = [Problem(name, "?", "1", *more) for name, *more in zip(SAID, LEVELS, SUBJECTS, SOURCES, strict=True)]
QUESTIONS = TokenizedProblems(PROBLEMS, [np.array([0, i], np.int32) for i in range(len(SAID))], (), 0)


def evaluation(path: str = "string", store: Store | None = None) -> Evaluation:
    verdict = [word for words, _ in SAID.values() for word in words]
    classes = [number for _, numbers in SAID.values() for number in numbers]
    columns = pa.table({"verdict": verdict, "class": pa.array(classes, pa.int32()), "path": [path] * len(verdict)})
    tokens = Ragged(
        pa.chunked_array([pa.array([[1] * (3 + i % 4) for i in range(len(verdict))], pa.list_(pa.int32()))])
    )
    rollouts: Any = SimpleNamespace(name="rollouts/r", tokens=tokens)
    return Evaluation(QUESTIONS, rollouts, Verdicts("verdicts/v", columns), 4, store or Store("nowhere"))


def test_the_figures_are_those_of_the_problems_in_their_order() -> None:
    figures = evaluation().figures()
    assert (figures["problems"], figures["samples"]) == (4, 4)
    assert evaluation().places() == {"rollouts": "nowhere/rollouts/r", "verdicts": "nowhere/verdicts/v"}
    assert figures["pass@1"] == pytest.approx(np.mean([2, 1, 1, 0]) / 4)
    assert figures["maj@4"] == pytest.approx(np.mean([1, 0, 1, 0]))
    assert (figures["correct"], figures["incorrect"], figures["invalid"]) == (4 / 16, 8 / 16, 4 / 16)
    assert figures["correct_histogram"] == [1, 2, 1, 0, 0]
    by_level = {name: (part["pass@1"], part["problems"]) for name, part in figures["levels"].items()}
    assert by_level == {"1": (3 / 8, 2), "2": (1 / 4, 1), "3": (0.0, 1)}
    assert {name: part["maj@4"] for name, part in figures["subjects"].items()} == {"sums": 0.5, "words": 1.0}
    shares = {name: (part["correct"], part["incorrect"], part["invalid"]) for name, part in figures["levels"].items()}
    assert shares == {"1": (3 / 8, 2 / 8, 3 / 8), "2": (1 / 4, 2 / 4, 1 / 4), "3": (0.0, 1.0, 0.0)}
    assert figures["subjects"]["words"]["pass@1_se"] is None, "a single case, whichever of the sources it is"


def test_the_figures_of_the_first_problems_are_those_of_no_others() -> None:
    figures = evaluation().figures(2)
    assert (figures["problems"], figures["pass@1"], figures["maj@4"]) == (2, 3 / 8, 0.5)
    assert figures["levels"].keys() == {"1", "2"}


def test_problems_of_one_source_are_one_case() -> None:
    """Means 1/2, 1/4 | 1/4, 0 of two sources: their sums differ by 1/2, that of single problems by less."""
    means = np.array([2, 1, 1, 0]) / 4
    of_sources = np.array([means[:2].sum(), means[2:].sum()])
    expected = np.sqrt(2 * ((of_sources - of_sources.mean()) ** 2).sum()) / len(means)
    assert evaluation().figures()["pass@1_se"] == pytest.approx(expected)


def test_no_majority_where_incorrect_answers_cannot_be_told_apart() -> None:
    told = evaluation("user")
    columns = told.verdicts.columns
    known = [0 if word == "correct" else -1 for word in columns["verdict"].to_pylist()]
    columns = columns.set_column(columns.column_names.index("class"), "class", pa.array(known, pa.int32()))
    figures, left = told.figures(), Evaluation(QUESTIONS, told.rollouts, Verdicts("", columns), 4, told.store).figures()
    assert figures.keys() - left.keys() == {"maj@4", "maj@4_se"}
    assert left["maj@k"] == {}
    assert left["levels"]["1"].keys() == figures["levels"]["1"].keys() - {"maj@4", "maj@4_se"}
