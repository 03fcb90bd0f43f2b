"""A verifier's figures, with intervals that take a problem's solutions together, and the table that a run prints."""

from typing import Any

import numpy as np
import pytest

from topr_exp.evaluation.statistics import CORRECT, INCORRECT, INVALID
from topr_exp.evaluation.statistics import summarise as summarise_evaluation
from topr_exp.verifier.figures import evaluation_table, run_table, summarise, tally

C, W, X = CORRECT, INCORRECT, INVALID

# Two problems, three solutions each, two verifications of a solution.
SOLVED = np.array([[C, W, X], [W, W, W]])
CLASSES = np.array([[0, 1, -1], [0, 0, 1]])
VERDICTS = np.array([[[C, X], [C, W], [C, C]], [[W, W], [C, C], [X, C]]])  # of the verifications: right, wrong, none


def test_solutions_of_which_none_was_verified_say_nothing():
    found = summarise(tally(SOLVED, CLASSES, VERDICTS, np.zeros((2, 3), dtype=bool)))
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
    sources = [f"p{i}" for i in range(50) for _ in range(6)]
    together = summarise_evaluation(flat, classes, sources=sources)
    alone = summarise_evaluation(flat, classes)
    assert together["pass@1"] == alone["pass@1"] == pytest.approx(ours["value"])
    assert together["pass@k"]["1"]["low"] == pytest.approx(ours["low"], abs=0.01)
    assert together["pass@k"]["1"]["high"] == pytest.approx(ours["high"], abs=0.01)
    assert together["pass@1_se"] > 1.5 * alone["pass@1_se"]
    spread = right.reshape(50, 24).mean(axis=1).std(ddof=1) / np.sqrt(50)
    assert together["pass@1_se"] == pytest.approx(spread)


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
