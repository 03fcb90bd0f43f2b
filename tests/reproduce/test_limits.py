"""Table 1 as measured: worlds in which its claims are true, and worlds in which they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from reproduce.limits import early, table_1
from tests.reproduce.worlds import Group, Level, World, check_all, group
from topr_exp.report.selection import Runs

NAMES = {"sft": "positives only", "topr": "TOPR", "naive": "naive REINFORCE", "is": "IS", "tis": "TIS"}
NO_WEIGHT = "positives only: no weight on negatives"
RISES = {algo: f"{NAMES[algo]}: bounded, uses negatives; ends above the base" for algo in ("topr", "is", "tis")}
FALLS = "naive REINFORCE: unbounded below; ends below the base"
VARIES = " with TOPR's limits (trace of the covariance, times TOPR's)"
LITTLE = {algo: f"{NAMES[algo]}: at the same weights a gradient varies at most twice as much as{VARIES}"
          for algo in ("sft", "tis", "naive")}  # fmt: skip
MUCH = f"IS: at the same weights a gradient varies more than{VARIES}"
QUARTER = "fast learning: after a quarter of the updates TOPR is ahead of {} (pass@1, first problems, %)"
AHEAD = {algo: QUARTER.format(NAMES[algo]) for algo in ("tis", "is")}

Times = Mapping[str, float | Sequence[float]]


def variances(times: Times) -> dict[str, dict[str, list[float]]]:
    """The variance of a gradient, times TOPR's: of all seeds, or of each. TOPR's own differs from seed to seed by far;
    what stands beside it, the squared norm of the mean, is the other way round, and so is another model's."""
    found = {}
    for seed, own in enumerate((2.0, 0.1, 70.0)):
        of_seed = {name: each[seed] if isinstance(each, Sequence) else each for name, each in times.items()}
        for model, power in (("tiny", 1), ("tiny_noise", -1)):
            found[f"{model} {seed}"] = {"topr": [own, 1.0]} | {
                name: [own * each**power, each**-power] for name, each in of_seed.items()
            }
    return found


def curve(quarter: float, otherwise: float) -> dict[str, list[float]]:
    """pass@1 at the start, after 1/8 of the updates, a quarter, a half, and at the end."""
    return {"step": [0, 25, 50, 100, 200], "pass@1": [30, otherwise, quarter, otherwise, otherwise]}


def world(
    what: str,
    levels: Mapping[str, Level],
    quarter: Mapping[str, float],
    times: Times,
    weight: float = 0.0,
    **decided: Sequence[str],
) -> World:
    """levels: pass@1 at the end; quarter: after a quarter of the updates, where at other times the others lead."""
    first = min(quarter.values()) + max(quarter.values())
    groups = [
        group(algo, level, curve=curve(quarter.get(algo, 50), first - quarter.get(algo, 50)),
              metrics={"grad_norm": [1.0] * 20, "weight_neg": [0.0 if algo == "sft" else 0.5] * 19
                       + [weight if algo == "sft" else 0.5]})
        for algo, level in levels.items()
    ]  # fmt: skip
    return World("table1", what, groups, extra=variances(times), **decided)


