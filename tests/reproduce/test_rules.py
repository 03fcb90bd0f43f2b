"""Rules that decide claims: by whole intervals, among all claims of a figure, for the groups that a claim names."""

import numpy as np
import pytest

from reproduce.claims import (
    BESIDE_CLIFF,
    Claim,
    above,
    all_within,
    below,
    ends_above,
    holm,
    p_value,
    verdict,
    within,
)
from reproduce.selection import pick
from tests.conftest import each_row, values_of
from tests.reproduce.worlds import group, planted_runs
from topr_exp.report import Interval, crossed_interval, t_interval


def make_interval(value, low, high, seeds=3):
    return Interval(value, low, high, seeds, error=(high - low) / 4, freedom=60)


INTERVALS = {
    "near": make_interval(0.0, -0.02, 0.02),
    "wide": make_interval(0.02, -0.03, 0.07),
    "far": make_interval(0.1, 0.04, 0.2),
    "none": None,
}
# An interval | a limit | whether it lies above
SIDES = """
"far" | 0.039 | True
"far" | 0.04 | None
"far" | 0.21 | False
"near" | 0.0 | None
"none" | 0.0 | None
"""


@each_row("name limit is_above", SIDES, literals=True)
def test_an_interval_decides_where_all_of_it_lies_on_one_side(name, limit, is_above):
    is_below = {True: False, False: True, None: None}[is_above]

    assert above("", INTERVALS[name], limit).holds is is_above
    assert below("", INTERVALS[name], limit).holds is is_below


def test_p_at_an_end_of_the_interval_is_5_percent():
    over_seeds = t_interval([0.1, 0.2, 0.6])
    over_problems_too = crossed_interval(np.random.default_rng(5).normal(size=(4, 9)))
    for interval in (over_seeds, over_problems_too):
        assert p_value(interval, interval.low) == pytest.approx(0.05)
        assert p_value(interval, interval.high) == pytest.approx(0.05)
        assert p_value(interval, interval.value) == pytest.approx(1)


def test_equal_scores_have_no_doubt():
    interval = crossed_interval(np.zeros((3, 9)))

    assert p_value(interval) == 1
    assert p_value(interval, 0.1) == 0


@pytest.mark.parametrize("rule", [above, below, lambda text, interval: within(text, interval, 0.3)])
def test_fewer_than_three_seeds_decide_nothing(rule):
    claim = rule("", make_interval(0.1, 0.09, 0.11, seeds=2))

    assert claim.holds is None
    assert claim.p == 1
    assert claim.evidence.endswith("; fewer than 3 seeds")


# Where TIS ends at a rate of 3e-4, and at 60 % at 1e-4 | which of both a claim compares | whether beside a cliff
CLIFFS = """
40 | "best optim.lr tis" | True
50 | "best optim.lr tis" | False
40 | "tis optim.lr=0.0003" | False
"""


@each_row("neighbour rate is_beside", CLIFFS, literals=True)
def test_a_claim_says_that_the_lower_ones_best_rate_stands_beside_a_cliff(neighbour, rate, is_beside):
    runs = planted_runs(group("topr", 80), group("tis", 60), group("tis", neighbour, optim__lr=3e-4))

    for upper, lower in (("topr", rate), (rate, "topr")):
        claim = ends_above("", upper, lower)(runs, {})

        assert claim.holds is not None
        assert claim.beside_cliff is is_beside
        assert claim.evidence.endswith(BESIDE_CLIFF) is is_beside


WITHIN = """
"near" | "near" | True
"near" | "wide" | None
"wide" | "far" | False
"""


@each_row("first second holds", WITHIN, literals=True)
def test_all_intervals_have_to_lie_within(first, second, holds):
    intervals = {"a": INTERVALS[first], "b": INTERVALS[second]}

    claim = all_within("", intervals, 0.03)

    assert claim.holds is holds
    if holds is False:
        assert claim.p == 2 * p_value(INTERVALS["far"], 0.03), "at the nearer limit, of two intervals"


