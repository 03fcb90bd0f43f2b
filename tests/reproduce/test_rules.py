"""How claims are decided: by whole intervals, for the groups that a row names."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from reproduce.claims import early, last_over_first
from reproduce.figure import (
    Claim,
    above,
    below,
    between,
    compared,
    each,
    holm,
    of_model,
    others,
    p_value,
    row,
    verdict,
    within,
)
from reproduce.groups import algorithms, grouping
from reproduce.selection import Runs, pick
from tests.reproduce.worlds import World, group
from topr_exp.evaluation.intervals import Interval, crossed_interval, t_interval


def made(value: float, low: float, high: float, seeds: int = 3) -> Interval:
    return Interval(value, low, high, seeds, error=(high - low) / 4, freedom=60)


NEAR, WIDE, FAR = made(0.0, -0.02, 0.02), made(0.02, -0.03, 0.07), made(0.1, 0.04, 0.2)


@pytest.mark.parametrize(
    ("found", "limit", "is_above", "is_below"),
    [
        (FAR, 0.0, True, False), (NEAR, 0.0, None, None), (made(-0.1, -0.2, -0.05), 0.0, False, True),
        (FAR, 0.04, None, None), (FAR, 0.2, None, None), (FAR, 0.039, True, False), (NEAR, -0.03, True, False),
        (None, 0.0, None, None),
    ],
)  # fmt: skip
def test_an_interval_decides_where_all_of_it_lies_on_one_side(found, limit, is_above, is_below):
    assert (above("", found, limit).holds, below("", found, limit).holds) == (is_above, is_below)


def test_p_at_an_end_of_the_interval_is_5_percent_also_where_seeds_seem_not_to_differ():
    seeds, both = t_interval([0.1, 0.2, 0.6]), crossed_interval(np.random.default_rng(5).normal(size=(4, 9)))
    for found in (seeds, both):
        for end in (found.low, found.high):
            assert p_value(found, end) == pytest.approx(0.05)
        assert p_value(found, found.value) == pytest.approx(1)
        assert p_value(found, found.low - 0.3) < 0.05 <= p_value(found, found.low + 0.01)
    same = crossed_interval(np.zeros((3, 9)))
    assert (p_value(same), p_value(same, 0.1)) == (1, 0)


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_decide_nothing(seeds: int) -> None:
    for found in (made(0.1, 0.09, 0.11, seeds), made(-0.1, -0.11, -0.09, seeds)):
        assert (above("", found).holds, below("", found).holds, above("", found).p) == (None, None, 1.0)
    assert between("", [("a", made(0.0, -0.01, 0.01, seeds))], 0.03).holds is None
    assert above("", made(0.1, 0.09, 0.11, seeds)).evidence.endswith("; fewer than 3 seeds")


def test_a_difference_of_nothing_is_equal() -> None:
    """Of the same runs, whatever they scored; that it is within limits is shown all the same."""
    assert row(RUNS, {}, text="", group="ppo", reference="ppo").word == "equal"
    assert row(RUNS, {}, text="", group="ppo", reference="ppo", limit=-0.03).word == "shown"
    assert row(RUNS, {}, text="", group="ppo", reference="ppo", limit=0.03, rule=within).word == "shown"


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
    claim = row(runs, {}, text="", group="topr", reference="tis")
    assert claim.word == word
    counts = [sum(level < 20 for level in levels) for levels in (first, second)]
    told = f"; collapsed: {counts[0]} of 3 against {counts[1]} of 3 seeds"
    assert claim.evidence.endswith(told) is any(counts)


@pytest.mark.parametrize(("found", "holds"), [((NEAR, NEAR), True), ((NEAR, WIDE), None), ((WIDE, FAR), False)])
def test_all_intervals_have_to_lie_within(found: tuple[Interval, ...], holds: bool | None) -> None:
    assert between("", [(str(i), each) for i, each in enumerate(found)], 0.03).holds is holds
    assert between("", [("a", None)], 0.03).evidence == "no runs"
    one, both = (between("", [("", each) for each in some], 0.03).p for some in ((FAR,), (FAR, NEAR)))
    assert both == 2 * one


@pytest.mark.parametrize(
    ("words", "together"),
    [((True, True), "shown"), ((True, False), "partly"), ((None, True), "partly"), ((False, None), "undecided"),
     ((False, False), "reversed"), ((), "nothing to decide")],
)  # fmt: skip
def test_a_figure_s_verdict(words: tuple[bool | None, ...], together: str) -> None:
    assert verdict([Claim("", holds, "") for holds in words]) == together


RUNS = World("fig1", "", [
    group("topr", 60, algo__beta=0.1), group("topr", 40, algo__beta=0.5), group("ppo", 50, maj=70, algo__beta=0.1),
    group("dpo", 30, algo__beta=0.5), group("is", 20, algo__beta=0.1, data__name="math"),
], "").runs()  # fmt: skip


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
    firsts = [record for record in pick(RUNS, choice) if record["settings"]["seed"] == 0]
    assert {round(100 * record["final"]["correct"]) for record in firsts} == levels


@pytest.mark.parametrize(
    ("group", "reference", "more", "word", "points"),
    [
        ("ppo", "dpo", {}, "shown", 20), ("dpo", "ppo", {}, "reversed", -20), ("ppo", None, {}, "shown", 20),
        ("dpo", "ppo", {"limit": -0.25}, "shown", -20), ("dpo", "ppo", {"rule": below}, "shown", -20),
        ("ppo", "dpo", {"metric": "maj"}, "shown", 20), ("dpo", None, {"metric": "invalid"}, "reversed", -10),
        ("ppo", "tis", {}, "undecided", None), ("tis", None, {}, "undecided", None),
    ],
)  # fmt: skip
def test_a_row_compares_its_group_with_its_reference_in_its_metric(group, reference, more, word, points):
    claim = row(RUNS, {}, text="", group=group, reference=reference, **more)
    assert claim.word == word
    if points is not None:
        assert float(claim.evidence.split(" ")[0]) == pytest.approx(points, abs=0.6)


def test_rows_for_each_group_and_against_all_others() -> None:
    large = partial(row, text="{name}: large", group="largest algo.beta", reference="smallest algo.beta")
    found = {claim.text: claim.word for claim in each("name", algorithms, large)(RUNS, {})}
    assert found["TOPR: large"] == "reversed"
    assert [*found] == [f"{name}: large" for name in ("TOPR", "PPO", "DPO", "IS")]
    one = Runs([record for record in RUNS if record["settings"]["algo.beta"] == 0.1])
    assert {claim.text: claim.word for claim in others("{} above TOPR", algorithms, "topr")(one, {})} == {
        "PPO above TOPR": "reversed", "IS above TOPR": "reversed",
    }  # fmt: skip
    assert [claim.word for claim in others("", algorithms, "topr", ahead=True)(one, {})] == ["shown", "shown"]


def test_numbers_are_compared_seed_by_seed() -> None:
    """90 % of the other's in each seed, which differ by half: at least 0.8 of it, and not as much."""
    numbers = {"ppo": {0: 27.0, 1: 36.0, 2: 18.0}, "dpo": {0: 30.0, 1: 40.0, 2: 20.0}}
    pair = {"first": "ppo", "other": "dpo"}

    def number(record: dict[str, object], extra: object) -> float:
        settings = record["settings"]
        assert isinstance(settings, dict)
        return numbers[settings["algo.name"]][settings["seed"]]

    claim = compared(RUNS, {}, compare="", groups=pair, number=number, written="{:.1f} points a nat", least=0.8)
    assert (claim.word, claim.evidence) == (
        "shown",
        "first 27.0 36.0 18.0 points a nat; other 30.0 40.0 20.0 points a nat",
    )
    assert compared(RUNS, {}, compare="", groups=pair, number=number).word == "reversed"
    assert compared(RUNS, {}, compare="", groups={**pair, "other": "tis"}, number=number).evidence == "no runs"


