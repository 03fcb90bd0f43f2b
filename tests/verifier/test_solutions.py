"""Solutions as questions for a verifier, and the figures of its verdicts."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_completions, make_graded
from topr_exp.data.problems import ProblemSets
from topr_exp.evaluation.statistics import summarise as summarise_evaluation
from topr_exp.sampling.completions import Completions
from topr_exp.types import CORRECT, INCORRECT, INVALID, VERDICTS, Problem
from topr_exp.verifier.figures import evaluation_table, run_table, summarise, tally
from topr_exp.verifier.solutions import Verification, questions_about

PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1), level=i, subject="sums") for i in range(2)]


def solved(problems: list[Problem], texts: list[str], verdicts: Any, classes: Any) -> Any:
    """Graded solutions; verdicts, classes: [problems, solutions of each]."""
    verdicts, classes = np.asarray(verdicts), np.asarray(classes)
    columns = {"text": texts, "verdict": verdicts.ravel(), "class": classes.ravel()}
    return make_completions(np.repeat(np.arange(len(problems)), verdicts.shape[1]), problems=problems, **columns)


SOLUTIONS = solved(
    PROBLEMS,
    [" 1.", " 2.", " hm", " 2.", " 2.", " 9."],
    [[CORRECT, INCORRECT, INVALID], [CORRECT, CORRECT, INCORRECT]],
    [[0, 1, -1], [0, 0, 1]],
)


def test_every_solution_is_a_question_whose_answer_is_the_truth_about_it() -> None:
    questions = questions_about(SOLUTIONS, "{question} | {solution} |")
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
    solution = solved([Problem("p", text, "")], [text], [[CORRECT]], [[0]])
    assert questions_about(solution, "Q {question} S {solution} V")[0].question == f"Q {text} S {text} V"


def test_training_and_test_have_solutions_of_their_own() -> None:
    """Each with its number and its seed, and a verifier is asked of the test's; without training problems of none."""
    asked = []

    def solve(problems: Any, n: int, seed: int) -> Any:
        asked.append(([problem.id for problem in problems], n, seed))
        rows = np.repeat(np.arange(len(problems)), n)
        solutions = make_graded(rows, rows < 0, problems=problems, text=["."] * len(rows), name="rollouts/r")
        return replace(solutions, stored=replace(solutions.stored, tokens_sampled=10 * n))

    task: Any = SimpleNamespace(solutions=2, test_solutions=3, template="T {question}{solution}", chat=False)
    for train in (PROBLEMS[:1], []):
        asked.clear()
        sets: Any = ProblemSets(train, PROBLEMS[1:], *[SimpleNamespace()] * 2)  # type: ignore[arg-type]
        made = Verification(task, solve, sets, seed=7, test_seed=8)
        assert sorted(asked) == [*([(["p0"], 2, 7)] if train else []), (["p1"], 3, 8)]
        questions = [[question.question for question in part] for part in (made.sets.train, made.sets.test)]
        assert questions == [[f"T {one.question}." for one in train] * 2, [f"T {PROBLEMS[1].question}."] * 3]
        assert made.tokens_sampled == 10 * (3 + (2 if train else 0))


# ---- from verdicts to figures: each is counted for the solution that was read, whatever the order


P, K, N = 40, 5, 3


def made_up(seed: int) -> tuple[Any, dict[tuple[int, int], list[str]]]:
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
    return solved(problems, texts, verdicts, classes), said


def evaluation(solutions: Completions, said: dict[tuple[int, int], list[str]], left_out: int) -> Any:
    """The questions as a verifier is asked them, less a few that were too long."""
    asked = questions_about(solutions, "{question} {solution}")
    asked = [each for i, each in enumerate(asked) if i % 17 != left_out]
    words = [word for each in asked for word in said[place(each.question)]]
    verdicts = [VERDICTS.index(word) for word in words]
    return make_completions(np.repeat(np.arange(len(asked)), N), problems=asked, verdict=verdicts)


def place(question: str) -> tuple[int, int]:
    """Problem and solution from what was asked: "Q3 text 3 1"."""
    _, _, p, s = question.split()
    return int(p), int(s)


def verification(solutions: Completions) -> Verification:
    made = object.__new__(Verification)
    made.test_solutions, made.base_tally = solutions, None
    return made


def by_hand(solutions: Completions, said: dict[tuple[int, int], list[str]], left_out: int) -> dict[str, Any]:
    """Every figure by counting one verdict after the other."""
    asked = {place(each.question) for i, each in enumerate(questions_about(solutions, "{question} {solution}"))
             if i % 17 != left_out}  # fmt: skip
    count: dict[str, int] = dict.fromkeys(("all", "right", "invalid", "good", "right good", "bad", "right bad"), 0)
    weighted, plain = [], []
    verdicts, classes = (values.reshape(P, K) for values in (solutions.verdicts, solutions.answer_classes))
    for p in range(P):
        votes: dict[int, Fraction] = {}
        heads: dict[int, int] = {}
        for s in range(K):
            good = verdicts[p, s] == CORRECT
            words = said[p, s] if (p, s) in asked else []
            count["all"] += len(words)
            count["right"] += words.count("correct")
            count["invalid"] += words.count("invalid")
            kind = "good" if good else "bad"
            count[kind] += len(words)
            count[f"right {kind}"] += words.count("correct")
            approves = words.count("correct" if good else "incorrect")
            answer = int(classes[p, s])
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
        "oracle": (verdicts == CORRECT).any(axis=1).mean(),
        "solved": (verdicts == CORRECT).mean(),
    }


