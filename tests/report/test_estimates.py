"""Means and 95 % intervals of the report against plain arithmetic."""

import numpy as np
import pytest

from tests import by_hand
from tests.conftest import each_row, refused
from tests.report.made_up import evaluation, made_run
from topr_exp.report.estimates import difference_between, estimate, estimate_text, headlines
from topr_exp.report.repetitions import Repetitions, counts_as_text, difference, problem_shares

BASE = evaluation(30, 40, 20, ends=(25, 36))


@pytest.fixture
def runs():
    """Of two seeds, which end at 60 and 50 %."""
    finals = [evaluation(60, 70, 9, ends=(56, 65)), evaluation(50, 66, 7, ends=(46, 55))]
    return [made_run(f"r{seed}", BASE, final, seed=seed) for seed, final in enumerate(finals)]


def ends(runs, name):
    interval = estimate(runs, name)
    return interval.value, interval.low, interval.high


def test_a_single_run_has_the_interval_over_problems_that_was_measured(runs):
    assert ends(runs[:1], "pass@1") == pytest.approx((0.60, 0.56, 0.65))
    assert ends(runs[:1], "maj@8") == pytest.approx((0.70, 0.59, 0.68))
    assert estimate([made_run("x", BASE, {})], "pass@1") is None


@pytest.mark.parametrize("points", [{}, {"pass@k": {"1": {"low": None, "high": 0.65}}}], ids=["none", "damaged"])
def test_without_a_measured_interval_it_is_1_96_standard_errors(points):
    run = made_run("x", BASE, evaluation(60, 70, 5) | {"pass@1_se": 0.02} | points)

    assert ends([run], "pass@1") == pytest.approx((0.6, 0.6 - 0.0392, 0.6 + 0.0392))


def test_an_unfinished_run_has_no_final_figure(runs):
    unfinished = made_run("x", BASE, evaluation(10, 20, 7), seed=2)
    unfinished.status = "running"

    assert ends([*runs, unfinished], "pass@1") == ends(runs, "pass@1")
    assert estimate([unfinished], "pass@1") is None
    assert estimate([unfinished], "pass@1", "base").value == 0.3


CASES = """
{} | 50
{"sources": 10} | 10
"""


@each_row("sources cases", CASES, literals=True)
def test_nothing_invalid_has_the_interval_of_so_many_sources(sources, cases):
    """The rule of three: of n cases none, at most 1 − 0.025^(1/n); solutions to one problem are one case."""
    run = made_run("x", BASE, evaluation(60, 70, 0) | sources)
    assert ends([run], "invalid") == pytest.approx((0.0, 0.0, 1 - 0.025 ** (1 / cases)))


@pytest.mark.parametrize("value", [None, "text", [], {}, 0.5, -3], ids=str)
def test_a_damaged_figure_costs_no_other_anything(value):
    run = made_run("x", BASE, evaluation(60, 70, 0) | {"problems": value, "pass@1": str(value)})

    assert estimate([run], "pass@1") is None
    assert estimate([run], "invalid").value == 0.0
    assert estimate([run], "correct").value == 0.6


def test_votes_of_other_numbers_of_completions_are_not_compared(runs):
    votes_of_eight, votes_of_four = runs
    final = votes_of_four.summary["final"]
    final["maj@4"] = final.pop("maj@8")

    assert difference_between([votes_of_eight], [votes_of_four], "maj@8") == "no maj@8 of both"


def test_a_mean_reward_is_no_share(runs):
    for run, reward in zip(runs, (-0.5, 2.5), strict=True):
        run.summary["final"] |= {"mean_reward": reward, "mean_reward_se": 0.1}

    assert headlines(runs) == ["pass@1", "mean_reward", "maj@8"]
    assert ends(runs, "mean_reward") == pytest.approx(by_hand.interval([-0.5, 2.5]))
    assert estimate_text(runs[1:], "mean_reward") == "2.5 [2.3, 2.7]"
    assert estimate_text(runs[1:], "pass@1") == "50.0 [46.0, 55.0]"


# A figure | a column of a record | counts of three problems' first solutions, then of their second ones | means of both
SOLUTIONS = """
"pass@1" | "correct" | "4 0 1 2 0 3" | [0.75, 0, 0.5]
"invalid" | "invalid" | "0 4 1 0 2 1" | [0, 0.75, 0.25]
"maj" | "maj" | "1000 0 500 0 250 1000" | [0.5, 0.125, 0.75]
"maj@4" | "maj" | "1000 0 500 0 250 1000" | [0.5, 0.125, 0.75]
"""


@each_row("figure column counts shares", SOLUTIONS, literals=True)
def test_a_verifiers_solutions_to_a_problem_are_averaged_and_no_others(figure, column, counts, shares):
    """It is asked of all first solutions, then of all second ones; of each there are four verdicts."""
    results = {"n": 4, "k": 4, "solutions": 2, "of_problems": {column: counts}}

    assert problem_shares(results, figure).tolist() == shares
    with refused("^maj@2: expected pass@1, correct, incorrect, invalid, maj or maj@4$"):
        problem_shares(results, "maj@2")


def repetitions(level_of_seed):
    """Records in this order of seeds, of problems that differ around a level in percent."""
    records = []
    for seed, level in level_of_seed.items():
        counts = {"correct": counts_as_text(level + np.arange(-10, 11))}
        records.append({"settings": {"seed": seed}, "final": {"n": 100, "of_problems": counts}})
    return Repetitions(records)


def test_a_difference_is_paired_by_the_seeds_that_both_have_wherever_they_stand():
    reference = repetitions({3: 55, 2: 40, 1: 60, 0: 20})
    group = repetitions({1: 65, 4: 30, 2: 45, 3: 60})  # 5 points above at each seed

    interval = difference(reference, group)

    assert interval.seeds == 3
    for share in (interval.value, interval.low, interval.high):
        assert share == pytest.approx(0.05)
    assert difference(reference, repetitions({4: 30, 5: 60})) is None
