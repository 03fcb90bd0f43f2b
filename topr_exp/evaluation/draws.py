"""Verdicts and votes: pass@K in closed form, maj@K by the paper's bootstrap (TOPR, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.types import VERDICTS

TRIALS = 100  # as in the paper


def maj_at(voting: Ballots, ks: list[int], rng: np.random.Generator, trials: int = TRIALS) -> NDArray[np.float64]:
    """[K's, P] maj@K of each problem: its mean over draws of K of the n completions without replacement.

    A trial shuffles each problem's completions once and takes the first K for every K: each is a uniform draw of K, and
    the curve over K is smooth.

    ks: ascending, each from 1 to n.
    """
    n, (problems, width) = voting.candidate.shape[1], voting.worth.shape
    assert ks == sorted(set(ks)), ks
    assert 1 <= ks[0] <= ks[-1] <= n, ks
    found = np.zeros((len(ks), problems))
    for _ in range(trials):
        shuffled = rng.permuted(voting.candidate, axis=1)
        votes = np.zeros((problems, width), dtype=np.int64)
        for i, (start, stop) in enumerate(zip([0, *ks], ks, strict=False)):
            votes += count_votes(shuffled[:, start:stop], width)
            found[i] += majority_score(votes, voting.worth)
    return found / trials


CORRECT, INCORRECT, INVALID = range(len(VERDICTS))  # the codes, in the order of VERDICTS


def shares(verdicts: NDArray[np.integer]) -> dict[str, float]:
    """The share of each verdict among all completions; verdicts: codes of any shape."""
    counts = np.bincount(verdicts.ravel(), minlength=len(VERDICTS))
    return {name: float(count / verdicts.size) for name, count in zip(VERDICTS, counts, strict=True)}


def correct_histogram(verdicts: NDArray[np.integer]) -> list[int]:
    """The number of problems with 0, 1, ... n correct completions (TOPR, Figure 4); verdicts: [P, n]."""
    return np.bincount((verdicts == CORRECT).sum(axis=1), minlength=verdicts.shape[1] + 1).tolist()


@dataclass(frozen=True, slots=True)
class Ballots:
    """The n completions of P problems as votes."""

    candidate: NDArray[np.int64]  # [P, n] the class of the answer voted for; -1 has no vote
    worth: NDArray[np.float64]  # [P, C] share of an answer's completions graded correct: 0 or 1 for a consistent grader


def ballots(verdicts: NDArray[np.integer], classes: NDArray[np.integer]) -> Ballots:
    """The votes of completions with these verdicts and answers.

    verdicts: [P, n] codes of `verdicts`.
    classes: [P, n] the answers' equivalence classes, small numbers, negative without an answer.
    """
    assert verdicts.shape == classes.shape, (verdicts.shape, classes.shape)
    candidate = np.where(verdicts != INVALID, np.maximum(classes, -1), -1).astype(np.int64)
    width = max(int(candidate.max(initial=-1)) + 1, 1)
    good = count_votes(np.where(verdicts == CORRECT, candidate, -1), width)
    return Ballots(candidate, good / np.maximum(count_votes(candidate, width), 1))


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


def powers_of_two(n: int) -> list[int]:
    """The K that are reported for n completions a problem: 1, 2, 4, ... up to n."""
    assert n >= 1, n
    return [1 << i for i in range(n.bit_length())]


def pass_at_k(correct: NDArray[np.integer], n: int, k: int) -> NDArray[np.float64]:
    """The unbiased estimate of pass@K of each problem, in closed form.

    1 - C(n - c, K) / C(n, K) = 1 - prod_{i = n-c+1}^{n} (1 - K/i)   (Chen et al. 2021, arXiv 2107.03374, Eq. 1):
    the mean over all K-subsets of the n completions. As a product of factors below 1 it cannot overflow.

    correct: [P] correct completions of each problem, 0 to n.
    n, k: completions of each problem, and K with 1 <= K <= n.
    """
    assert 1 <= k <= n, (k, n)
    # One entry for each possible count; the factor is 0 at i = K, and so is the product from there on.
    factors = 1 - k / np.arange(n, 0, -1)
    return 1 - np.concatenate([[1.0], np.cumprod(factors)])[correct]
