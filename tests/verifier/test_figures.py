"""A verifier's figures: counted by hand, with intervals that take a problem's solutions together."""

from __future__ import annotations

import numpy as np
import pytest

from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID
from topr_exp.evaluation.statistics import summarise as summarise_evaluation
from topr_exp.verifier.figures import summarise, tally

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
