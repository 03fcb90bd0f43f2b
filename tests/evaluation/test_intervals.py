import math

import numpy as np
import pytest
import scipy.stats

from tests import by_hand
from tests.by_hand import evaluation
from topr_exp.evaluation import intervals as module
from topr_exp.evaluation.intervals import (
    Interval,
    below_another,
    bootstrap_intervals,
    bootstrap_means,
    clopper_pearson,
    crossed_interval,
    standard_error,
    studentized_range,
    t_half_width,
    t_interval,
)
from topr_exp.evaluation.statistics import CORRECT, ballots, count_votes, majority_score, pass_at_k

N = 8


def statistics(rng, problems, easy=None):
    """[problems, 3]: pass@1, pass@4, maj@8 of each problem."""
    verdicts, classes = evaluation(rng, problems, N, easy=easy)
    correct = (verdicts == CORRECT).sum(axis=1)
    candidate, worth = ballots(verdicts, classes)
    maj = majority_score(count_votes(candidate, worth.shape[1]), worth)
    return np.stack([correct / N, pass_at_k(correct, N, 4), maj], axis=1)


@pytest.mark.extended
def test_intervals_over_problems_cover_the_truth_95_times_in_100():
    rng = np.random.default_rng(0)
    truth = statistics(rng, 400_000).mean(axis=0)
    tests, hits, hits_by_se = 1500, np.zeros(3), np.zeros(3)
    for _ in range(tests):
        values = statistics(rng, 200)
        for i, found in enumerate(bootstrap_intervals(values, rng, resamples=600)):
            hits[i] += found.low <= truth[i] <= found.high
            hits_by_se[i] += abs(found.value - truth[i]) <= 1.96 * standard_error(values[:, i])
    for share in (*hits / tests, *hits_by_se / tests):
        assert 0.93 <= share <= 0.97


def test_the_closed_standard_error_is_that_of_the_bootstrap():
    rng = np.random.default_rng(2)
    values = rng.random((150, 1)) ** 2
    spread = bootstrap_means(values, 20_000, rng).std()
    assert standard_error(values[:, 0]) == pytest.approx(spread, rel=0.02)
    assert standard_error(np.array([0.0, 1.0])) == pytest.approx(0.5)
    by_source = standard_error(np.array([1.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 2]))  # sums of excess −½, ¼ and ¼
    assert by_source == pytest.approx(math.sqrt(3 / 2 * (1 / 4 + 1 / 16 + 1 / 16)) / 4)


def test_resampling_in_chunks_changes_nothing(monkeypatch):
    values = np.random.default_rng(3).random((7, 2))
    whole = bootstrap_means(values, 50, np.random.default_rng(4))
    monkeypatch.setattr(module, "CHUNK", 30)
    np.testing.assert_array_equal(bootstrap_means(values, 50, np.random.default_rng(4)), whole)


def test_a_single_problem_has_no_uncertainty_to_give():
    assert crossed_interval(np.array([[0.5]])).over == "nothing"
    assert crossed_interval(np.array([[0.5], [0.25]])).over == "2 seeds, problems"
    (found,) = bootstrap_intervals(np.array([[0.25]]), np.random.default_rng(0))
    assert found.as_dict() == {"value": 0.25, "low": None, "high": None}
    assert found.percent() == "25.0"
    assert standard_error(np.array([0.25])) is None


def test_the_interval_over_seeds_is_students():
    found = t_interval([0.1, 0.2, 0.6])
    half = 4.302653 * math.sqrt(0.07) / math.sqrt(3)
    assert (found.value, found.low, found.high, found.seeds) == pytest.approx((0.3, 0.3 - half, 0.3 + half, 3))
    assert t_interval([0.99, 0.8, 0.99], share=True).high == 1.0
    share = t_interval([0.1, 0.2, 0.6], share=True)
    assert (share.low, share.high) == (0.0, pytest.approx(0.3 + half))
    assert t_interval([-2.0, 3.0]).high > 1  # of what is no share nothing is cut off
    assert math.isnan(t_interval([0.5]).low)
    assert t_half_width(np.array([[0.0, 5.0], [2.0, 5.0]])) == pytest.approx([12.7062, 0.0], abs=1e-4)


TABLES = [[[0.0, 0.5, 1.0], [0.25, 0.5, 0.0]], [[0.0, 0.1, 0.1], [0.9, 1.0, 0.8]], [[0.0, 0.6, 0.9], [0.1, 0.5, 1.0]]]


@pytest.mark.parametrize("table", TABLES)
def test_the_interval_over_seeds_and_problems_by_hand(table):
    """Of the first table only the rest is left; in the second the seeds, in the third the problems differ the most."""
    found = crossed_interval(np.array(table) - 5)
    expected = by_hand.crossed_interval([[each - 5 for each in row] for row in table])
    assert (found.value, found.low, found.high) == pytest.approx(expected)
    assert found.freedom == pytest.approx(by_hand.cautious_freedom(table))


def test_one_of_many_claims_between_equals_is_hardly_ever_far_out_in_the_tail():
    """200 problems, 3 seeds that differ by 2 points: by the interval's own freedom a hundredth has p ≤ 0.0025."""
    rng = np.random.default_rng(5)
    found = [crossed_interval(0.02 * rng.normal(size=(3, 1)) + 0.2 * rng.normal(size=(3, 200))) for _ in range(1000)]
    p = np.array([2 * scipy.stats.t.sf(abs(one.value) / one.error, one.freedom) for one in found])
    assert np.mean(p <= 0.0025) <= 0.002
    assert np.mean([one.low > 0 or one.high < 0 for one in found]) <= 0.09


