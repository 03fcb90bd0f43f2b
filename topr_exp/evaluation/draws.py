"""The paper's bootstrap: pass@K and maj@K of K completions drawn from the n of each problem (TOPR, section 4.2).

Its standard error leaves out the choice of the problems, which dominates: it is labelled "sampling only (paper)", and
intervals over problems (`intervals`) are what a claim needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.majority import Ballots, count_votes, majority_score

TRIALS = 100  # as in the paper


@dataclass(frozen=True, slots=True)
class Draws:
    """The trials' results for each K of `ks`."""

    ks: list[int]
    pass_trials: NDArray[np.float64]  # [K's, trials] mean over problems
    maj_trials: NDArray[np.float64]  # [K's, trials] mean over problems
    maj_problems: NDArray[np.float64]  # [K's, P] mean over trials


def draw(
    correct: NDArray[np.bool_], voting: Ballots, ks: list[int], rng: np.random.Generator, trials: int = TRIALS
) -> Draws:
    """Draw K of the n completions of every problem without replacement, `trials` times for each K.

    A trial shuffles each problem's completions once and takes the first K for every K: each is a uniform draw of K,
    pass@K and maj@K come from the same draw, and the curves over K are smooth.

    correct: [P, n]. ks: ascending, each from 1 to n.
    """
    problems, n = correct.shape
    assert voting.candidate.shape == (problems, n)
    assert ks == sorted(set(ks)), ks
    assert 1 <= ks[0] <= ks[-1] <= n, ks
    width = voting.worth.shape[1]
    code = 2 * (voting.candidate + 1) + correct  # one number a completion, so that one shuffle moves all of it
    pass_trials = np.empty((len(ks), trials))
    maj_trials = np.empty((len(ks), trials))
    maj_problems = np.zeros((len(ks), problems))
    for trial in range(trials):
        shuffled = rng.permuted(code, axis=1)
        votes = np.zeros((problems, width), dtype=np.int64)
        solved = np.zeros(problems, dtype=bool)
        for i, (start, stop) in enumerate(zip([0, *ks], ks, strict=False)):
            block = shuffled[:, start:stop]
            votes += count_votes(block // 2 - 1, width)
            solved |= (block % 2 == 1).any(axis=1)
            score = majority_score(votes, voting.worth)
            pass_trials[i, trial] = solved.mean()
            maj_trials[i, trial] = score.mean()
            maj_problems[i] += score
    return Draws(ks, pass_trials, maj_trials, maj_problems / trials)


def sampling_only_se(trials: NDArray[np.float64], k: int, n: int) -> float | None:
    """The paper's standard error sqrt(K V / (n - K)), V the variance over trials; None above K = n/2.

    Trials of K out of n overlap; the factor makes up for that, and does so only where K is small beside n.
    """
    if 2 * k > n:
        return None
    return math.sqrt(k * float(trials.var(ddof=1)) / (n - k))
