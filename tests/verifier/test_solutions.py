"""Solutions as questions for a verifier."""

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from topr_exp.data.problems import ProblemSets
from topr_exp.evaluation.statistics import CORRECT, INCORRECT, INVALID
from topr_exp.types import VERDICTS, Problem
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


# ---- from verdicts to figures: each is counted for the solution that was read, whatever the order


P, K, N = 40, 5, 3


def made_up(seed: int) -> tuple[Solutions, dict[tuple[int, int], list[str]]]:
    """Solutions with answers, and what a verifier says of them: whether it is right, by problem and solution."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(-1, 3, (P, K))
    verdicts = np.where(classes < 0, INVALID, np.where(classes == 0, CORRECT, INCORRECT))
    problems = [Problem(id=f"p{i}", question=f"Q{i}", answer="7") for i in range(P)]
    texts = [f"text {p} {s}" for p in range(P) for s in range(K)]
    easy = rng.uniform(0.2, 0.9, P)
    said = {}
    for p in range(P):
        for s in range(K):
            draws = rng.random((N, 2))
            said[p, s] = ["invalid" if a < 0.15 else "correct" if b < easy[p] else "incorrect" for a, b in draws]
    return Solutions(problems, texts, verdicts, classes, 0), said


def evaluation(solutions: Solutions, said: dict[tuple[int, int], list[str]], left_out: int) -> Any:
    """The questions as a verifier is asked them, less a few that were too long."""
    asked = solutions.questions("{question} {solution}")
    asked = [each for i, each in enumerate(asked) if i % 17 != left_out]
    words = [word for each in asked for word in said[place(each.question)]]
    verdicts = SimpleNamespace(codes=np.array([VERDICTS.index(word) for word in words]))
    return SimpleNamespace(questions=SimpleNamespace(problems=asked), verdicts=verdicts, n=N)


def place(question: str) -> tuple[int, int]:
    """Problem and solution from what was asked: "Q3 text 3 1"."""
    _, _, p, s = question.split()
    return int(p), int(s)


def verification(solutions: Solutions) -> Verification:
    made = object.__new__(Verification)
    made.test, made.base = solutions, None
    return made


def by_hand(solutions: Solutions, said: dict[tuple[int, int], list[str]], left_out: int) -> dict[str, Any]:
    """Every figure by counting one verdict after the other."""
    asked = {place(each.question) for i, each in enumerate(solutions.questions("{question} {solution}"))
             if i % 17 != left_out}  # fmt: skip
    count: dict[str, int] = dict.fromkeys(("all", "right", "invalid", "good", "right good", "bad", "right bad"), 0)
    weighted, plain = [], []
    for p in range(P):
        votes: dict[int, Fraction] = {}
        heads: dict[int, int] = {}
        for s in range(K):
            good = solutions.verdicts[p, s] == CORRECT
            words = said[p, s] if (p, s) in asked else []
            count["all"] += len(words)
            count["right"] += words.count("correct")
            count["invalid"] += words.count("invalid")
            kind = "good" if good else "bad"
            count[kind] += len(words)
            count[f"right {kind}"] += words.count("correct")
            approves = words.count("correct" if good else "incorrect")
            answer = int(solutions.classes[p, s])
            if answer >= 0:
                votes[answer] = votes.get(answer, Fraction(0)) + approves
                heads[answer] = heads.get(answer, 0) + 1
        for found, tallied in ((weighted, votes), (plain, heads)):
            first = [answer for answer, each in tallied.items() if each == max(tallied.values())]
            found.append((0 in first) / len(first) if first else 0.0)  # 0 is the right answer
    of_good, of_bad = count["right good"] / count["good"], count["right bad"] / count["bad"]
    return {
        "accuracy": count["right"] / count["all"],
        "invalid": count["invalid"] / count["all"],
        "accuracy_on_correct": of_good,
        "accuracy_on_incorrect": of_bad,
        "balanced_accuracy": (of_good + of_bad) / 2,
        "weighted_sc": sum(weighted) / P,
        "maj": sum(plain) / P,
        "weighted_sc - maj": (sum(weighted) - sum(plain)) / P,
        "oracle": (solutions.verdicts == CORRECT).any(axis=1).mean(),
        "solved": (solutions.verdicts == CORRECT).mean(),
    }


def test_the_figures_of_each_evaluation(tmp_path: Path) -> None:
    """The base, then a later one of other verdicts, of which other questions were too long."""
    solutions, said = made_up(0)
    _, later = made_up(1)
    task, expected = verification(solutions), []
    for iteration, (words, left_out) in enumerate(((said, 3), (later, 5))):
        expected.append(by_hand(solutions, words, left_out))
        found = task.tested(tmp_path, iteration, evaluation(solutions, words, left_out))["verifier"]
        for name, value in expected[-1].items():
            assert found[name]["value"] == pytest.approx(value), (iteration, name)
    change = expected[1]["weighted_sc"] - expected[0]["weighted_sc"]
    assert abs(change) > 0.02
    assert found["weighted_sc - base"]["value"] == pytest.approx(change)
    noted = json.loads((tmp_path / "verification.json").read_text())
    assert noted["problems"] == [problem.id for problem in solutions.problems]
    for iteration in (0, 1):
        mean = sum(noted["iterations"][str(iteration)]["weighted_sc"]) / P
        assert mean == pytest.approx(expected[iteration]["weighted_sc"])
