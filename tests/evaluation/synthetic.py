"""Evaluations drawn from a known distribution."""

from __future__ import annotations

import numpy as np

from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID


def evaluation(rng, problems, n, wrong_answers=4, invalid=0.15, easy=None):
    """Verdicts and classes [problems, n]; class 0 is the gold answer; `easy` [problems, 1] the chance to be right."""
    easy = rng.beta(0.8, 1.2, size=(problems, 1)) if easy is None else easy
    right = rng.random((problems, n)) < easy
    lost = ~right & (rng.random((problems, n)) < invalid)
    classes = np.where(right, 0, rng.integers(1, 1 + wrong_answers, size=(problems, n)))
    verdicts = np.where(right, CORRECT, np.where(lost, INVALID, INCORRECT)).astype(np.int8)
    return verdicts, np.where(lost, -1, classes)
