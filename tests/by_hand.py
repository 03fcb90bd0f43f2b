"""Intervals, pass@K and maj@K in plain arithmetic, for tests that check those of the project."""

import math
from collections import Counter
from itertools import combinations
from statistics import fmean as mean
from statistics import variance
from typing import NamedTuple

import numpy as np
import scipy.stats


def student(freedom):
    """The 97.5 % quantile of Student's t."""
    return float(scipy.stats.t.ppf(0.975, freedom))


def interval(values):
    """Mean, low and high: Student's 95 % interval of a mean."""
    standard_error = math.sqrt(variance(values) / len(values))
    return around(mean(values), standard_error, len(values) - 1)


def around(center, standard_error, freedom):
    half = student(freedom) * standard_error
    return center, center - half, center + half


class MeanSquares(NamedTuple):
    """Sums of squares by their degrees of freedom."""

    seeds: float  # rows
    problems: float  # columns
    residuals: float


def mean_squares(table):
    table = np.array(table, float)
    seeds, problems = table.shape
    rows = table.mean(1)
    columns = table.mean(0)
    residuals = table - rows[:, None] - columns + table.mean()
    residual_freedom = (seeds - 1) * (problems - 1)
    return MeanSquares(
        problems * rows.var(ddof=1), seeds * columns.var(ddof=1), (residuals**2).sum() / residual_freedom
    )


def crossed_interval_of_shares(table):
    """Of the mean over seeds (rows) and problems (columns), both drawn from more.

    x_sp = m + a_s + b_p + e_sp: the variance of the mean is var(a) / S + var(b) / P + var(e) / (S P), each estimated
    from the mean squares of the two-way layout without replication; degrees of freedom by Satterthwaite (1946). Where
    seeds, or problems, differ by less than e explains, the means of the other are a sample like any.
    """
    seeds, problems = np.shape(table)
    squares = mean_squares(table)
    if squares.seeds <= squares.residuals < squares.problems:
        return interval(np.mean(table, 0).tolist())
    if squares.problems <= squares.residuals < squares.seeds:
        return interval(np.mean(table, 1).tolist())
    total = squares.residuals
    uncertainty = squares.residuals**2 / ((seeds - 1) * (problems - 1))
    if squares.seeds > squares.residuals:
        total = squares.seeds + squares.problems - squares.residuals
        uncertainty += squares.seeds**2 / (seeds - 1) + squares.problems**2 / (problems - 1)
    standard_error = math.sqrt(total / (seeds * problems))
    return around(np.mean(table), standard_error, total**2 / uncertainty)


def crossed_interval(table):
    """Of a mean difference: the same, in which the spread over seeds always has only S - 1 degrees of freedom."""
    squares = mean_squares(table)
    of_seeds = max(squares.seeds, squares.residuals)
    of_problems = max(squares.problems, squares.residuals)
    standard_error = math.sqrt((of_seeds + of_problems - squares.residuals) / np.size(table))
    return around(np.mean(table), standard_error, cautious_freedom(table))


def cautious_freedom(table):
    """Satterthwaite's degrees of freedom of the same, in which the spread over seeds always has only S − 1."""
    seeds, problems = np.shape(table)
    squares = mean_squares(table)
    total = max(squares.seeds, squares.residuals)
    uncertainty = total**2 / (seeds - 1)
    if squares.problems > squares.residuals * (1 + 1e-9):
        total += squares.problems - squares.residuals
        residual_freedom = (seeds - 1) * (problems - 1)
        uncertainty += squares.problems**2 / (problems - 1) + squares.residuals**2 / residual_freedom
    return total**2 / uncertainty


# ---- pass@K and maj@K by listing every set of K, of evaluations from a known distribution

CORRECT, INCORRECT, INVALID = range(3)


def letter_matrix(text, letters):
    """A row for each word of a text: the places of its characters among the letters, -1 for any other character."""
    rows = [list(map(letters.find, word)) for word in text.split()]
    return np.array(rows)


def verdict_matrix(text):
    """Codes of verdicts: C is correct, W incorrect, X invalid."""
    return letter_matrix(text, "CWX")


def evaluation(rng, problems, n, easy=None):
    """Verdicts and classes [problems, n]; class 0 is the gold answer; `easy` [problems, 1] the chance to be right."""
    if easy is None:
        easy = rng.beta(0.8, 1.2, size=(problems, 1))
    is_right = rng.random((problems, n)) < easy
    is_invalid = ~is_right & (rng.random((problems, n)) < 0.15)
    classes = np.where(is_right, 0, rng.integers(1, 5, size=(problems, n)))
    verdicts = np.where(is_right, CORRECT, INCORRECT)
    verdicts[is_invalid] = INVALID
    classes[is_invalid] = -1
    return verdicts.astype(np.int8), classes


def pass_at_k(verdicts, k):
    return mean(CORRECT in subset for subset in combinations(verdicts, k))


def majority(votes):
    """Expected score of one vote; votes: (verdict, answer) of each completion."""
    counts = Counter(answer for verdict, answer in votes if verdict != INVALID)
    right = Counter(answer for verdict, answer in votes if verdict == CORRECT)
    if not counts:
        return 0.0
    most_votes = max(counts.values())
    return mean(right[answer] / count for answer, count in counts.items() if count == most_votes)


def maj_at_k(verdicts, answers, k):
    votes = zip(verdicts, answers, strict=True)
    return mean(majority(subset) for subset in combinations(votes, k))
