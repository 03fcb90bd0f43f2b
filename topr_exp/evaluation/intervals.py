"""Means with their 95 % intervals, one function for each way in which the numbers were sampled.

    problems differ, one run                                        bootstrap_intervals
    repetitions with other seeds, one number each                   t_interval, t_half_width
    seeds and problems: a number for each seed and each problem     crossed_interval

None of them knows of what does not vary in its numbers: the same problems in all runs, say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # drawn indices held at once

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond them see `t_95`.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval.

    Where nothing is known of its uncertainty, as of a single problem, the ends are NaN: no comparison with them holds.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    seeds: int = 1  # whose spread it holds; 1: it is over problems alone
    problems: bool = True  # whether it holds the spread of problems

    def as_dict(self) -> dict[str, float | None]:
        """value, low and high for JSON, None where there is none."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if math.isnan(number) else number for name, number in numbers.items()}

    @property
    def over(self) -> str:
        """Its sources of variation, in words."""
        if math.isnan(self.low):
            return "nothing"
        return ", ".join([f"{self.seeds} seeds"] * (self.seeds > 1) + ["problems"] * self.problems)

    def percent(self, *, sign: bool = False) -> str:
        """As it is printed: 12.3 [10.1, 14.2]."""
        return self.written(f"{'+' if sign else ''}.1f", 100)

    def written(self, form: str, scale: float = 1.0) -> str:
        value, low, high = (f"{scale * number:{form}}" for number in (self.value, self.low, self.high))
        return value if math.isnan(self.low) else f"{value} [{low}, {high}]"


# ---- over problems


def standard_error(values: Values, clusters: NDArray[np.int64] | None = None) -> float | None:
    """The standard error of the mean of per-problem values [P] in closed form, std / sqrt(P); None for P = 1.

    clusters: [P] numbers from 0; sums of problems with the same number take the place of single values.
    """
    if clusters is None:
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    excess = np.bincount(clusters, weights=values - values.mean())
    count = len(excess)
    return math.sqrt(count / (count - 1) * float(excess @ excess)) / len(values) if count > 1 else None


def bootstrap_means(values: Values, resamples: int, rng: np.random.Generator) -> Values:
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


def bootstrap_intervals(
    values: Values, rng: np.random.Generator, resamples: int = RESAMPLES, clusters: NDArray[np.int64] | None = None
) -> list[Interval]:
    """An interval for the mean of each column: the 2.5 and 97.5 % percentiles of the means of resampled problems.

    The bootstrap (Efron and Tibshirani 1994). Assumes that the problems are a sample of those that could have been
    asked, independent of one another (or their clusters are). How training seeds differ is not in it, and where every
    problem scores the same (all 0, say) it has no width.
    values: [P, S] S statistics of each problem; all are resampled together.
    clusters: [P] numbers from 0 of what is resampled as a whole (None: single problems).
    """
    assert values.ndim == 2, values.shape
    assert len(values), "no problems"
    mean = values.mean(axis=0)
    if len(values) == 1 or (clusters is not None and clusters.max() == 0):
        return [Interval(float(value)) for value in mean]
    if clusters is None:
        means = bootstrap_means(values, resamples, rng)
    else:
        sums = np.stack([np.bincount(clusters, weights=column) for column in values.T], axis=1)
        drawn = bootstrap_means(np.column_stack([sums, np.bincount(clusters)]), resamples, rng)
        means = drawn[:, :-1] / drawn[:, -1:]
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return [Interval(float(mean[i]), float(low[i]), float(high[i])) for i in range(values.shape[1])]


# ---- over seeds


def t_95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; between what T_95 has linear in the inverse (a little large)."""
    known = np.arange(len(T_95), 0, -1)
    return float(np.interp(1 / freedom, [0.0, *(1 / known)], [1.96, *T_95[::-1]]))


def t_half_width(values: Values) -> Values:
    """Half of the width of `t_interval` over the first axis, t(N - 1) std / sqrt(N); NaN for a single value."""
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], math.nan)
    return np.asarray(t_95(count - 1) * values.std(axis=0, ddof=1) / math.sqrt(count))


def t_interval(values: Sequence[float] | Values, *, share: bool = False) -> Interval:
    """The mean of one number for each seed with Student's t interval, mean ± t(N - 1) std / sqrt(N).

    Assumes that the seeds are independent and their numbers roughly normal. Where one seed in five collapses it covers
    49 % with three seeds and 68 % with five: count those.
    share: the numbers lie between 0 and 1, and so does the interval.
    """
    array = np.asarray(values, dtype=np.float64)
    mean, half = float(array.mean()), float(t_half_width(array))
    low, high = mean - half, mean + half
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return Interval(mean, low, high, len(array), problems=False)


# ---- over seeds and problems


def crossed_interval(values: Values) -> Interval:
    """The mean over seeds and problems with its t interval, both being samples of more.

    x_sp = m + seed_s + problem_p + rest_sp, crossed random effects: the mean's variance is
    (MS_seed + MS_problem − MS_rest) / (S P) with no component below 0, its degrees of freedom Satterthwaite's (1946).
    values: [S, P]. With a single seed it holds over problems alone; with two it covers less than 95 % (about 88 % where
    they differ most). Of shares it stays within 0 and 1, of their differences within -1 and 1.
    """
    seeds, problems = values.shape
    mean, by_seed, by_problem = float(values.mean()), values.mean(axis=1), values.mean(axis=0)
    rest, freedom = 0.0, 1
    if seeds > 1 and problems > 1:
        freedom = (seeds - 1) * (problems - 1)
        rest = float(((values - by_seed[:, None] - by_problem + mean) ** 2).sum()) / freedom
    of_seeds = problems * float(by_seed.var(ddof=1)) if seeds > 1 else 0.0
    of_problems = seeds * float(by_problem.var(ddof=1)) if problems > 1 else 0.0
    variance = max(of_seeds, rest) + max(of_problems, rest) - rest
    parts = [(square, n - 1) for square, n in ((of_seeds, seeds), (of_problems, problems)) if square > rest]
    if len(parts) != 1:
        parts.append((rest, freedom))
    half = 0.0
    if variance > 0:
        half = t_95(variance**2 / sum(square**2 / count for square, count in parts))
        half *= math.sqrt(variance / values.size)
    low, high = mean - half, mean + half
    if values.min() >= -1 and values.max() <= 1:  # shares or differences of shares: the interval holds no others
        low, high = max(low, 0.0 if values.min() >= 0 else -1.0), min(high, 1.0)
    return Interval(mean, low, high, seeds)
