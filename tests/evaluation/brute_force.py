"""Evaluations from a known distribution; pass@K and maj@K by listing every set of K, without the package."""

from collections import Counter
from itertools import combinations

import numpy as np

CORRECT, INCORRECT, INVALID = range(3)


def evaluation(rng, problems, n, wrong_answers=4, invalid=0.15, easy=None):
    """Verdicts and classes [problems, n]; class 0 is the gold answer; `easy` [problems, 1] the chance to be right."""
    easy = rng.beta(0.8, 1.2, size=(problems, 1)) if easy is None else easy
    right = rng.random((problems, n)) < easy
    lost = ~right & (rng.random((problems, n)) < invalid)
    classes = np.where(right, 0, rng.integers(1, 1 + wrong_answers, size=(problems, n)))
    verdicts = np.where(right, CORRECT, np.where(lost, INVALID, INCORRECT)).astype(np.int8)
    return verdicts, np.where(lost, -1, classes)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def pass_at_k(verdicts, k):
    return mean(any(v == CORRECT for v in drawn) for drawn in combinations(verdicts, k))


def majority(votes):
    """Expected score of one vote; votes: (verdict, answer) of each completion."""
    cast = Counter(answer for verdict, answer in votes if verdict != INVALID)
    if not cast:
        return 0.0
    tied = [answer for answer, count in cast.items() if count == max(cast.values())]
    good = Counter(answer for verdict, answer in votes if verdict == CORRECT)
    return mean(good[answer] / cast[answer] for answer in tied)


def maj_at_k(verdicts, answers, k):
    return mean(majority(drawn) for drawn in combinations(zip(verdicts, answers, strict=True), k))
