"""Means with their 95 % intervals, one function for each way in which the numbers were sampled.

    problems differ, one run                                        bootstrap_intervals
    repetitions with other seeds, one number each                   t_interval, t_half_width
    seeds and problems: a number for each seed and each problem     crossed_interval
    counts: k of n independent cases                                clopper_pearson

An interval leaves out everything that does not vary in its numbers, such as the choice of problems shared by all runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from topr_exp.runtime.json_files import as_number

Values = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Clusters = NDArray[np.int64]  # [P] numbers from 0: problems of one number are not independent
Point = dict[str, float | None]  # value, low and high, ready for JSON

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 22  # indices in memory at once

ROUNDING = 1e-9  # relative difference of mean squares that count as equal
FEWEST_SEEDS = 3  # for a decision: an interval of two seeds covers 88 %


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval; the ends are NaN where the uncertainty is unknown, as of a single problem."""

    value: float
    low: float = math.nan
    high: float = math.nan
    seeds: int = 1  # whose spread is included; 1: that of problems alone
    problems: bool = True  # their spread is included
    error: float = field(default=math.nan, compare=False)  # of t intervals: the standard error
    freedom: float = field(default=math.nan, compare=False)  # degrees of freedom of a test of one among many claims

    def as_dict(self) -> Point:
        """Return value, low and high for JSON; None for NaN."""
        return {"value": as_number(self.value), "low": as_number(self.low), "high": as_number(self.high)}

    @property
    def over(self) -> str:
        """The sources of variation, in words."""
        if math.isnan(self.low):
            return "nothing"
        sources = []
        if self.seeds > 1:
            sources.append(f"{self.seeds} seeds")
        if self.problems:
            sources.append("problems")
        return ", ".join(sources)

    def percent(self, *, sign: bool = False) -> str:
        """Format a share: 12.3 [10.1, 14.2]."""
        number_format = "+.1f" if sign else ".1f"
        return self.to_text(number_format, scale=100)

    def to_text(self, number_format: str, scale: float = 1.0) -> str:
        value = format(scale * self.value, number_format)
        if math.isnan(self.low):
            return value
        low = format(scale * self.low, number_format)
        high = format(scale * self.high, number_format)
        return f"{value} [{low}, {high}]"


# ---- over problems


def standard_error(values: Values, clusters: Clusters | None = None) -> float | None:
    """The standard error of the mean of per-problem values [P] in closed form, std / sqrt(P); None for P = 1.

    With clusters, sums of problems with the same number take the place of single values.
    """
    problems = len(values)
    if clusters is None:
        if problems < 2:
            return None
        return float(values.std(ddof=1)) / math.sqrt(problems)
    cluster_deviations = np.bincount(clusters, weights=values - values.mean())  # sums over each cluster's problems
    count = len(cluster_deviations)
    if count == 1:
        return None
    square_sum = float(cluster_deviations @ cluster_deviations)
    return math.sqrt(count / (count - 1) * square_sum) / problems


