"""Means with their 95 % intervals, one function for each way in which the numbers were sampled.

    problems differ, one run                                        bootstrap_intervals
    repetitions with other seeds, one number each                   t_interval, t_half_width
    seeds and problems: a number for each seed and each problem     crossed_interval
    counts: k of n independent cases                                clopper_pearson

None of them knows of what does not vary in its numbers: the same problems in all runs, say.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # drawn indices held at once

ROUNDING = 1e-9  # relative, of mean squares that are equal but for it
FEWEST_SEEDS = 3  # that decide anything: of two, an interval covers 88 %


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
    error: float = field(default=math.nan, compare=False)  # of t intervals: the standard error
    freedom: float = field(default=math.nan, compare=False)  # degrees of freedom of a test of one among many claims

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
    values: Values,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    clusters: NDArray[np.int64] | None = None,
    *,
    share: bool = False,
) -> list[Interval]:
    """An interval for the mean of each column: the 2.5 and 97.5 % percentiles of the means of resampled problems.

    The bootstrap (Efron and Tibshirani 1994). Assumes that the problems are a sample of those that could have been
    asked, independent of one another (or their clusters are). How training seeds differ is not in it.
    values: [P, S] S statistics of each problem, resampled together. clusters: [P] numbers from 0 of what is resampled
    as a whole (None: single problems). share: where all are 0, or all 1, it is `clopper_pearson` of so many cases.
    """
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
    count = len(values) if clusters is None else int(clusters.max()) + 1
    return [
        (extreme(column, count) if share else None)
        or Interval(float(mean[i]), float(min(low[i], mean[i])), float(max(high[i], mean[i])))
        for i, column in enumerate(values.T)
    ]


# ---- counts


def clopper_pearson(count: int, total: int) -> Interval:
    """The share count / total of independent cases with its exact interval (Clopper and Pearson 1934).

    Beta quantiles; of none it ends at 1 - 0.025^(1 / total), about 3.7 / total.
    """
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Interval(count / total, low, high, total, problems=False)


def extreme(shares: Values, cases: int, seeds: int = 1) -> Interval | None:
    """`clopper_pearson` of shares that are all 0 or all 1, which have no spread to go by; None of others.

    cases: how many of the shares are independent. It holds for shares as for counts: P(X = 0) ≤ 1 − E X within [0, 1].
    """
    if shares.min() != shares.max() or shares.min() not in (0, 1):
        return None
    return replace(clopper_pearson(cases * int(shares.flat[0]), cases), seeds=seeds, problems=True)


# ---- over seeds


def t_95(freedom: float | Values) -> Any:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return stdtrit(freedom, (1 + LEVEL) / 2)


def t_half_width(values: Values) -> Values:
    """Half of the width of `t_interval` over the first axis, t(N - 1) std / sqrt(N); NaN for a single value."""
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], math.nan)
    return np.asarray(t_95(count - 1) * values.std(axis=0, ddof=1) / math.sqrt(count))


def t_interval(values: Sequence[float] | Values, *, share: bool = False) -> Interval:
    """The mean of one number for each seed with Student's t interval, mean ± t(N - 1) std / sqrt(N).

    Assumes independent seeds, roughly normal numbers; coverage: docs/statistics.md. share: clip to [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    count, mean, half = len(array), float(array.mean()), float(t_half_width(array))
    low, high = mean - half, mean + half
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    error = float(array.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Interval(mean, low, high, count, False, error, count - 1)


# ---- over seeds and problems


def mean_squares(values: Values) -> tuple[Values, Values, Values]:
    """Sums of squares of [..., S, P] by their degrees of freedom: of seeds, of problems, of the rest."""
    seeds, problems = values.shape[-2:]
    by_seed, by_problem = values.mean(-1, keepdims=True), values.mean(-2, keepdims=True)
    mean = by_seed.mean(-2, keepdims=True)
    parts = (
        problems * (by_seed - mean) ** 2,
        seeds * (by_problem - mean) ** 2,
        (values - by_seed - by_problem + mean) ** 2,
    )
    freedoms = freedoms_of(seeds, problems)
    found = [part.sum((-2, -1)) / max(count, 1) for part, count in zip(parts, freedoms, strict=True)]
    return found[0], found[1], found[2] if freedoms[2] else np.zeros_like(found[2])


def freedoms_of(seeds: int, problems: int) -> tuple[int, int, int]:
    return seeds - 1, problems - 1, (seeds - 1) * (problems - 1)


def crossed_error(
    squares: Sequence[Values], seeds: int, problems: int, pooled: int = 1, *, cautious: bool = False
) -> tuple[Values, Values]:
    """Standard error of a mean over seeds and problems with its degrees of freedom, elementwise.

    (MS_seed + MS_problem − MS_rest) / (seeds problems), no component below 0; freedom: Satterthwaite's (1946).
    squares: of seeds, problems and the rest, each the mean of so many that are `pooled`.
    cautious: that seeds seem not to differ counts as little as their number allows, for tests far out in the tail.
    """
    of_seeds, of_problems, rest = squares
    by_seed, by_problem = exceeds(of_seeds, rest) | cautious, exceeds(of_problems, rest)
    parts = np.maximum(of_seeds, rest), of_problems, rest
    variance = parts[0] + np.maximum(of_problems, rest) - rest
    used = zip((by_seed, by_problem, by_seed == by_problem), parts, freedoms_of(seeds, problems), strict=True)
    spread = sum(part * square**2 / max(pooled * freedom, 1) for part, square, freedom in used)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = np.where(variance > 0, variance**2 / spread, 1.0)
    return np.sqrt(variance / (seeds * problems)), freedom


def exceeds(square: Values, rest: Values) -> NDArray[np.bool_]:
    """True where a mean square is larger than that of the rest by more than rounding."""
    return square > rest * (1 + ROUNDING)


def crossed_interval(values: Values, *, share: bool = False) -> Interval:
    """The mean over seeds and problems with its t interval, both being samples of more.

    x_sp = m + seed_s + problem_p + rest_sp, crossed random effects: see `crossed_error`.
    values: [S, P]. With a single seed it holds over problems alone; with two it covers less than 95 % (about 88 % where
    they differ most). Of shares it stays within 0 and 1, of their differences within -1 and 1. Of differences, where
    seeds seem not to differ, their spread counts with S - 1 degrees of freedom all the same: else such intervals would
    cover 21 to 73 % (docs/statistics.md).
    share: where all are 0, or all 1, it is Clopper and Pearson's of P cases; a difference of 0 everywhere has no width.
    """
    seeds, problems = values.shape
    if share and (counted := extreme(values, problems, seeds)) is not None:
        return counted
    mean, squares = float(values.mean()), mean_squares(values)
    error, freedom = map(float, crossed_error(squares, seeds, problems, cautious=not share))
    half = float(t_95(freedom)) * error if values.size > 1 else math.nan
    low, high = mean - half, mean + half
    if values.min() >= -1 and values.max() <= 1:  # shares or differences of shares: the interval holds no others
        low, high = max(low, 0.0 if share else -1.0), min(high, 1.0)
    return Interval(
        mean, low, high, seeds, True, error, float(crossed_error(squares, seeds, problems, cautious=True)[1])
    )


# ---- the best of several


def studentized_range(groups: int, freedom: Values) -> Values:
    """The 95 % quantile of the range of so many means, in units of one mean's standard error."""
    from scipy.stats import studentized_range as distribution

    return np.asarray(distribution.ppf(LEVEL, groups, freedom))


def below_another(values: Values, quantile: Callable[[int, Values], Values] = studentized_range) -> NDArray[np.bool_]:
    """Compare all K groups: true at [i, j] where group i is surely below group j.

    Hsu's multiple comparisons with the best (1981), with Tukey's studentized range: of K equal groups one is called
    below another, or the best, in 5 % of all cases for all K together (docs/statistics.md). One variance for all:
    `crossed_error` of the interactions of groups with seeds and problems, or a pair's own if larger.
    values: [..., K, S, P], paired by seed and problem; at least two seeds and two problems.
    """
    groups, seeds, problems = values.shape[-3:]
    means = values.mean((-2, -1))
    lead = means[..., None, :] - means[..., :, None]  # of j before i
    interactions = mean_squares(values - values.mean(-3, keepdims=True))
    shared = [square.sum(-1) / (groups - 1) for square in interactions]
    pooled, freedom = crossed_error(shared, seeds, problems, groups - 1)
    pairs = (mean_squares(values - values[..., [i], :, :]) for i in range(groups))
    own = np.stack([crossed_error(pair, seeds, problems)[0] for pair in pairs], -2)
    least = quantile(groups, freedom)[..., None, None] / math.sqrt(2)
    error = np.maximum(math.sqrt(2) * pooled[..., None, None], own)
    return np.asarray(lead > least * error)
