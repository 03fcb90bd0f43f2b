"""Figures 8 and 9: worlds in which their claims are true, and worlds in which they are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from reproduce.iterations import weights_by_difficulty
from tests.reproduce.test_records import rows
from tests.reproduce.worlds import Group, Level, World, check_all, group
from topr_exp.config.settings import Config

# ---- Figure 8

KARENINA = "anna_karenina"
UNIFORM = "uniform beats positives only, pass@1"
ANNA = "Anna Karenina beats uniform, pass@1"
ANNA_VOTE = "Anna Karenina beats uniform, maj@n"
GOES_ON = {
    "uniform": "uniform: goes on to improve after the first iteration",
    "positives": "TOPR on positives: goes on to improve after the first iteration",
    "anna_karenina": "Anna Karenina: goes on to improve after the first iteration",
}


def figure_8() -> Sequence[World]:
    def runs(compose: str, first: Level, second: Level, last: Level, maj: Level) -> Group:
        return group("topr", last, between=(first, second), maj=maj, n=16, compose__name=compose)

    return [
        World("fig8", "after iterations 1 to 3, from a base of 30: uniform 50, 70, 60, positives 45, 70, 50, Anna "
              "Karenina 64, 64, 70; its vote 75, uniform's 65",
              [runs("uniform", 50, 70, 60, 65), runs("positives", 45, 70, 50, 80), runs(KARENINA, 64, 64, 70, 75)],
              shown=(UNIFORM, ANNA, ANNA_VOTE, *GOES_ON.values()),
              effects={UNIFORM: 10, ANNA: 10, ANNA_VOTE: 10, GOES_ON["uniform"]: 10, GOES_ON["positives"]: 5,
                       GOES_ON["anna_karenina"]: 6}),
        World("fig8", "all end below where the first iteration left them, though above the base and higher in between: "
              "uniform 68, 75, 60, positives 75, 75, 68, Anna Karenina 64, 70, 50; its vote 60, uniform's 70",
              [runs("uniform", 68, 75, 60, 70), runs("positives", 75, 75, 68, 50), runs(KARENINA, 64, 70, 50, 60)],
              not_shown=(UNIFORM, ANNA, ANNA_VOTE, *GOES_ON.values())),
        World("fig8", "Anna Karenina has more correct completions and wins fewer votes than uniform, which alone fell",
              [runs("uniform", 68, 60, 60, 75), runs("positives", 50, 60, 66, 75), runs(KARENINA, 50, 60, 70, 65)],
              shown=(ANNA, GOES_ON["positives"], GOES_ON["anna_karenina"]),
              not_shown=(UNIFORM, ANNA_VOTE, GOES_ON["uniform"])),
        World("fig8", "Anna Karenina has fewer correct completions and wins more votes",
              [runs("uniform", 50, 60, 70, 65), runs("positives", 60, 55, 50, 55), runs(KARENINA, 70, 60, 60, 75)],
              shown=(UNIFORM, ANNA_VOTE, GOES_ON["uniform"]),
              not_shown=(ANNA, GOES_ON["positives"], GOES_ON["anna_karenina"])),
        World("fig8", "seeds far apart; nobody ran positives alone",
              [runs("uniform", 50, 50, (80.0, 20.0, 50.0), (20.0, 80.0, 50.0)), runs(KARENINA, 50, 50, 52, 52)],
              undecided=(UNIFORM, ANNA, ANNA_VOTE, GOES_ON["uniform"])),
    ]  # fmt: skip


def test_figure_8() -> None:
    check_all(figure_8())


# ---- Figure 9

MORE_WEIGHT = "the smaller p̃, the more weight on problems with an accuracy below 50 %, in every seed"


def shares(hard: Sequence[float], below_60: Sequence[float] | None = None) -> dict[str, list[list[float]]]:
    """The weight by tenths of accuracy for each p̃, from small to large, in percent: that of problems below 50 %, which
    moves in their last tenth alone, and that of problems below 60 %."""
    rows = []
    for i, share in enumerate(hard):
        sixth = (below_60[i] - share) if below_60 is not None else 0.0
        rest = (100 - share - sixth) / 4
        rows.append([5.0, 5.0, 5.0, 5.0, share - 20, sixth, *[rest] * 4])
    return {"share": (np.array(rows) / 100).tolist()}


def figure_9() -> Sequence[World]:
    rising, falling = (60, 62, 64, 66, 68, 70), (90, 85, 80, 75, 70, 65)
    runs = [group("topr", 50)]

    def world(what: str, *seeds: dict[str, list[list[float]]], **decided: Sequence[str]) -> World:
        """Of the other base the contrary is true."""
        other = shares(rising if "shown" in decided else falling)
        extra = {f"tiny {seed}": each for seed, each in enumerate(seeds)} | {"tiny_noise 0": other}
        return World("fig9", what, runs, extra=extra, **decided)

    return [
        world("in every seed the hard problems' share falls as p̃ grows; with those of 50 to 60 % it would not",
              shares(falling), shares(falling, below_60=[95] * 6), shares([share - 3 for share in falling]),
              shown=(MORE_WEIGHT,)),
        world("in every seed the hard problems' share grows with p̃; with those of 50 to 60 % it would fall",
              *[shares(rising, below_60=(*falling[:3], 75, 74, 73))] * 3, not_shown=(MORE_WEIGHT,)),
        world("in one seed of three the share is as high at the fourth p̃ as at the third; in the mean it falls",
              shares(falling), shares((90, 85, 80, 80, 70, 65)), shares(falling), not_shown=(MORE_WEIGHT,)),
        World("fig9", "nobody counted completions", runs, undecided=(MORE_WEIGHT,)),
    ]  # fmt: skip


def test_figure_9() -> None:
    check_all(figure_9())


def test_the_weights_are_those_of_the_first_iteration_s_completions(finished: Config) -> None:
    """1 − c for a correct completion and 1 + c for another, where c gives p̃, by the tenth that a problem's accuracy is
    in."""
    sources = json.loads((finished.folder / "iteration-1" / "sources.json").read_text())
    store = Path(sources["store"])
    rollouts, graded = (rows(store / sources[name]) for name in ("rollouts", "verdicts"))
    correct: dict[int, list[bool]] = {}
    for row, verdict in zip(rollouts, graded, strict=True):
        correct.setdefault(row["problem"], []).append(verdict["verdict"] == "correct")
    p = sum(map(sum, correct.values())) / len(graded)
    assert 0 < p < 1
    record = {"settings": {"model.name": "tiny", "seed": 0}}
    (found,) = weights_by_difficulty([(record, finished.folder)]).items()
    assert found[0] == "tiny 0"
    for effective, shown in zip((0.01, 0.05, 0.1, 0.2, 0.5, 0.8), found[1]["share"], strict=True):
        c = (p - effective) / (p + effective - 2 * p * effective)
        weights = [sum(1 - c if right else 1 + c for right in each) for each in correct.values()]
        of_right = (1 - c) * p / ((1 - c) * p + (1 + c) * (1 - p))
        assert of_right == pytest.approx(effective)
        tenths = [0.0] * 10
        for each, weight in zip(correct.values(), weights, strict=True):
            tenths[min(9, 10 * sum(each) // len(each))] += weight / sum(weights)
        assert shown == pytest.approx(tenths, abs=2e-6)
