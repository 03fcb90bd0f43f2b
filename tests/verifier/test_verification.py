"""From a verifier's verdicts to its figures: each is counted for the solution that was read, whatever the order."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID
from topr_exp.types import VERDICTS, Problem
from topr_exp.verifier.solutions import Solutions, Verification

PROBLEMS, SOLUTIONS, N = 40, 5, 3


def made_up(seed: int) -> tuple[Solutions, dict[tuple[int, int], list[str]]]:
    """Solutions with answers, and what a verifier says of them: whether it is right, by problem and solution."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(-1, 3, (PROBLEMS, SOLUTIONS))
    verdicts = np.where(classes < 0, INVALID, np.where(classes == 0, CORRECT, INCORRECT))
    problems = [Problem(id=f"p{i}", question=f"Q{i}", answer="7") for i in range(PROBLEMS)]
    texts = [f"text {p} {s}" for p in range(PROBLEMS) for s in range(SOLUTIONS)]
    easy = rng.uniform(0.2, 0.9, PROBLEMS)
    said = {}
    for p in range(PROBLEMS):
        for s in range(SOLUTIONS):
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
    for p in range(PROBLEMS):
        votes: dict[int, Fraction] = {}
        heads: dict[int, int] = {}
        for s in range(SOLUTIONS):
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
        "weighted_sc": sum(weighted) / PROBLEMS,
        "maj": sum(plain) / PROBLEMS,
        "weighted_sc - maj": (sum(weighted) - sum(plain)) / PROBLEMS,
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
        mean = sum(noted["iterations"][str(iteration)]["weighted_sc"]) / PROBLEMS
        assert mean == pytest.approx(expected[iteration]["weighted_sc"])
