"""Means and 95 % intervals of the report against plain arithmetic."""

from __future__ import annotations

import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from topr_exp.report.estimates import as_printed, estimate, majority_name, reward_name
from topr_exp.report.runs import Run

BASE = evaluation(30, 40, 20, ends=(25, 36))


def runs(*finals: tuple[float, float, float]) -> list[Run]:
    return [made_run(f"r{i}", BASE, evaluation(*each, ends=(each[0] - 4, each[0] + 5)), seed=i)
            for i, each in enumerate(finals)]  # fmt: skip


@pytest.mark.parametrize(("name", "place"), [("pass@1", 0), ("maj@8", 1), ("invalid", 2)])
def test_a_group_s_figure_is_its_mean_with_the_interval_over_seeds(name: str, place: int) -> None:
    finals = [(60.0, 70.0, 9.0), (63.0, 66.0, 7.0), (58.5, 71.0, 8.0)]
    found = estimate(runs(*finals), name)
    assert found is not None
    expected = by_hand.interval([each[place] / 100 for each in finals])
    assert (found.value, found.low, found.high) == pytest.approx(expected, abs=1e-4)
    assert found.seeds == 3
    base = estimate(runs(*finals), name, "base")
    assert base is not None
    assert base.value == pytest.approx((30, 40, 20)[place] / 100)


def test_an_interval_of_shares_ends_where_shares_end() -> None:
    found = estimate(runs((99, 1, 1), (80, 2, 1), (99, 3, 1)), "pass@1")
    assert found is not None
    assert (found.high, found.low) == (1.0, pytest.approx(by_hand.interval([0.99, 0.8, 0.99])[1], abs=1e-4))


def test_a_single_run_has_the_interval_over_problems_that_was_measured() -> None:
    (one,) = runs((60, 70, 5))
    for name, ends in (("pass@1", (0.56, 0.65)), ("maj@8", (0.59, 0.68))):
        found = estimate([one], name)
        assert found is not None
        assert (found.low, found.high, found.seeds) == (pytest.approx(ends[0]), pytest.approx(ends[1]), 1)
    from_error = estimate([made_run("x", BASE, evaluation(60, 70, 5, se=2.0))], "pass@1")  # 1.96 standard errors
    assert from_error is not None
    assert (from_error.low, from_error.high) == pytest.approx((0.6 - 0.0392, 0.6 + 0.0392))
    assert estimate([made_run("x", BASE, {})], "pass@1") is None


def test_a_run_that_is_not_finished_is_not_averaged_with_those_that_are() -> None:
    made = runs((60, 70, 9), (50, 66, 7), (10, 20, 7))
    made[2].status = "running"
    found = estimate(made, "pass@1")
    assert found is not None
    assert (found.value, found.seeds) == (pytest.approx(0.55), 2)
    so_far = estimate(made[2:], "pass@1")
    assert so_far is not None
    assert so_far.value == pytest.approx(0.1)


def test_the_headline_vote_is_the_one_with_most_completions() -> None:
    run = made_run("x", BASE, {"maj@2": 0.1, "maj@4": 0.3, "maj@k": {}, "maj@4_se": 0.1})
    assert majority_name([made_run("y", {}, run.summary["final"])]) == "maj@4"
    assert majority_name([made_run("x", BASE, {"pass@1": 0.1})]) is None


def test_a_mean_reward_is_no_share() -> None:
    """Its interval may lie beyond 1, and nothing of it is in percent."""
    made, rewards = runs((60.0, 70.0, 9.0), (63.0, 66.0, 7.0)), [-0.5, 2.5]
    assert reward_name(made) is None
    for run, reward in zip(made, rewards, strict=True):
        run.summary["final"] |= {"mean_reward": reward, "mean_reward_se": 0.1}
    assert reward_name(made) == "mean_reward"
    found = estimate(made, "mean_reward")
    assert found is not None
    expected = by_hand.interval(rewards)
    assert (found.value, found.low, found.high) == pytest.approx(expected, rel=0.005)
    assert found.high > 1
    single = estimate(made[1:], "mean_reward")
    assert single is not None
    assert (single.low, single.high) == pytest.approx((2.304, 2.696))
    assert as_printed(single, "mean_reward") == "2.5 [2.3, 2.7]"
    assert as_printed(single, "pass@1") == "250.0 [230.4, 269.6]"