def table_1_worlds() -> Sequence[World]:
    return [
        world("TOPR, IS and TIS rise from 30, naive falls; positives only give negatives no weight; a gradient of "
              "positives only varies 1.9 times as much as TOPR's, of TIS half, of naive 1.7, of IS 1.3 times; after a "
              "quarter TOPR has 60, TIS 50, IS 55",
              {"sft": 50, "topr": 60, "naive": 5, "is": 45, "tis": 70}, {"topr": 60, "tis": 50, "is": 55},
              {"sft": 1.9, "tis": 0.5, "naive": 1.7, "is": 1.3},
              shown=(NO_WEIGHT, *RISES.values(), FALLS, *LITTLE.values(), MUCH, *AHEAD.values())),
        world("TOPR, IS and TIS fall, naive rises; positives only weigh negatives by 0.2 at the end; gradients vary "
              "2.1, 3 and 20 times as much, of IS less; after a quarter TOPR is behind",
              {"sft": 50, "topr": 10, "naive": 60, "is": 20, "tis": 5}, {"topr": 40, "tis": 50, "is": 45},
              {"sft": 2.1, "tis": 3.0, "naive": 20.0, "is": 0.8}, weight=0.2,
              not_shown=(NO_WEIGHT, *RISES.values(), FALLS, *LITTLE.values(), MUCH, *AHEAD.values())),
        world("IS alone falls, beside naive, which varies most; TOPR is ahead of TIS and behind IS",
              {"sft": 50, "topr": 60, "naive": 5, "is": 10, "tis": 45}, {"topr": 50, "tis": 40, "is": 60},
              {"sft": 0.7, "tis": 0.8, "naive": 17.0, "is": 600.0},
              shown=(RISES["topr"], RISES["tis"], FALLS, LITTLE["sft"], LITTLE["tis"], MUCH, AHEAD["tis"]),
              not_shown=(RISES["is"], LITTLE["naive"], AHEAD["is"])),
        world("from seed to seed gradients vary from a tenth to ten times as much, and runs end anywhere",
              {"sft": 50, "topr": (85.0, 10.0, 35.0), "naive": (85.0, 10.0, 35.0), "is": (85.0, 10.0, 35.0),
               "tis": (85.0, 10.0, 35.0)}, {"topr": 50, "tis": 50, "is": 50},
              dict.fromkeys(("sft", "tis", "naive", "is"), (0.1, 1.0, 10.0)),
              shown=(NO_WEIGHT,), undecided=(*RISES.values(), FALLS, *LITTLE.values(), MUCH)),
        World("table1", "TOPR alone was run", [group("topr", 60)],
              shown=(RISES["topr"],),
              undecided=(NO_WEIGHT, FALLS, RISES["is"], RISES["tis"], *LITTLE.values(), MUCH, *AHEAD.values())),
    ]  # fmt: skip


def test_table_1() -> None:
    check_all(table_1_worlds())


def test_after_a_quarter_is_between_two_points() -> None:
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 40, 80, 160], "pass@1": [10, 50, 90, 20]}).records()
    assert early(record) == pytest.approx(50)  # at 40 of 160
    (record,) = group("topr", 60, seeds=(0,), curve={"step": [0, 20, 60, 160], "pass@1": [10, 30, 50, 20]}).records()
    assert early(record) == pytest.approx(40)  # half-way from 20 to 60


def test_the_table_s_rows_are_what_was_measured() -> None:
    def row(algo: str, correct: Level, weight: float, quarter: float) -> Group:
        metrics = {"weight_neg": [9.0] * 19 + [weight]}
        return group(algo, correct, curve=curve(quarter, 5), metrics=metrics)

    groups = [row("sft", (50, 51, 52), 0.0, 41), row("topr", (60, 61, 62), 0.25, 42), row("naive", (5, 6, 7), 1.0, 43)]
    runs = Runs([record for each in groups for record in each.records()])
    lines = table_1(runs, variances({"sft": (0.5, 1.0, 4.0), "naive": (10.0, 10.0, 10.0)}))
    rows = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:]}
    assert {name: cells[:5] for name, cells in rows.items()} == {
        "positives only": ["1 1 0 0", "0", "yes", "1.3", "41.0"],  # the geometric mean of ½, 1 and 4
        "TOPR": ["1 1 0 1", "0.25", "yes", "1", "42.0"],
        "naive REINFORCE": ["1 1 1 1", "1", "no", "10", "43.0"],
    }
    ends = {name: float(cells[5].split(" ")[0]) for name, cells in rows.items()}
    assert ends == pytest.approx({"positives only": 51, "TOPR": 61, "naive REINFORCE": 6}, abs=0.06)
