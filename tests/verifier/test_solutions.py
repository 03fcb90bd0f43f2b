"""Solutions as questions for a verifier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from topr_exp.data.problems import ProblemSets
from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID
from topr_exp.types import Problem
from topr_exp.verifier.solutions import Solutions, Verification

PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1), level=i, subject="sums") for i in range(2)]
SOLUTIONS = Solutions(
    PROBLEMS,
    [" 1.", " 2.", " hm", " 2.", " 2.", " 9."],
    np.array([[CORRECT, INCORRECT, INVALID], [CORRECT, CORRECT, INCORRECT]]),
    np.array([[0, 1, -1], [0, 0, 1]]),
    0,
)


def test_every_solution_is_a_question_whose_answer_is_the_truth_about_it() -> None:
    questions = SOLUTIONS.questions("{question} | {solution} |")
    assert [one.question for one in questions] == [
        "What is 0+1? | 1. |", "What is 1+1? | 2. |",
        "What is 0+1? | 2. |", "What is 1+1? | 2. |",
        "What is 0+1? | hm |", "What is 1+1? | 9. |",
    ]  # fmt: skip
    assert [one.answer for one in questions] == ["correct", "correct", "incorrect", "correct", "incorrect", "incorrect"]
    assert [one.source for one in questions] == ["p0", "p1"] * 3
    assert [one.level for one in questions] == [0, 1] * 3
    assert len({one.id for one in questions}) == 6


@pytest.mark.parametrize("text", ["{solution}", "{question}", "{0} {", "\\1 \\g<0>", "%s", "$\\frac{1}{2}$"])
def test_whatever_stands_in_a_question_or_a_solution_stays_as_it_is(text: str) -> None:
    asked = Solutions([Problem("p", text, "")], [text], np.array([[CORRECT]]), np.array([[0]]), 0)
    assert asked.questions("Q {question} S {solution} V")[0].question == f"Q {text} S {text} V"


def test_training_and_test_have_solutions_of_their_own() -> None:
    """Each with its number and its seed, and a verifier is asked of the test's; without training problems of none."""
    asked = []

    def solve(problems: Any, n: int, seed: int) -> Any:
        asked.append(([problem.id for problem in problems], n, seed))
        return SimpleNamespace(sampled=10 * n, questions=lambda template: [f"{template} {one.id}" for one in problems])

    task: Any = SimpleNamespace(solutions=2, test_solutions=3, template="T", chat=False)
    for train in (PROBLEMS[:1], []):
        asked.clear()
        sets: Any = ProblemSets(train, PROBLEMS[1:], *[SimpleNamespace()] * 2)  # type: ignore[arg-type]
        made = Verification(task, solve, sets, seed=7, test_seed=8)
        assert sorted(asked) == [*([(["p0"], 2, 7)] if train else []), (["p1"], 3, 8)]
        assert (made.sets.train, made.sets.test) == ([f"T {one.id}" for one in train], ["T p1"])
        assert made.sampled == 10 * (3 + (2 if train else 0))