def test_the_figures_of_each_evaluation(tmp_path: Path) -> None:
    """The base, then a later one of other verdicts, of which other questions were too long."""
    solutions, said = made_up(0)
    _, later = made_up(1)
    task, expected = verification(solutions), []
    for iteration, (words, left_out) in enumerate(((said, 3), (later, 5))):
        expected.append(by_hand(solutions, words, left_out))
        found = task.figures(tmp_path, iteration, evaluation(solutions, words, left_out))["verifier"]
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


# ---- figures


C, W, X = CORRECT, INCORRECT, INVALID

# Two problems, three solutions each, two verifications of a solution.
SOLVED = np.array([[C, W, X], [W, W, W]])
CLASSES = np.array([[0, 1, -1], [0, 0, 1]])
SAID = np.array([[[C, X], [C, W], [C, C]], [[W, W], [C, C], [X, C]]])  # of the verifications: right, wrong, none


def test_solutions_of_which_none_was_verified_say_nothing():
    found = summarise(tally(SOLVED, CLASSES, SAID, np.zeros((2, 3), dtype=bool)))
    assert found["accuracy"] == {"value": None, "low": None, "high": None}
    assert found["balanced_accuracy"]["value"] is None
    assert found["weighted_sc"]["value"] == pytest.approx(1 / 4)  # both answers tie at 0


def test_the_accuracy_of_an_evaluation_has_the_same_interval_when_its_problems_have_sources():
    rng = np.random.default_rng(2)
    easy = rng.random((50, 1)) < 0.5
    right = rng.random((50, 6, 4)) < np.where(easy, 0.9, 0.2)[:, :, None]
    codes = np.where(right, C, W)
    solved = np.where(rng.random((50, 6)) < 0.5, C, W)
    ours = summarise(tally(solved, solved, codes, np.ones((50, 6), dtype=bool)))["accuracy"]
    flat, classes = codes.reshape(300, 4), (codes.reshape(300, 4) == C).astype(int)
    asked = [Problem(f"p{i}/{s}", "Q", "A", source=f"p{i}") for i in range(50) for s in range(6)]
    together = summarise_evaluation(flat, classes, asked)
    alone = summarise_evaluation(flat, classes)
    assert together["pass@1"] == alone["pass@1"] == pytest.approx(ours["value"])
    assert together["pass@k"]["1"]["low"] == pytest.approx(ours["low"], abs=0.01)
    assert together["pass@k"]["1"]["high"] == pytest.approx(ours["high"], abs=0.01)
    (wide, narrow) = (found["pass@k"]["1"]["high"] - found["pass@k"]["1"]["low"] for found in (together, alone))
    assert wide > 1.5 * narrow
    assert wide == pytest.approx(2 * 1.96 * right.reshape(50, 24).mean(axis=1).std(ddof=1) / np.sqrt(50), rel=0.1)


# ---- the table: every figure in its own row and column, every difference the right way round


NAMES = ("accuracy", "balanced_accuracy", "invalid", "weighted_sc", "maj", "oracle", "solved")


def figures(start: float, **more: float) -> dict[str, Any]:
    """Figures in percent that are all different, from `start` on, with ends 2 below and 3 above."""
    values = {name: start + i for i, name in enumerate(NAMES)} | more
    sizes = {"problems": 40, "solutions": 8, "verifications": 4}
    return sizes | {
        name: {"value": value / 100, "low": (value - 2) / 100, "high": (value + 3) / 100}
        for name, value in values.items()
    }


def lines(table: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in table]


def test_tables() -> None:
    base = figures(10, **{"weighted_sc - maj": 1.5})
    final = figures(70, **{"weighted_sc - maj": 2.5, "weighted_sc - base": 4.5, "maj": 99.0, "oracle": 98.0})
    assert lines(run_table(base, final)) == [
        "% accuracy balanced invalid weighted SC",
        "none (maj@8) – – – 14.0 [12.0, 17.0]",
        "base 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]",
        "trained 70.0 [68.0, 73.0] 71.0 [69.0, 74.0] 72.0 [70.0, 75.0] 73.0 [71.0, 76.0]",
        "oracle (pass@8) – – – 15.0 [13.0, 18.0]",
        "weighted SC, paired: trained - base 4.5 [2.5, 7.5]; trained - none 2.5 [0.5, 5.5]; "
        "base - none 1.5 [-0.5, 4.5]",
        "[ ]: 95 %, bootstrap over 40 problems; 8 solutions each, 16.0 % of them correct; 4 verifications a solution",
    ]
    found = lines(evaluation_table(base).splitlines())
    assert found[2] == "model 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]"
    assert found[4] == "weighted SC, paired: model - none 1.5 [-0.5, 4.5]"
