"""The figures of an evaluation: whose verdicts are summarised, and of which problems."""

import json

import numpy as np
import pyarrow as pa

from tests.by_hand import letter_matrix, verdict_matrix
from tests.conftest import column, make_completions
from topr_exp.evaluation.statistics import mean_reward
from topr_exp.evaluation.summary import summarise_evaluation
from topr_exp.types import Problem

# Of each problem four completions: their verdicts and the classes of their answers.
VERDICTS = verdict_matrix("CCWW WWCX XXXC WWWW")
CLASSES = letter_matrix("0012 001- ---0 0123", "0123")
PROBLEMS = [  # id, question, answer, level, subject and source
    Problem("a", "?", "1", 1, "sums", "x"),
    Problem("b", "?", "1", 2, "sums", "x"),
    Problem("c", "?", "1", 1, "words", "y"),
    Problem("d", "?", "1", 3, None, "y"),
]


def graded(path="string"):
    """Completions of PROBLEMS that were decided in this way; the last of every two problems is cut off."""
    return make_completions(
        np.repeat(np.arange(4), 4),
        problems=PROBLEMS,
        tokens=[[1, 1, 1]] * 16,
        finish=(["stop"] * 7 + ["length"]) * 2,
        verdict=np.ravel(VERDICTS),
        path=[path] * 16,
        **{"class": np.ravel(CLASSES)},
    )


FIGURES = """{
    "problems": 4, "sources": 2, "samples": 4, "correct": 0.25, "incorrect": 0.5, "invalid": 0.25,
    "pass@1": 0.25, "maj@4": 0.5, "correct_histogram": [1, 2, 1, 0, 0]
}"""


def test_the_figures_are_those_of_the_problems_in_their_order():
    figures = summarise_evaluation(graded())

    levels = figures["levels"]
    subjects = figures["subjects"]
    assert figures.items() >= json.loads(FIGURES).items()
    assert figures["pass@k"]["1"] == {"value": 1 / 4, "low": 1 / 8, "high": 3 / 8}, "sources are resampled as wholes"
    assert list(levels) == ["1", "2", "3"]
    assert column(levels.values(), "pass@1") == [3 / 8, 1 / 4, 0]
    assert list(subjects) == ["sums", "words"]
    assert column(subjects.values(), "maj@4") == [0.5, 1.0]


def test_the_figures_of_the_first_problems_are_those_of_no_others():
    figures = summarise_evaluation(graded("timeout"), 2)

    assert figures.items() >= {"problems": 2, "pass@1": 3 / 8, "maj@4": 0.5}.items()
    assert figures["levels"].keys() == {"1", "2"}
    assert figures["grader_timeouts"] == 8
    assert figures["truncated_share"] == 1 / 8
    assert summarise_evaluation(graded(), 1)["truncated_share"] == 0


def test_graded_rewards_have_a_mean_over_problems_and_what_they_were_made_from():
    rewards = np.random.default_rng(0).normal(size=16)

    figures = summarise_evaluation(graded().with_columns({"reward": pa.array(rewards)}), 3)

    assert figures.items() >= mean_reward(rewards.reshape(4, 4)[:3], ["x", "x", "y"]).items()


def test_there_is_no_majority_where_incorrect_answers_cannot_be_told_apart():
    completions = graded("user")
    unnamed_classes = pa.array(np.where(completions.is_correct, 0, -1), pa.int32())

    figures = summarise_evaluation(completions)
    figures_without = summarise_evaluation(completions.with_columns({"class": unnamed_classes}))

    assert figures.keys() - figures_without.keys() == {"maj@4"}
    assert figures_without["maj@k"] == {}
    assert figures_without["levels"]["1"].keys() == figures["levels"]["1"].keys() - {"maj@4"}
