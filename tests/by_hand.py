"""Intervals, pass@K and maj@K in plain arithmetic, for tests that check those of the project."""

import math
from collections import Counter
from itertools import combinations
from statistics import fmean as mean
from statistics import variance

import numpy as np
import scipy.stats


def student(freedom):
    """The 97.5 % quantile of Student's t."""
    return float(scipy.stats.t.ppf(0.975, freedom))


def interval(values):
    """Mean, low and high: Student's 95 % interval of a mean."""
    half = student(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return mean(values), mean(values) - half, mean(values) + half


def mean_squares(table):
    """Of rows (seeds), of columns (problems) and of residuals: sums of squares by their degrees of freedom."""
    table = np.array(table, float)
    seeds, problems = table.shape
    rows, columns = table.mean(1), table.mean(0)
    residuals = table - rows[:, None] - columns + table.mean()
    of_residuals = (residuals**2).sum() / ((seeds - 1) * (problems - 1))
    return problems * rows.var(ddof=1), seeds * columns.var(ddof=1), of_residuals


def crossed_interval_of_shares(table):
    """Of the mean over seeds (rows) and problems (columns), both drawn from more.

    x_sp = m + a_s + b_p + e_sp: the variance of the mean is var(a) / S + var(b) / P + var(e) / (S P), each estimated
    from the mean squares of the two-way layout without replication; degrees of freedom by Satterthwaite (1946). Where
    seeds, or problems, differ by less than e explains, the means of the other are a sample like any.
    """
    seeds, problems = np.shape(table)
    of_seeds, of_problems, of_residuals = mean_squares(table)
    if of_seeds <= of_residuals < of_problems:
        return interval(np.mean(table, 0).tolist())
    if of_problems <= of_residuals < of_seeds:
        return interval(np.mean(table, 1).tolist())
    total, squares = of_residuals, of_residuals**2 / ((seeds - 1) * (problems - 1))
    if of_seeds > of_residuals:
        total = of_seeds + of_problems - of_residuals
        squares += of_seeds**2 / (seeds - 1) + of_problems**2 / (problems - 1)
    half = student(total**2 / squares) * math.sqrt(total / (seeds * problems))
    return np.mean(table), np.mean(table) - half, np.mean(table) + half


def crossed_interval(table):
    """Of a mean difference: the same, in which the spread over seeds always has only S - 1 degrees of freedom."""
    of_seeds, of_problems, of_residuals = mean_squares(table)
    total = max(of_seeds, of_residuals) + max(of_problems, of_residuals) - of_residuals
    half = student(cautious_freedom(table)) * math.sqrt(total / np.size(table))
    return np.mean(table), np.mean(table) - half, np.mean(table) + half


def cautious_freedom(table):
    """Satterthwaite's degrees of freedom of the same, in which the spread over seeds always has only S − 1."""
    seeds, problems = np.shape(table)
    of_seeds, of_problems, of_residuals = mean_squares(table)
    total = max(of_seeds, of_residuals)
    squares = total**2 / (seeds - 1)
    if of_problems > of_residuals * (1 + 1e-9):
        total += of_problems - of_residuals
        squares += of_problems**2 / (problems - 1) + of_residuals**2 / ((seeds - 1) * (problems - 1))
    return total**2 / squares


# ---- pass@K and maj@K by listing every set of K, of evaluations from a known distribution

CORRECT, INCORRECT, INVALID = range(3)


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
    tied = [answer for answer, count in counts.items() if count == max(counts.values())]
    return mean(right[answer] / counts[answer] for answer in tied) if tied else 0.0


def maj_at_k(verdicts, answers, k):
    return mean(majority(votes) for votes in combinations(zip(verdicts, answers, strict=True), k))
