"""Solutions as questions for a verifier, and the figures of its verdicts."""

import numpy as np
import pytest

from tests.by_hand import letter_matrix, verdict_matrix
from tests.conftest import make_completions, read_json, values_of
from topr_exp.evaluation.intervals import clopper_pearson
from topr_exp.types import CORRECT, Problem
from topr_exp.verifier.figures import evaluation_table, run_table, summarise, tally_votes
from topr_exp.verifier.solutions import Verification, questions_about

PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1), level=i, subject="sums") for i in range(2)]


def make_solutions(problems, texts, verdicts, classes):
    """Graded solutions; verdicts, classes: [problems, solutions of each]."""
    solutions_of_each = len(verdicts[0])
    problem_index = np.repeat(np.arange(len(problems)), solutions_of_each)
    columns = {"text": texts, "verdict": np.ravel(verdicts), "class": np.ravel(classes)}
    return make_completions(problem_index, problems=problems, **columns)


# ---- questions


QUESTIONS = """
What is 0+1? | 1. | correct
What is 1+1? | 2. | correct
What is 0+1? | 2. | incorrect
What is 1+1? | 2. | correct
What is 0+1? | hm | incorrect
What is 1+1? | 9. | incorrect
"""


def test_every_solution_is_a_question_whose_answer_is_the_truth_about_it():
    solutions = make_solutions(
        PROBLEMS,
        [" 1.", " 2.", " hm", " 2.", " 2.", " 9."],
        verdict_matrix("CWX CCW"),
        letter_matrix("01- 001", "01"),
    )

    questions = questions_about(solutions, "{question} | {solution} |")

    lines = [f"{question.question} {question.answer}" for question in questions]
    assert lines == QUESTIONS.strip().splitlines()
    assert values_of(questions, "source") == ["p0", "p1"] * 3
    assert values_of(questions, "level") == [0, 1] * 3
    assert len(set(values_of(questions, "id"))) == 6


@pytest.mark.parametrize("text", ["{solution}", "{question}", "{0} {", "\\1 \\g<0>", "%s", "$\\frac{1}{2}$"])
def test_whatever_stands_in_a_question_or_a_solution_stays_as_it_is(text):
    problem = Problem("p", text, "", fields={"context": text, "solution": "the gold's"})
    solutions = make_solutions([problem], [text], [[CORRECT]], [[0]])

    (question,) = questions_about(solutions, "C {context} Q {question} S {solution} V")

    assert question.question == f"C {text} Q {text} S {text} V"


# ---- from verdicts to figures


SOLVED = verdict_matrix("CWX WWC")  # of two problems with three solutions each
CLASSES = letter_matrix("01- 110", "01")  # of their answers; 0 is right, -1 is none
# Of each problem two verdicts on each solution; -: its question was too long
BASE_VERDICTS = ("CX CW CC", "WX - CC")
SECOND_VERDICTS = ("CC CW CC", "WX WW CC")
FIGURES_OF_BASE = {
    "accuracy": 6 / 10,
    "invalid": 2 / 10,
    "accuracy_on_correct": 3 / 4,
    "accuracy_on_incorrect": 3 / 6,
    "balanced_accuracy": (3 / 4 + 3 / 6) / 2,
    # Votes for p0: 1 for the right answer (C of "CX"), 1 for the wrong one (W of "CW"); for p1: 2 and 1.
    "weighted_sc": (1 / 2 + 1) / 2,
    "maj": (1 / 2 + 0) / 2,
    "weighted_sc - maj": 3 / 4 - 1 / 4,
    "oracle": 1,
    "solved": 2 / 6,
}


def evaluate(verification, folder, iteration, verdicts):
    """Figures of two verdicts on each solution: C where the verifier is right."""
    questions, pairs = [], []
    for index, question in enumerate(questions_about(verification.test_solutions, "{question} {solution}")):
        solution_index, problem_index = divmod(index, 2)
        pair = verdicts[problem_index].split()[solution_index]
        if pair != "-":
            questions.append(question)
            pairs.append(pair)
    rows = np.repeat(np.arange(len(questions)), 2)
    completions = make_completions(rows, problems=questions, verdict=np.ravel(verdict_matrix(" ".join(pairs))))
    figures = verification.figures(folder, iteration, completions)["verifier"]
    return {name: figure["value"] for name, figure in figures.items() if isinstance(figure, dict)}


