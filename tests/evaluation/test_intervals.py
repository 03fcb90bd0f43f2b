"""95 % intervals against plain arithmetic, exact distributions and their coverage in simulations."""

import numpy as np
import pytest
import scipy.stats

from tests import by_hand
from tests.conftest import each_row
from topr_exp.evaluation.intervals import (
    below_another,
    bootstrap_intervals,
    bootstrap_means,
    clopper_pearson,
    crossed_interval,
    standard_error,
    studentized_range,
    t_interval,
)


def numbers(interval):
    return interval.value, interval.low, interval.high


# ---- over problems


def test_the_closed_standard_error_is_that_of_the_bootstrap():
    rng = np.random.default_rng(2)
    values = rng.random((150, 1)) ** 2

    spread = bootstrap_means(values, 40_000, rng).std()  # in two chunks

    assert standard_error(values[:, 0]) == pytest.approx(spread, rel=0.02)


def test_a_single_problem_has_no_uncertainty_to_give():
    of_one_problem = np.array([[0.25]])
    of_two_seeds = np.array([[0.5], [0.25]])

    (interval,) = bootstrap_intervals(of_one_problem, np.random.default_rng(0))

    for of_one in (interval, crossed_interval(of_one_problem)):
        assert of_one.as_dict() == {"value": 0.25, "low": None, "high": None}
        assert (of_one.over, of_one.percent()) == ("nothing", "25.0")
    assert crossed_interval(of_two_seeds).over == "2 seeds"


# ---- shares and counts


COUNTS = """
0 | 5
2 | 5
5 | 5
1 | 3
40 | 50
"""


@each_row("count total", COUNTS, literals=True)
def test_the_interval_of_a_count_ends_where_the_binomial_test_just_rejects(count, total):
    interval = clopper_pearson(count, total)

    assert interval.value == count / total
    p_of_as_many = scipy.stats.binom.sf(count - 1, total, interval.low)
    p_of_as_few = scipy.stats.binom.cdf(count, total, interval.high)
    assert p_of_as_many == pytest.approx(0.025 if count > 0 else 1)
    assert p_of_as_few == pytest.approx(0.025 if count < total else 1)
    assert (interval.low == 0) == (count == 0)
    assert (interval.high == 1) == (count == total)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_counts_of_none_and_of_all_have_a_width_where_they_are_shares(value):
    """The rule of three: of 0 of 40, about 3.7 / 40 at a two-sided 95 %."""
    rng = np.random.default_rng(0)
    shares = np.full((40, 1), value)
    clusters = np.arange(40) // 4

    (independent,) = bootstrap_intervals(shares, rng, share=True)
    (clustered,) = bootstrap_intervals(shares, rng, clusters=clusters, share=True)
    crossed = crossed_interval(np.full((3, 40), value), share=True)
    (differences,) = bootstrap_intervals(shares - value, rng)

    for interval, cases in ((independent, 40), (clustered, 10), (crossed, 40)):
        width = interval.high - interval.low
        assert width == pytest.approx(1 - 0.025 ** (1 / cases))
        assert value in (interval.low, interval.high)
    assert crossed.over == "3 seeds, problems"
    assert differences.low == differences.high == 0


# ---- over seeds


def test_the_interval_over_seeds_is_students():
    values = [0.1, 0.2, 0.6]

    assert numbers(t_interval(values)) == pytest.approx(by_hand.interval(values))
    assert t_interval(values, share=True).low == 0.0
    assert t_interval([0.99, 0.8, 0.99], share=True).high == 1.0
    assert t_interval([-2.0, 3.0]).high > 1, "what is no share is not cut off"
    assert np.isnan(numbers(t_interval([0.5], share=True))[1:]).all()


# ---- over seeds and problems


TABLES = """
[[0.0, 0.5, 1.0], [0.25, 0.5, 0.0]]
[[0.0, 0.1, 0.1], [0.9, 1.0, 0.8]]
[[0.0, 0.6, 0.9], [0.1, 0.5, 1.0]]
"""  # only the residual differs; the seeds differ most; the problems do


@each_row("table", TABLES, literals=True)
def test_the_interval_over_seeds_and_problems_is_that_of_plain_arithmetic(table):
    shifted = np.array(table) - 5

    interval = crossed_interval(shifted)

    assert numbers(interval) == pytest.approx(by_hand.crossed_interval(shifted.tolist()))
    assert interval.freedom == pytest.approx(by_hand.cautious_freedom(table))
    assert numbers(crossed_interval(shifted[:1])) == pytest.approx(by_hand.interval(shifted[0])), "of one seed"


def test_an_interval_of_shares_stays_within_0_and_1_and_one_of_differences_within_1_and_minus_1():
    table = np.array([[0.0, 0.1, 0.1], [0.9, 1.0, 0.8]])
    hardly_any = np.zeros((3, 30))
    hardly_any[0, 0] = 1.0

    shares = crossed_interval(table, share=True)
    differences = crossed_interval(2 * table - 1)

    assert shares.low == 0.0
    assert shares.high == 1.0
    assert differences.low == -1.0
    assert differences.high == 1.0
    assert crossed_interval(hardly_any, share=True).low == 0.0
    assert crossed_interval(hardly_any).low < 0.0, "differences that happen to be nowhere below 0"


# ---- the best of several


@pytest.mark.parametrize("lead", [0.0, 0.6, -0.6])
def test_two_groups_are_compared_as_by_their_interval(lead):
    """Of two the studentized range is Student's t; the order of rows and columns is who is below whom."""
    first, second = np.random.default_rng(6).normal(size=(2, 4, 50))
    second += lead

    interval = crossed_interval(second - first)

    assert (interval.low > 0) == (lead > 0)
    assert (interval.high < 0) == (lead < 0)
    is_below = below_another(np.stack([first, second]))
    assert is_below.tolist() == [[False, interval.low > 0], [interval.high < 0, False]]


@pytest.mark.parametrize("seeds, largest_scale", [(3, 1), pytest.param(5, 1, marks=pytest.mark.extended), (3, 3)])
def test_of_equal_groups_one_is_called_below_another_in_7_percent_at_most(seeds, largest_scale):
    """Seven groups whose seeds differ the most, and where one spreads three times as far as another."""
    rng = np.random.default_rng(7)
    scales = np.linspace(1, largest_scale, 7)[:, None, None]
    of_seeds = 0.05 * rng.normal(size=(300, 7, seeds, 1))
    values = of_seeds + 0.2 * rng.normal(size=(300, 7, seeds, 30))
    freedoms = np.array([1e6, 60, 20, 10, 6, 4, 3, 2])
    quantiles = studentized_range(7, freedoms)  # each takes a while

    def quantile(_, freedom):
        return np.interp(1 / freedom, 1 / freedoms, quantiles)

    is_below = below_another(scales * values, quantile)

    assert 0 < is_below.any((1, 2)).mean() <= 0.085
    far_apart = values[0] + 5 * np.arange(7)[:, None, None]
    assert below_another(far_apart).sum() == 21
