"""Rules that decide claims: by whole intervals, for the groups that a claim names."""

from typing import Any

import numpy as np
import pytest

from reproduce.claims import (
    BESIDE_CLIFF,
    Claim,
    above,
    all_within,
    below,
    ends_above,
    ends_above_others,
    for_each,
    holm,
    number_above,
    others_end_above,
    p_value,
    verdict,
    within,
)
from reproduce.figure import numbers_of_seeds
from reproduce.figures.fig7 import norm_growth
from reproduce.figures.table1 import early_score
from reproduce.groups import algorithms, by_choice, by_setting, crossed, data_sets
from reproduce.selection import Runs, pick
from tests.reproduce.worlds import World, group
from topr_exp.report import Interval, crossed_interval, t_interval


def make_interval(value: float, low: float, high: float, seeds: int = 3) -> Interval:
    return Interval(value, low, high, seeds, error=(high - low) / 4, freedom=60)


NEAR, WIDE, FAR = make_interval(0.0, -0.02, 0.02), make_interval(0.02, -0.03, 0.07), make_interval(0.1, 0.04, 0.2)


@pytest.mark.parametrize(
    ("interval", "limit", "is_above", "is_below"),
    [
        (FAR, 0.0, True, False), (NEAR, 0.0, None, None), (make_interval(-0.1, -0.2, -0.05), 0.0, False, True),
        (FAR, 0.04, None, None), (FAR, 0.2, None, None), (FAR, 0.039, True, False), (NEAR, -0.03, True, False),
        (None, 0.0, None, None),
    ],
)  # fmt: skip
def test_an_interval_decides_where_all_of_it_lies_on_one_side(interval, limit, is_above, is_below):
    assert above("", interval, limit).holds == is_above
    assert below("", interval, limit).holds == is_below


def test_p_at_an_end_of_the_interval_is_5_percent_also_where_seeds_seem_not_to_differ():
    over_seeds = t_interval([0.1, 0.2, 0.6])
    over_problems_too = crossed_interval(np.random.default_rng(5).normal(size=(4, 9)))
    for interval in (over_seeds, over_problems_too):
        for end in (interval.low, interval.high):
            assert p_value(interval, end) == pytest.approx(0.05)
        assert p_value(interval, interval.value) == pytest.approx(1)
        assert p_value(interval, interval.low - 0.3) < 0.05 <= p_value(interval, interval.low + 0.01)
    no_difference = crossed_interval(np.zeros((3, 9)))
    assert p_value(no_difference) == 1
    assert p_value(no_difference, 0.1) == 0


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_decide_nothing(seeds: int) -> None:
    for value in (0.1, -0.1):
        interval = make_interval(value, value - 0.01, value + 0.01, seeds)
        assert above("", interval).holds is None
        assert below("", interval).holds is None
        assert above("", interval).p == 1
        assert above("", interval).evidence.endswith("; fewer than 3 seeds")
    assert all_within("", {"a": make_interval(0.0, -0.01, 0.01, seeds)}, 0.03).holds is None


def test_a_difference_of_nothing_is_equal() -> None:
    """Of the same runs, whatever they scored; that it is within limits is shown all the same."""
    assert decided(ends_above("", "ppo", "ppo")).word == "equal"
    assert decided(ends_above("", "ppo", "ppo", limit=-0.03)).word == "shown"
    assert decided(ends_above("", "ppo", "ppo", limit=0.03, rule=within)).word == "shown"


def test_holm_marks_what_is_decided_alone() -> None:
    """0.01 and 0.016 count among 5, 4; 0.02 does not among 3, and then 0.024 neither; an exact claim is no part."""
    claims = [Claim("", holds, "", p) for holds, p in
              ((True, 0.02), (False, 0.01), (None, 0.6), (True, 0.024), (False, 0.0124), (True, None))]  # fmt: skip
    words = [claim.word for claim in holm(claims)]
    assert words == ["shown alone", "reversed", "undecided", "shown alone", "reversed", "shown"]
    assert verdict(holm(claims)) == verdict(holm(claims[:1] * 3)) == "partly"


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((70.0, 71.0, 70.0), (50.0, 51.0, 50.0), "shown"), ((70.0, 71.0, 70.0), (5.0, 5.0, 4.0), "shown"),
        ((50.0, 51.0, 19.0), (5.0, 6.0, 5.0), "undecided"), ((19.0, 18.0, 19.0), (2.0, 1.0, 2.0), "undecided"),
        ((2.0, 1.0, 2.0), (19.0, 18.0, 19.0), "undecided"), ((2.0, 1.0, 2.0), (50.0, 51.0, 50.0), "reversed"),
    ],
)  # fmt: skip
def test_a_group_with_collapsed_seeds_is_above_none(first, second, word):
    """Half of the base's is 20 %; the seeds that collapsed are counted, whoever they belong to."""
    base = {"correct": 40.0}
    runs = World("fig1", "", [group("topr", first, base=base), group("tis", second, base=base)], "").runs()
    claim = ends_above("", "topr", "tis")(runs, {})
    assert isinstance(claim, Claim)
    assert claim.word == word
    counts = [sum(level < 20 for level in levels) for levels in (first, second)]
    note = f"; collapsed: {counts[0]} of 3 against {counts[1]} of 3 seeds"
    assert claim.evidence.endswith(note) is any(counts)