def test_holm_marks_what_is_decided_alone():
    """0.01 and 0.0124 count among 5 and 4; 0.02 does not among 3, and then 0.024 neither; an exact claim is no part."""
    claims = [
        Claim("", True, "", 0.02),
        Claim("", False, "", 0.01),
        Claim("", None, "", 0.6),
        Claim("", True, "", 0.024),
        Claim("", False, "", 0.0124),
        Claim("", True, "", None),
    ]

    words = values_of(holm(claims), "word")

    assert words == ["shown alone", "reversed", "undecided", "shown alone", "reversed", "shown"]
    assert verdict(holm(claims)) == "partly"


VERDICTS = """
(True, False) | "partly"
(False, None) | "undecided"
(False, False) | "reversed"
() | "nothing to decide"
"""


@each_row("holds word", VERDICTS, literals=True)
def test_a_figures_verdict_is_of_all_its_claims(holds, word):
    assert verdict([Claim("", is_shown, "") for is_shown in holds]) == word


COLLAPSED = """
(70.0, 71.0, 70.0) | (5.0, 5.0, 4.0) | "shown" | "0 of 3 against 3 of 3"
(50.0, 51.0, 19.0) | (5.0, 6.0, 5.0) | "undecided" | "1 of 3 against 3 of 3"
(2.0, 1.0, 2.0) | (50.0, 51.0, 50.0) | "reversed" | "3 of 3 against 0 of 3"
"""


@each_row("first second word counts", COLLAPSED, literals=True)
def test_a_group_with_collapsed_seeds_is_above_none(first, second, word, counts):
    """A seed below half of the base's 40 % has collapsed."""
    base = {"correct": 40.0}
    runs = planted_runs(group("topr", first, base=base), group("tis", second, base=base))

    claim = ends_above("", "topr", "tis")(runs, {})

    assert claim.word == word
    assert claim.evidence.endswith(f"; collapsed: {counts} seeds")


# ---- groups that claims name

RUNS = planted_runs(
    group("topr", 60, algo__beta=0.1),
    group("topr", 40, algo__beta=0.5),
    group("ppo", 50, maj=70, algo__beta=0.1),
    group("dpo", 30, algo__beta=0.5),
    group("is", 20, algo__beta=0.1, data__name="math"),
)


# A choice | where the runs of seed 0 end that it names, in percent
CHOICES = """
"topr algo.beta=0.5" | [40]
"ppo,dpo" | [30, 50]
"ppo,tis" | []
"best algo.beta topr" | [60]
"largest algo.beta" | [30, 40]
"smallest algo.beta topr" | [60]
"topr,is data.name=math" | [20]
"""


@each_row("choice levels", CHOICES, literals=True)
def test_a_choice_names_its_runs(choice, levels):
    records = [record for record in pick(RUNS, choice) if record["settings"]["seed"] == 0]

    shares = [round(100 * record["final"]["correct"]) for record in records]
    assert sorted(shares) == levels


# A group | its reference, None for the base | what else the claim says | its word | the difference in points
COMPARED = """
"ppo" | "dpo" | {} | "shown" | 20
"dpo" | "ppo" | {} | "reversed" | -20
"dpo" | "ppo" | {"limit": -0.25} | "shown" | -20
"ppo" | "dpo" | {"metric": "maj"} | "shown" | 20
"dpo" | None | {"metric": "invalid"} | "reversed" | -10
"ppo" | "ppo" | {} | "equal" | 0
"""


@each_row("name reference options word points", COMPARED, literals=True)
def test_a_group_is_compared_with_its_reference_in_its_metric(name, reference, options, word, points):
    claim = ends_above("", name, reference, **options)(RUNS, {})

    assert claim.word == word
    assert points_of(claim) == pytest.approx(points, abs=0.6)


def points_of(claim):
    """The difference that a claim rests on."""
    return float(claim.evidence.removeprefix("difference: ").split(" ")[0])


def test_a_group_is_within_a_limit_of_its_reference():
    claim = ends_above("", "ppo", "ppo", limit=0.03, rule=within)(RUNS, {})

    assert claim.word == "shown"
    assert points_of(claim) == 0