@pytest.mark.parametrize(
    ("seeds", "of_seed", "of_problem"), [(3, 0.2, 0.1), (3, 0.02, 0.3), (3, 0.0, 0.3), (5, 0.1, 0), (8, 0.1, 0.3)]
)
def test_the_interval_holds_with_few_seeds(seeds, of_seed, of_problem):
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        rest = 0.3 * rng.normal(size=(seeds, 40))
        found = crossed_interval(
            of_seed * rng.normal(size=(seeds, 1)) + of_problem * rng.normal(size=(1, 40)) + rest - 5
        )
        held += found.low <= -5 <= found.high
    assert 0.91 <= held / 400 <= 0.985


def test_the_interval_of_one_seed_is_over_problems_and_shares_stay_shares():
    rng = np.random.default_rng(2)
    values = 0.5 + 0.3 * rng.normal(size=(8, 50))
    alone = crossed_interval(values[:1])
    assert alone.high - alone.low == pytest.approx(2 * 2.01 * values[0].std(ddof=1) / np.sqrt(50), rel=0.01)
    wide = crossed_interval(np.array([[0.0, 0.1, 0.1], [0.9, 1.0, 0.8]]), share=True)
    assert wide == Interval(pytest.approx(29 / 60), 0.0, 1.0, 2)
    assert crossed_interval(np.zeros((3, 9))) == Interval(0.0, 0.0, 0.0, 3)  # a difference
    few = np.zeros((3, 30))
    few[0, 0] = 1.0
    assert crossed_interval(few, share=True).low == 0.0
    assert crossed_interval(few).low < 0.0, "differences that happen to be nowhere below 0"


@pytest.mark.parametrize("mean", [-0.9, -0.3, 0.0, 0.3, 0.9])
def test_the_interval_of_a_difference_is_that_of_the_opposite_difference_turned_round(mean):
    """Differences of shares end at -1 and 1, not at 0."""
    values = np.clip(mean + np.random.default_rng(1).uniform(-0.3, 0.3, (4, 6)), -1, 1)
    one, other = crossed_interval(values), crossed_interval(-values)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
    assert -1 <= one.low < one.value < one.high <= 1


def test_a_share_s_interval_is_where_the_binomial_test_just_rejects():
    for count, total in ((0, 5), (2, 5), (5, 5), (1, 3), (40, 50)):
        found = clopper_pearson(count, total)

        def at_least(least, share, total=total):
            return sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(least, total + 1))

        assert found.value == count / total
        assert found.low == 0 if count == 0 else at_least(count, found.low) == pytest.approx(0.025)
        assert found.high == 1 if count == total else 1 - at_least(count + 1, found.high) == pytest.approx(0.025)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_counts_of_none_and_of_all_have_a_width_where_they_are_shares(value):
    """The rule of three: of 0 of 40, about 3.7 / 40 at a two-sided 95 %."""
    values = np.full((40, 1), value)
    (alone,) = bootstrap_intervals(values, np.random.default_rng(0), share=True)
    (clustered,) = bootstrap_intervals(values, np.random.default_rng(0), clusters=np.arange(40) // 4, share=True)
    several = crossed_interval(np.full((3, 40), value), share=True)
    for found, cases in ((alone, 40), (clustered, 10), (several, 40)):
        assert max(abs(value - found.low), abs(value - found.high)) == pytest.approx(1 - 0.025 ** (1 / cases))
    assert several.over == "3 seeds, problems"
    (none,) = bootstrap_intervals(0 * values, np.random.default_rng(0))  # a difference of 0
    assert (none.low, none.high) == (0, 0)


def test_two_groups_are_compared_as_by_their_interval():
    """Of two the studentized range is Student's t; the order of rows and columns is who is below whom."""
    rng = np.random.default_rng(6)
    seen = set()
    for lead in (0.0, 0.3, 0.6, -0.6):
        values = rng.normal(size=(2, 4, 50)) + np.array([0.0, lead])[:, None, None]
        found = crossed_interval(values[1] - values[0])
        below = below_another(values)
        assert below.tolist() == [[False, found.low > 0], [found.high < 0, False]]
        seen.add((found.low > 0, found.high < 0))
    assert len(seen) == 3


def test_a_pair_that_spreads_more_than_the_other_groups_is_judged_by_its_own_error() -> None:
    values = np.random.default_rng(8).normal(size=(7, 5, 40)) * np.array([1, 1, *[0.01] * 5])[:, None, None]
    alone = crossed_interval(values[1] - values[0])
    values[1] += 2.2 * alone.error - alone.value
    assert not below_another(values, lambda _, freedom: np.full(freedom.shape, 4.2))[0, 1]  # 4.2 / √2 is above 2.2


@pytest.mark.parametrize(("seeds", "scales"), [(3, (1, 1)), (5, (1, 1)), (3, (1, 3))])
def test_of_equal_groups_one_is_called_below_another_in_7_percent_at_most(seeds, scales):
    """Seven groups whose seeds differ the most, and where one spreads three times as far as another."""
    rng, scale = np.random.default_rng(7), np.linspace(*scales, 7)[:, None, None]
    values = 0.05 * rng.normal(size=(300, 7, seeds, 1)) + 0.2 * rng.normal(size=(300, 7, seeds, 30))
    freedoms = np.array([1e6, 60, 20, 10, 6, 4, 3, 2])
    known = studentized_range(7, freedoms)
    found = below_another(scale * values, lambda _, freedom: np.interp(1 / freedom, 1 / freedoms, known))
    assert 0 < found.any((1, 2)).mean() <= 0.085
    assert below_another(values[0] + 5 * np.arange(7)[:, None, None]).sum() == 21