@pytest.mark.parametrize(
    ("neighbour", "rate", "beside"),
    [(40, "best optim.lr tis", True), (50, "best optim.lr tis", False), (40, "tis optim.lr=0.0003", False)],
)
def test_a_claim_says_that_the_lower_one_s_best_rate_stands_beside_a_cliff(neighbour, rate, beside):
    runs = World("fig1", "", [group("topr", 80), group("tis", 60), group("tis", neighbour, optim__lr=3e-4)], "").runs()
    for claim in (ends_above("", "topr", rate)(runs, {}), ends_above("", rate, "topr")(runs, {})):
        assert isinstance(claim, Claim)
        assert claim.holds is not None
        assert claim.evidence.endswith(BESIDE_CLIFF) is claim.beside_cliff is beside


@pytest.mark.parametrize(("intervals", "holds"), [((NEAR, NEAR), True), ((NEAR, WIDE), None), ((WIDE, FAR), False)])
def test_all_intervals_have_to_lie_within(intervals: tuple[Interval, ...], holds: bool | None) -> None:
    assert all_within("", {str(i): interval for i, interval in enumerate(intervals)}, 0.03).holds is holds
    assert all_within("", {"a": None}, 0.03).evidence == "no runs"
    p_of_one, p_of_two = all_within("", {"a": FAR}, 0.03).p, all_within("", {"a": FAR, "b": NEAR}, 0.03).p
    assert p_of_one is not None
    assert p_of_two == 2 * p_of_one


@pytest.mark.parametrize(
    ("holds", "word"),
    [((True, True), "shown"), ((True, False), "partly"), ((None, True), "partly"), ((False, None), "undecided"),
     ((False, False), "reversed"), ((), "nothing to decide")],
)  # fmt: skip
def test_a_figure_s_verdict(holds: tuple[bool | None, ...], word: str) -> None:
    assert verdict([Claim("", is_shown, "") for is_shown in holds]) == word


# ---- groups that claims name

RUNS = World("fig1", "", [
    group("topr", 60, algo__beta=0.1), group("topr", 40, algo__beta=0.5), group("ppo", 50, maj=70, algo__beta=0.1),
    group("dpo", 30, algo__beta=0.5), group("is", 20, algo__beta=0.1, data__name="math"),
], "").runs()  # fmt: skip


def decided(decision: Any) -> Claim:
    claim = decision(RUNS, {})
    assert isinstance(claim, Claim)
    return claim


@pytest.mark.parametrize(
    ("choice", "levels"),
    [
        ("topr", {60, 40}), ("topr algo.beta=0.5", {40}), ("algo.beta=0.5", {40, 30}), ("all", {60, 40, 50, 30, 20}),
        ("ppo,dpo", {50, 30}), ("ppo,tis", set()), ("tis", set()), ("best algo.beta topr", {60}),
        ("largest algo.beta topr", {40}), ("smallest algo.beta topr", {60}), ("best algo.name ppo,dpo,is", {50}),
        ("best algo.name ppo,tis", set()), ("largest algo.beta", {40, 30}), ("topr,is data.name=math", {20}),
    ],
)  # fmt: skip
def test_the_runs_that_a_choice_names(choice: str, levels: set[int]) -> None:
    first_seeds = [record for record in pick(RUNS, choice) if record["settings"]["seed"] == 0]
    assert {round(100 * record["final"]["correct"]) for record in first_seeds} == levels


