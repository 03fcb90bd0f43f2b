"""pass@K and maj@K by listing every set of K completions: slow, and written without the package's code."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

CORRECT, INVALID = 0, 2


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
    right = {answer for verdict, answer in votes if verdict == CORRECT}
    return mean(answer in right for answer in tied)


def maj_at_k(verdicts, answers, k):
    return mean(majority(drawn) for drawn in combinations(zip(verdicts, answers, strict=True), k))
