"""Intervals written out in plain arithmetic, for tests that check those of the project."""

import math
from collections.abc import Sequence

import scipy.stats


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t."""
    return float(scipy.stats.t.ppf(0.975, freedom))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(values: Sequence[float]) -> float:
    """The variance of a sample."""
    return sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, low and high: Student's 95 % interval of a mean."""
    half = student(len(values) - 1) * math.sqrt(spread(values) / len(values))
    return mean(values), mean(values) - half, mean(values) + half


def crossed_interval(table: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Of the mean over seeds (rows) and problems (columns), both drawn from more.

    x_sp = m + a_s + b_p + e_sp: the variance of the mean is var(a) / S + var(b) / P + var(e) / (S P), each estimated
    from the mean squares of the two-way layout without replication; degrees of freedom by Satterthwaite (1946). Where
    seeds, or problems, differ by less than e explains, the means of the other are a sample like any.
    """
    seeds, problems = len(table), len(table[0])
    rows, columns = [mean(row) for row in table], [mean([row[p] for row in table]) for p in range(problems)]
    whole = mean(rows)
    errors = [table[s][p] - rows[s] - columns[p] + whole for s in range(seeds) for p in range(problems)]
    of_rest = sum(error**2 for error in errors) / ((seeds - 1) * (problems - 1))
    of_seeds, of_problems = problems * spread(rows), seeds * spread(columns)
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
