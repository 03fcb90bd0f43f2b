"""maj@K: whether the most frequent answer among K completions of a problem is correct (self-consistency).

Equivalent answers count as one, invalid answers never vote, ties are split evenly in expectation, and K completions
without any answer score 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.verdicts import CORRECT, INVALID


@dataclass(frozen=True, slots=True)
class Ballots:
    """The n completions of P problems as votes."""

    candidate: NDArray[np.int64]  # [P, n] the answer voted for, numbered from 0 in each problem; -1 has no vote
    worth: NDArray[np.float64]  # [P, C] share of an answer's completions graded correct: 0 or 1 for a consistent grader


def ballots(verdicts: NDArray[np.integer], classes: NDArray[np.integer]) -> Ballots:
    """The votes of completions with these verdicts and answers.

    verdicts: [P, n] codes of `verdicts`.
    classes: [P, n] the answers' equivalence classes, any integers, negative without an answer.
    """
    assert verdicts.shape == classes.shape, (verdicts.shape, classes.shape)
    problems, n = classes.shape
    votes = (verdicts != INVALID) & (classes >= 0)
    # Non-voters sort first; a step between neighbours in sorted order starts a new answer.
    masked = np.where(votes, classes, -1)
    order = np.argsort(masked, axis=1, kind="stable")
    ordered = np.take_along_axis(masked, order, axis=1)
    step = np.diff(ordered, axis=1, prepend=-1) > 0
    candidate = np.empty((problems, n), dtype=np.int64)
    np.put_along_axis(candidate, order, np.cumsum(step, axis=1) - 1, axis=1)
    width = max(int(candidate.max(initial=-1)) + 1, 1)
    size = count_votes(candidate, width)
    good = count_votes(np.where(verdicts == CORRECT, candidate, -1), width)
    return Ballots(candidate, good / np.maximum(size, 1))


def count_votes(candidate: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """[P, width] votes for each of the answers 0..width-1; candidate: [P, k], -1 has no vote."""
    problems = len(candidate)
    slot = candidate + 1 + (width + 1) * np.arange(problems)[:, None]
    return np.bincount(slot.ravel(), minlength=problems * (width + 1)).reshape(problems, width + 1)[:, 1:]


def majority_score(votes: NDArray[np.int64], worth: NDArray[np.float64]) -> NDArray[np.float64]:
    """The expected score of each problem's majority vote: the mean worth of the answers tied for the most votes.

    votes, worth: [P, C]; without any vote the score is 0.
    """
    top = votes.max(axis=1, keepdims=True)
    leads = (votes == top) & (top > 0)
    return (leads * worth).sum(axis=1) / np.maximum(leads.sum(axis=1), 1)