def test_the_figures_of_each_evaluation(tmp_path, capsys):
    verification = object.__new__(Verification)
    verification.test_solutions = make_solutions(PROBLEMS, list("abcdef"), SOLVED, CLASSES)
    verification.base_scores = None

    base = evaluate(verification, tmp_path, 0, BASE_VERDICTS)
    second = evaluate(verification, tmp_path, 1, SECOND_VERDICTS)

    for name, value in FIGURES_OF_BASE.items():
        assert base[name] == pytest.approx(value), name
    assert second["weighted_sc"] == pytest.approx(1 / 2)  # the wrong answer to p1 has 3 votes against 2
    assert second["weighted_sc - base"] == pytest.approx(1 / 2 - 3 / 4)
    recorded = read_json(tmp_path / "verification.json")
    assert recorded["problems"] == ["p0", "p1"]
    assert recorded["iterations"]["0"]["weighted_sc"] == [0.5, 1]
    assert recorded["iterations"]["1"]["weighted_sc"] == [1, 0]
    assert not capsys.readouterr().err
    (tmp_path / "verification.json").write_text("{")
    evaluate(verification, tmp_path, 2, BASE_VERDICTS)
    assert "verification.json is damaged: it holds no JSON object; what earlier evaluations" in capsys.readouterr().err


def test_an_interval_at_a_bound_is_over_the_problems_with_such_solutions():
    solved = verdict_matrix("CW WW WW")
    verdicts = np.full((3, 2, 2), CORRECT)

    figures = summarise(tally_votes(solved, np.zeros_like(solved), verdicts, np.full((3, 2), fill_value=True)))

    expected_cases = {"accuracy_on_correct": 1, "accuracy_on_incorrect": 3, "balanced_accuracy": 1}
    for name, cases in expected_cases.items():
        assert figures[name] == clopper_pearson(cases, cases).as_dict(), name


def test_solutions_of_which_none_was_verified_say_nothing():
    verdicts = np.full((2, 3, 2), CORRECT)
    is_verified = np.zeros((2, 3), dtype=bool)

    figures = summarise(tally_votes(SOLVED, CLASSES, verdicts, is_verified))

    assert figures["accuracy"] == {"value": None, "low": None, "high": None}
    assert figures["balanced_accuracy"]["value"] is None
    assert figures["weighted_sc"]["value"] == pytest.approx(1 / 2)  # all answers tie at 0


# ---- the table: every figure in its own row and column, every difference the right way round


NAMES = ("accuracy", "balanced_accuracy", "invalid", "weighted_sc", "maj", "oracle", "solved")


def numbered_figures(start, **changes):
    """Figures in percent that are all different, from `start` on, with ends 2 below and 3 above."""
    values = {name: start + index for index, name in enumerate(NAMES)} | changes
    figures = {"problems": 40, "solutions": 8, "verifications": 4}
    for name, value in values.items():
        figures[name] = {"value": value / 100, "low": (value - 2) / 100, "high": (value + 3) / 100}
    return figures


TABLE = """
% accuracy balanced invalid weighted SC
none (maj@8) – – – 14.0 [12.0, 17.0]
base 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]
trained 70.0 [68.0, 73.0] 71.0 [69.0, 74.0] 72.0 [70.0, 75.0] 73.0 [71.0, 76.0]
oracle (pass@8) – – – 15.0 [13.0, 18.0]
weighted SC, paired: trained - base 4.5 [2.5, 7.5]; trained - none 2.5 [0.5, 5.5]; base - none 1.5 [-0.5, 4.5]
[ ]: 95 %, bootstrap over 40 problems; 8 solutions each, 16.0 % of them correct; 4 verifications a solution
"""


def words_of(lines):
    """Lines whose words a single space parts."""
    return [" ".join(line.split()) for line in lines]


def test_the_table_of_a_verifier_has_each_figure_in_its_row_and_column():
    base = numbered_figures(10, **{"weighted_sc - maj": 1.5})
    differences = {"weighted_sc - maj": 2.5, "weighted_sc - base": 4.5}
    final = numbered_figures(70, **differences, maj=99.0, oracle=98.0)

    assert words_of(run_table(base, final)) == TABLE.strip().splitlines()
    lines = words_of(evaluation_table(base).splitlines())
    assert lines[2] == "model 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]"
    assert lines[4] == "weighted SC, paired: model - none 1.5 [-0.5, 4.5]"