def bootstrap_means(values: Values, resamples: int, rng: Generator) -> Values:
    """Average P problems drawn with replacement, [resamples, S]; values: [P, S], drawn together."""
    problems = len(values)
    rows_per_chunk = max(1, CHUNK // problems)
    chunks = []
    for start in range(0, resamples, rows_per_chunk):
        rows = min(rows_per_chunk, resamples - start)
        problem_indices = rng.integers(0, problems, size=(rows, problems))
        draw_counts = count_in_rows(problem_indices, problems)  # [rows, P]
        sums = draw_counts @ values
        chunks.append(sums / problems)
    return np.concatenate(chunks)


def count_in_rows(numbers: NDArray[np.integer], width: int) -> Counts:
    """Count each of 0..width-1 in each row, [rows, width]; numbers: [rows, n]."""
    row_count = len(numbers)
    row_starts = width * np.arange(row_count)  # in the flattened counts
    count_index = row_starts[:, None] + numbers
    flat_counts = np.bincount(count_index.ravel(), minlength=row_count * width)
    return flat_counts.reshape(row_count, width)


def bootstrap_intervals(
    values: Values, rng: Generator, *, clusters: Clusters | None = None, share: bool = False
) -> list[Interval]:
    """An interval for the mean of each column: the 2.5 and 97.5 % percentiles of the means of resampled problems.

    The bootstrap (Efron and Tibshirani 1994). Assumes that the problems are a sample of those that could have been
    asked, independent of one another (or their clusters are). The spread of training seeds is not in it.
    values: [P, S] S statistics of each problem, resampled together. clusters: what is resampled as a whole (None:
    single problems). share: where all are 0, or all 1, it is `clopper_pearson` of so many cases.
    """
    assert len(values), "no problems"
    means = values.mean(axis=0)
    cases = len(values)
    if clusters is not None:
        cases = int(clusters.max()) + 1
    if cases == 1:
        return [Interval(float(mean)) for mean in means]
    tail = 50 * (1 - LEVEL)
    resampled = resampled_means(values, rng, clusters)
    lows, highs = np.percentile(resampled, [tail, 100 - tail], axis=0)
    lows = np.minimum(lows, means)  # by rounding, percentiles of equal values may miss their mean
    highs = np.maximum(highs, means)
    intervals = []
    for column, mean, low, high in zip(values.T, means, lows, highs, strict=True):
        interval = Interval(float(mean), float(low), float(high))
        if share:
            interval = interval_at_bound(column, cases) or interval
        intervals.append(interval)
    return intervals


def resampled_means(values: Values, rng: Generator, clusters: Clusters | None) -> Values:
    """Average resampled problems, or clusters of them, [RESAMPLES, S]."""
    if clusters is None:
        return bootstrap_means(values, RESAMPLES, rng)
    cluster_sums = [np.bincount(clusters, weights=column) for column in values.T]
    cluster_sizes = np.bincount(clusters)
    sums_and_sizes = np.column_stack([*cluster_sums, cluster_sizes])
    mean_sums_and_sizes = bootstrap_means(sums_and_sizes, RESAMPLES, rng)  # of the clusters drawn
    mean_sums = mean_sums_and_sizes[:, :-1]
    mean_sizes = mean_sums_and_sizes[:, -1:]
    return mean_sums / mean_sizes


# ---- counts


def clopper_pearson(count: int, total: int) -> Interval:
    """The share count / total of independent cases with its exact interval (Clopper and Pearson 1934).

    Beta quantiles; of none it ends at 1 - 0.025^(1 / total), about 3.7 / total.
    """
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = 0.0
    high = 1.0
    if count > 0:
        low = float(betaincinv(count, total - count + 1, tail))
    if count < total:
        high = float(betaincinv(count + 1, total - count, 1 - tail))
    return Interval(count / total, low, high, seeds=total, problems=False)  # a case for each seed


def interval_at_bound(shares: Values, cases: int, seeds: int = 1) -> Interval | None:
    """`clopper_pearson` of shares that are all 0 or all 1, which have no spread to go by; None of others.

    cases: how many of the shares are independent. It holds for shares as for counts: P(X = 0) ≤ 1 − E X within [0, 1].
    """
    share = shares.min()
    are_equal = share == shares.max()
    if not are_equal or share not in (0, 1):
        return None
    count = cases if share == 1 else 0
    interval = clopper_pearson(count, cases)
    return replace(interval, seeds=seeds, problems=True)


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
    half_width = t_95(count - 1) * values.std(axis=0, ddof=1) / math.sqrt(count)
    return np.asarray(half_width)


def t_interval(values: Sequence[float] | Values, *, share: bool = False) -> Interval:
    """The mean of one number for each seed with Student's t interval, mean ± t(N - 1) std / sqrt(N).

    Assumes independent seeds, roughly normal numbers; coverage: docs/statistics.md. share: clip to [0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    mean = float(array.mean())
    half_width = float(t_half_width(array))
    low = mean - half_width
    high = mean + half_width
    if share:
        low = max(low, 0.0)
        high = min(high, 1.0)
    error = math.nan
    if count > 1:
        error = float(array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, low, high, seeds=count, problems=False, error=error, freedom=count - 1)


# ---- over seeds and problems


class MeanSquares(NamedTuple):
    """Sums of squares, each divided by its degrees of freedom."""

    seeds: Values
    problems: Values
    residual: Values


class Estimate(NamedTuple):
    """Standard error of a mean and its degrees of freedom."""

    error: Values
    freedom: Values


def mean_squares(values: Values) -> MeanSquares:
    """The mean squares of x_sp = m + seed_s + problem_p + residual_sp; values: [..., S, P]."""
    seed_count, problem_count = values.shape[-2:]
    seed_means = values.mean(-1, keepdims=True)  # [..., S, 1]
    problem_means = values.mean(-2, keepdims=True)  # [..., 1, P]
    mean = seed_means.mean(-2, keepdims=True)
    seed_effects = seed_means - mean
    problem_effects = problem_means - mean
    residuals = values - seed_means - problem_means + mean
    if seed_count == 1 or problem_count == 1:  # the effects explain all, but for rounding
        residuals = np.zeros_like(residuals)
    return MeanSquares(
        seeds=mean_square(problem_count * seed_effects**2, seed_count - 1),
        problems=mean_square(seed_count * problem_effects**2, problem_count - 1),
        residual=mean_square(residuals**2, (seed_count - 1) * (problem_count - 1)),
    )


def mean_square(squares: Values, freedom: int) -> Values:
    """Divide the sum over the last two axes by its degrees of freedom; a sum without any is 0 already."""
    return squares.sum((-2, -1)) / max(freedom, 1)


def crossed_error(
    squares: MeanSquares, seed_count: int, problem_count: int, *, pooled: int = 1, cautious: bool = False
) -> Estimate:
    """Standard error of a mean over seeds and problems with its degrees of freedom, elementwise.

    (MS_seed + MS_problem − MS_residual) / (S P), no component below 0; freedom: Satterthwaite's (1946).
    pooled: number of mean squares that each one of `squares` is the mean of. cautious: that seeds seem not to differ
    counts as little as their number allows, for tests far out in the tail.
    """
    residual = squares.residual
    seed_square = np.maximum(squares.seeds, residual)
    problem_square = np.maximum(squares.problems, residual)
    variance = seed_square + problem_square - residual
    seeds_differ = exceeds(squares.seeds, residual) | cautious
    problems_differ = exceeds(squares.problems, residual)

    def spread_of(square: Values, freedom: int) -> Values:
        """MS² / freedom, a summand of Satterthwaite's."""
        return square**2 / max(pooled * freedom, 1)

    seed_spread = spread_of(seed_square, seed_count - 1)
    problem_spread = spread_of(problem_square, problem_count - 1)
    residual_spread = spread_of(residual, (seed_count - 1) * (problem_count - 1))
    # Of the mean squares that are left in the variance: where seeds alone (or problems alone) don't differ, theirs is
    # the residual's and cancels the subtracted one; where neither do, one residual is left.
    has_residual = seeds_differ == problems_differ
    spread = seeds_differ * seed_spread + problems_differ * problem_spread + has_residual * residual_spread
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = np.where(variance > 0, variance**2 / spread, 1.0)
    error = np.sqrt(variance / (seed_count * problem_count))
    return Estimate(error, freedom)


def exceeds(square: Values, residual: Values) -> Mask:
    """True where a mean square is larger than the residual's by more than rounding."""
    return square > residual * (1 + ROUNDING)


def crossed_interval(values: Values, *, share: bool = False) -> Interval:
    """The mean over seeds and problems with its t interval, both being samples of more.

    x_sp = m + seed_s + problem_p + residual_sp, crossed random effects: see `crossed_error`.
    values: [S, P]. With a single seed it holds over problems alone; with two it covers less than 95 % (about 88 % where
    they differ most). Of shares it stays within 0 and 1, of their differences within -1 and 1. Of differences, where
    seeds seem not to differ, their spread counts with S - 1 degrees of freedom all the same: else such intervals would
    cover too rarely (docs/statistics.md, "What intervals cover").
    share: where all are 0, or all 1, it is Clopper and Pearson's of P cases; a difference of 0 everywhere has no width.
    """
    seed_count, problem_count = values.shape
    if share:
        interval = interval_at_bound(values, problem_count, seed_count)
        if interval is not None:
            return interval

    squares = mean_squares(values)
    estimate = crossed_error(squares, seed_count, problem_count, cautious=not share)
    error = float(estimate.error)
    half_width = math.nan
    if values.size > 1:
        half_width = float(t_95(float(estimate.freedom))) * error
    mean = float(values.mean())
    low = mean - half_width
    high = mean + half_width
    if values.min() >= -1 and values.max() <= 1:  # shares or differences of shares: the interval holds no others
        lowest = 0.0 if share else -1.0
        low = max(low, lowest)
        high = min(high, 1.0)

    cautious = crossed_error(squares, seed_count, problem_count, cautious=True)
    has_problems = problem_count > 1  # whose spread is known
    return Interval(
        mean, low, high, seeds=seed_count, problems=has_problems, error=error, freedom=float(cautious.freedom)
    )


# ---- the best of several


def studentized_range(groups: int, freedom: Values) -> Values:
    """The 95 % quantile of the range of the means of equal groups, in units of one mean's standard error."""
    from scipy.stats import studentized_range as distribution

    return np.asarray(distribution.ppf(LEVEL, groups, freedom))


def below_another(values: Values, quantile: Callable[[int, Values], Values] = studentized_range) -> Mask:
    """Compare all K groups: true at [i, j] where group i is surely below group j.

    Hsu's multiple comparisons with the best (1981), with Tukey's studentized range: of K equal groups one is called
    below another, or the best, in 5 % of all cases for all K together (docs/statistics.md). One variance for all:
    `crossed_error` of the interactions of groups with seeds and problems, or a pair's own if larger.
    values: [..., K, S, P], paired by seed and problem; at least two seeds and two problems.
    """
    group_count, seed_count, problem_count = values.shape[-3:]
    contrasts = group_count - 1
    interactions = values - values.mean(-3, keepdims=True)
    pooled_squares = [squares.sum(-1) / contrasts for squares in mean_squares(interactions)]
    shared_squares = MeanSquares(*pooled_squares)
    shared = crossed_error(shared_squares, seed_count, problem_count, pooled=contrasts)  # [...]
    shared_pair_error = math.sqrt(2) * shared.error[..., None]
    critical_lead = quantile(group_count, shared.freedom) / math.sqrt(2)  # in standard errors of a difference

    means = values.mean((-2, -1))  # [..., K]
    is_below = []  # by group, [..., K] each
    for group in range(group_count):
        leads = means - means[..., [group]]  # of all groups over this one
        differences = values - values[..., [group], :, :]
        pair_squares = mean_squares(differences)
        own_pair_error = crossed_error(pair_squares, seed_count, problem_count).error  # [..., K]
        pair_error = np.maximum(shared_pair_error, own_pair_error)
        critical_difference = critical_lead[..., None] * pair_error
        is_below.append(leads > critical_difference)
    return np.stack(is_below, -2)
