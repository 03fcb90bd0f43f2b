"""How far a mean over test problems can be trusted: intervals over problems, and paired differences of two runs.

The problems are taken as a sample of those that could have been asked. What differs between training seeds is not in
these intervals, and where every problem scores the same (all 0, say) they have no width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # drawn indices held at once


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over problems with its uncertainty; with a single problem the latter is None."""

    value: float
    se: float | None  # standard error over problems
    low: float | None  # percentile interval of the bootstrap over problems
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "se": self.se, "low": self.low, "high": self.high}


def standard_error(values: NDArray[np.float64], clusters: NDArray[np.int64] | None = None) -> float | None:
    """The standard error of the mean of per-problem values [P] in closed form, std / sqrt(P); None for P = 1.

    clusters: [P] numbers from 0; problems with the same number are not independent, and their sums take the place of
    single values (for clusters of one the formula is the same).
    """
    if clusters is None:
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    excess = np.bincount(clusters, weights=values - values.mean())
    count = len(excess)
    return math.sqrt(count / (count - 1) * float(excess @ excess)) / len(values) if count > 1 else None


def bootstrap_means(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """[resamples, S] the means of P problems drawn with replacement; values: [P, S], drawn together."""
    problems = len(values)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, CHUNK // problems)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        slot = rng.integers(0, problems, size=(rows, problems)) + problems * np.arange(rows)[:, None]
        times = np.bincount(slot.ravel(), minlength=rows * problems).reshape(rows, problems)
        means[start : start + rows] = times @ values / problems
    return means


def intervals(
    values: NDArray[np.float64],
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    clusters: NDArray[np.int64] | None = None,
) -> list[Interval]:
    """An interval for the mean of each column, by the bootstrap over problems (percentiles; Efron and Tibshirani 1994).

    values: [P, S] S statistics of each problem; all are resampled together.
    level: the coverage aimed at, in (0, 1).
    clusters: [P] numbers from 0 of what is resampled as a whole (None: single problems).
    """
    assert values.ndim == 2, values.shape
    assert len(values), "no problems"
    mean = values.mean(axis=0)
    if len(values) == 1 or (clusters is not None and clusters.max() == 0):
        return [Interval(float(value), None, None, None) for value in mean]
    tail = 50 * (1 - level)
    if clusters is None:
        means = bootstrap_means(values, resamples, rng)
    else:
        sums = np.stack([np.bincount(clusters, weights=column) for column in values.T], axis=1)
        drawn = bootstrap_means(np.column_stack([sums, np.bincount(clusters)]), resamples, rng)
        means = drawn[:, :-1] / drawn[:, -1:]
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return [
        Interval(float(mean[i]), standard_error(values[:, i], clusters), float(low[i]), float(high[i]))
        for i in range(values.shape[1])
    ]


def paired_difference(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """The mean of second - first over the problems that both runs were tested on, with its interval.

    first, second: [P] the same statistic of two runs, problem by problem.
    """
    assert first.shape == second.shape, (first.shape, second.shape)
    return intervals((second - first)[:, None], rng, resamples, level)[0]