@pytest.mark.parametrize(
    ("names", "options", "word", "points"),
    [
        (("ppo", "dpo"), {}, "shown", 20), (("dpo", "ppo"), {}, "reversed", -20), (("ppo", None), {}, "shown", 20),
        (("dpo", "ppo"), {"limit": -0.25}, "shown", -20), (("dpo", "ppo"), {"rule": below}, "shown", -20),
        (("ppo", "dpo"), {"metric": "maj"}, "shown", 20), (("dpo", None), {"metric": "invalid"}, "reversed", -10),
        (("ppo", "tis"), {}, "undecided", None), (("tis", None), {}, "undecided", None),
    ],
)  # fmt: skip
def test_a_group_is_compared_with_its_reference_in_its_metric(names, options, word, points):
    claim = decided(ends_above("", *names, **options))
    assert claim.word == word
    if points is not None:
        assert float(claim.evidence.split(" ")[0]) == pytest.approx(points, abs=0.6)


def test_claims_for_each_group_and_against_all_others() -> None:
    def claims_of(name: str) -> list[Any]:
        return [ends_above(f"{name}: large", "largest algo.beta", "smallest algo.beta")]

    words = {claim.text: claim.word for claim in for_each(algorithms, claims_of)(RUNS, {})}
    assert words["TOPR: large"] == "reversed"
    assert list(words) == [f"{name}: large" for name in ("TOPR", "PPO", "DPO", "IS")]
    small_beta = Runs([record for record in RUNS if record["settings"]["algo.beta"] == 0.1])
    claims_about_others = others_end_above(lambda name: f"{name} above TOPR", algorithms, "topr")(small_beta, {})
    assert {claim.text: claim.word for claim in claims_about_others} == {
        "PPO above TOPR": "reversed",
        "IS above TOPR": "reversed",
    }
    claims_about_topr = ends_above_others(lambda name: name, algorithms, "topr")(small_beta, {})
    assert [claim.word for claim in claims_about_topr] == ["shown", "shown"]


def test_numbers_are_compared_seed_by_seed() -> None:
    """90 % of the other's in each seed, which differ by half: at least 0.8 of it, and not as much."""
    numbers = {"ppo": {0: 27.0, 1: 36.0, 2: 18.0}, "dpo": {0: 30.0, 1: 40.0, 2: 20.0}}

    def number(record: dict[str, Any], extra: object) -> float:
        return numbers[record["settings"]["algo.name"]][record["settings"]["seed"]]

    first, second = ("first", "ppo"), ("other", "dpo")
    claim = decided(number_above("", first, second, number, form="{:.1f} points a nat", factor=0.8))
    assert claim.word == "shown"
    assert claim.evidence == "first 27.0 36.0 18.0 points a nat; other 30.0 40.0 20.0 points a nat"
    assert decided(number_above("", first, second, number)).word == "reversed"
    assert decided(number_above("", first, ("other", "tis"), number)).evidence == "no runs"


def test_after_a_quarter_is_between_two_points() -> None:
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 40, 80, 160], "pass@1": [10, 50, 90, 20]}).records()
    assert early_score(record, {}) == pytest.approx(50)  # at 40 of 160
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 20, 60, 160], "pass@1": [10, 30, 50, 20]}).records()
    assert early_score(record, {}) == pytest.approx(40)  # half-way from 20 to 60
    assert norm_growth({"metrics": {"grad_norm": [1.0] * 2 + [9.0] * 6 + [3.0] * 2}}, {}) == 3


def test_extra_numbers_are_those_of_the_model_and_of_its_seeds() -> None:
    extra = {"tiny 0": "a", "tiny_noise 0": "b", "tiny 1": "c", "tiny_noise 1": "d", "tiny 12": "e"}
    runs = Runs([*group("topr", 50).records(), *group("is", 50).records()])
    assert numbers_of_seeds(runs, extra) == ["a", "c"], "each once, by seed; there is none of seed 2"


def test_groups_by_the_values_of_a_setting_and_by_choices() -> None:
    def sizes(split: Any) -> dict[str, int]:
        return {name: len(members) for name, members in split(RUNS).items()}

    assert sizes(by_setting("algo.beta", "{:.0%}", words={0.5: "half"})) == {"10 %": 9, "half": 6}
    assert list(sizes(by_setting("algo.name", first=["is", "dpo"]))) == ["is", "dpo", "ppo", "topr"]
    assert sizes(by_setting("algo.name", only=["tis", "is"])) == {"is": 3}
    assert sizes(by_choice({"a": ["ppo", "tis", "is"], "b": ["tis", "ppo"]})) == {"a": 6}
    by_data_and_beta = crossed(data_sets, by_setting("algo.beta", "{:g}"))
    assert sizes(by_data_and_beta) == {"GSM8K-like, 0.1": 6, "GSM8K-like, 0.5": 6, "MATH-like, 0.1": 3}
