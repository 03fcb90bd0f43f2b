"""Intervals, pass@K and maj@K in plain arithmetic, for tests that check those of the project."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import scipy.stats


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t."""
    return float(scipy.stats.t.ppf(0.975, freedom))


def mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def spread(values: Sequence[float]) -> float:
    """The variance of a sample."""
    return sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, low and high: Student's 95 % interval of a mean."""
    half = student(len(values) - 1) * math.sqrt(spread(values) / len(values))
    return mean(values), mean(values) - half, mean(values) + half


def means_of(table: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The means of the rows and of the columns."""
    return [mean(row) for row in table], [mean(column) for column in zip(*table, strict=True)]


def mean_squares(table: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Of rows (seeds), of columns (problems) and of the rest: sums of squares by their degrees of freedom."""
    seeds, problems = len(table), len(table[0])
    rows, columns = means_of(table)
    errors = [table[s][p] - rows[s] - columns[p] + mean(rows) for s in range(seeds) for p in range(problems)]
    of_rest = sum(error**2 for error in errors) / ((seeds - 1) * (problems - 1))
    return problems * spread(rows), seeds * spread(columns), of_rest


def crossed_interval_of_shares(table: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Of the mean over seeds (rows) and problems (columns), both drawn from more.

    x_sp = m + a_s + b_p + e_sp: the variance of the mean is var(a) / S + var(b) / P + var(e) / (S P), each estimated
    from the mean squares of the two-way layout without replication; degrees of freedom by Satterthwaite (1946). Where
    seeds, or problems, differ by less than e explains, the means of the other are a sample like any.
    """
    seeds, problems = len(table), len(table[0])
    rows, columns = means_of(table)
    whole = mean(rows)
    of_seeds, of_problems, of_rest = mean_squares(table)
    if of_seeds <= of_rest < of_problems:
        return interval(columns)
    if of_problems <= of_rest < of_seeds:
        return interval(rows)
    squares = [(of_rest, (seeds - 1) * (problems - 1))]
    variance = of_rest / (seeds * problems)
    if of_seeds > of_rest:
        variance += (of_seeds - of_rest) / problems / seeds + (of_problems - of_rest) / seeds / problems
        squares += [(of_seeds, seeds - 1), (of_problems, problems - 1)]
    freedom = (variance * seeds * problems) ** 2 / sum(square**2 / count for square, count in squares)
    half = student(freedom) * math.sqrt(variance)
    return whole, whole - half, whole + half


def crossed_interval(table: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Of a mean difference: the same, in which the spread over seeds always has only S - 1 degrees of freedom."""
    seeds, problems = len(table), len(table[0])
    whole = mean(means_of(table)[0])
    of_seeds, of_problems, of_rest = mean_squares(table)
    variance = (max(of_seeds, of_rest) + max(of_problems, of_rest) - of_rest) / (seeds * problems)
    half = student(cautious_freedom(table)) * math.sqrt(variance)
    return whole, whole - half, whole + half


def cautious_freedom(table: Sequence[Sequence[float]]) -> float:
    """Satterthwaite's degrees of freedom of the same, in which the spread over seeds always has only S − 1."""
    seeds, problems = len(table), len(table[0])
    of_seeds, of_problems, of_rest = mean_squares(table)
    of_seeds = max(of_seeds, of_rest)
    variance, parts = of_seeds, of_seeds**2 / (seeds - 1)
    if of_problems > of_rest * (1 + 1e-9):
        variance += of_problems - of_rest
        parts += of_problems**2 / (problems - 1) + of_rest**2 / ((seeds - 1) * (problems - 1))
    return variance**2 / parts


# ---- pass@K and maj@K by listing every set of K, of evaluations from a known distribution

CORRECT, INCORRECT, INVALID = range(3)


def evaluation(rng, problems, n, wrong_answers=4, invalid=0.15, easy=None):
    """Verdicts and classes [problems, n]; class 0 is the gold answer; `easy` [problems, 1] the chance to be right."""
    easy = rng.beta(0.8, 1.2, size=(problems, 1)) if easy is None else easy
    right = rng.random((problems, n)) < easy
    lost = ~right & (rng.random((problems, n)) < invalid)
    classes = np.where(right, 0, rng.integers(1, 1 + wrong_answers, size=(problems, n)))
    verdicts = np.where(right, CORRECT, np.where(lost, INVALID, INCORRECT)).astype(np.int8)
    return verdicts, np.where(lost, -1, classes)


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