def test_after_a_quarter_is_between_two_points() -> None:
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 40, 80, 160], "pass@1": [10, 50, 90, 20]}).records()
    assert early(record, {}) == pytest.approx(50)  # at 40 of 160
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 20, 60, 160], "pass@1": [10, 30, 50, 20]}).records()
    assert early(record, {}) == pytest.approx(40)  # half-way from 20 to 60
    assert last_over_first({"metrics": {"grad_norm": [1.0] * 2 + [9.0] * 6 + [3.0] * 2}}, {}) == 3


def test_extra_numbers_are_those_of_the_model_and_of_its_seeds() -> None:
    extra = {"tiny 0": "a", "tiny_noise 0": "b", "tiny 1": "c", "tiny_noise 1": "d", "tiny 12": "e"}
    runs = Runs([*group("topr", 50).records(), *group("is", 50).records()])
    assert of_model(runs, extra) == ["a", "c"], "each once, by seed; there is none of seed 2"


def test_groupings_by_setting_name_and_choice() -> None:
    """Each of what groups.yaml may say."""

    def found(what: Any) -> dict[str, int]:
        return {name: len(group) for name, group in grouping(what)(RUNS).items()}

    assert found({"by": "algo.beta", "written": "{:.0%}", "words": {0.5: "half"}}) == {"10 %": 9, "half": 6}
    assert [*found({"by": "algo.name", "first": ["is", "dpo"]})] == ["is", "dpo", "ppo", "topr"]
    assert found({"by": "algo.name", "only": ["tis", "is"]}) == {"is": 3}
    assert found({"of": "algorithms", "named": "[dp]po"}) == {"ppo": 3, "dpo": 3}
    assert found({"a": ["ppo", "tis", "is"], "b": ["tis", "ppo"]}) == {"a": 6}
    assert found(["data_sets", "bare_betas"]) == {"GSM8K-like, 0.1": 6, "GSM8K-like, 0.5": 6, "MATH-like, 0.1": 3}
