"""Table 2: worlds in which its claims are true, and worlds in which they are not; and what it reads of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduce.verifier import rows, tallies
from tests.reproduce.worlds import World, check_all, group, of_seed
from topr_exp.report.selection import Runs

ACCURATE = "training makes the verifier more accurate"
BALANCED = "and in balanced accuracy (the mean over correct and over incorrect solutions)"
SPEAKS = "and leaves less than half of its invalid verdicts (after − half of before)"
SELECTS = "weighted self-consistency gains by the training"
BEATS = "and beats the vote without a verifier"

PROBLEMS, SOLUTIONS, VERIFICATIONS = 60, 4, 2
GOOD = 1  # of the four solutions to each problem: calling all of them wrong is right three times in four


def counted(on_correct: float, on_incorrect: float, invalid: float, weighted: float, maj: float) -> dict[str, Any]:
    """What a run notes of its test problems: shares in percent, of verifications of correct and of incorrect solutions
    that are right, of all that are unreadable; of problems whose weighted vote, and whose plain one, is right."""

    def dealt(share: float, most: int) -> list[float]:
        """Counts of each problem, from 0 to `most`, whose sum is this share; problems differ a little."""
        total = round(share / 100 * PROBLEMS * most)
        least, more = divmod(total, PROBLEMS)
        return [float(least + (place < more)) for place in np.random.default_rng(most).permutation(PROBLEMS)]

    correct, incorrect = GOOD * VERIFICATIONS, (SOLUTIONS - GOOD) * VERIFICATIONS
    on = {"correct": dealt(on_correct, correct), "incorrect": dealt(on_incorrect, incorrect)}
    return {
        "right": [a + b for a, b in zip(on["correct"], on["incorrect"], strict=True)],
        "unparsable": dealt(invalid, SOLUTIONS * VERIFICATIONS),
        "verified": [float(SOLUTIONS * VERIFICATIONS)] * PROBLEMS,
        "right_on_correct": on["correct"],
        "verified_correct": [float(correct)] * PROBLEMS,
        "right_on_incorrect": on["incorrect"],
        "verified_incorrect": [float(incorrect)] * PROBLEMS,
        "weighted_sc": dealt(weighted, 1),
        "maj": dealt(maj, 1),
        "oracle": dealt(80, 1),
        "solved": [GOOD / SOLUTIONS] * PROBLEMS,
    }


Noted = tuple[float, float, float, float, float]


def noted(before: Noted, after: Noted) -> Callable[[int], dict[str, Any]]:
    """What each seed notes: `after` with a point more or less."""

    def of_run(seed: int) -> dict[str, Any]:
        moved = [of_seed(level, seed) for level in after]
        return {"before": counted(*before), "after": counted(*moved),
                "problems": [f"p{i}" for i in range(PROBLEMS)], "solutions": SOLUTIONS,
                "verifications": VERIFICATIONS}  # fmt: skip

    return of_run


def table_2() -> Sequence[World]:
    def world(what: str, before: Noted, after: Noted, **decided: Sequence[str]) -> World:
        """The verifier's runs ended at 1 % on another scale: what counts is what they noted."""
        runs = group("topr", 1.0, model__name="tiny_verifier", noted=noted(before, after))
        return World("table2", what, [runs], **decided)

    return [
        world("right on 60 % of the correct and 40 of the incorrect, then 70 and 80; 30 % unreadable, then 8; the "
              "weighted vote 35, then 60; the vote 45", (60, 40, 30, 35, 45), (70, 80, 8, 60, 45),
              shown=(ACCURATE, BALANCED, SPEAKS, SELECTS, BEATS),
              effects={ACCURATE: (70 + 3 * 80) / 4 - (60 + 3 * 40) / 4, BALANCED: (70 + 80) / 2 - (60 + 40) / 2,
                       SPEAKS: 8 - 30 / 2, SELECTS: 25, BEATS: 15}),
        world("right on 70 and 80, then 60 and 40; 20 % unreadable, then 14; weighted vote 60, then 35; the vote 50",
              (70, 80, 20, 60, 50), (60, 40, 14, 35, 50), not_shown=(ACCURATE, BALANCED, SPEAKS, SELECTS, BEATS)),
        world("it learns to say 'wrong' always: right on 80 of the correct and 40 of the incorrect, then 5 and 95. The "
              "weighted vote gains and stays below the vote", (80, 40, 30, 30, 75), (5, 95, 3, 50, 75),
              shown=(ACCURATE, SPEAKS, SELECTS), not_shown=(BALANCED, BEATS)),
        world("it learns to say 'right' always: 5 and 95, then 95 and 60, and 30 % unreadable, then 25. The weighted "
              "vote loses and stays above the vote", (5, 95, 30, 75, 30), (95, 60, 25, 55, 30),
              shown=(BALANCED, BEATS), not_shown=(ACCURATE, SPEAKS, SELECTS)),
        World("table2", "seeds that end anywhere",
              [group("topr", 50, noted=lambda seed: noted((50, 50, 20, 50, 50), [
                  (20, 20, 2, 30, 50), (50, 50, 10, 50, 50), (90, 80, 20, 70, 50)][seed])(0))],
              undecided=(ACCURATE, BALANCED, SPEAKS, SELECTS, BEATS)),
    ]  # fmt: skip


def test_table_2() -> None:
    check_all(table_2())


def test_the_rows_are_means_over_the_runs() -> None:
    """Of none, of the base, of each algorithm, of the oracle; that a run's tally is its own."""
    groups = [
        group("topr", 50, seeds=(0, 1), noted=lambda seed: noted((60, 40, 30, 35, 45), [(70, 80, 8, 60, 45),
              (80, 60, 12, 70, 45)][seed])(0)),
        group("tis", 50, seeds=(0,), noted=noted((60, 40, 30, 35, 45), (40, 30, 20, 40, 45))),
    ]  # fmt: skip
    world = World("table2", "", groups)
    found = {row.kind: row.figures for row in rows(Runs(world.records()), world.numbers())}
    assert list(found) == ["none", "base", "tis", "topr", "oracle"]

    def accuracy(on_correct: float, on_incorrect: float) -> float:
        return (GOOD * on_correct + (SOLUTIONS - GOOD) * on_incorrect) / SOLUTIONS / 100

    for kind, right, invalid, weighted in (
        ("base", accuracy(60, 40), 0.3, 0.35),
        ("topr", (accuracy(70, 80) + accuracy(80, 60)) / 2, 0.1, 0.65),
        ("tis", accuracy(40, 30), 0.2, 0.4),
    ):
        assert found[kind]["accuracy"]["value"] == pytest.approx(right, abs=0.003)
        assert found[kind]["invalid"]["value"] == pytest.approx(invalid, abs=0.002)
        assert found[kind]["weighted_sc"]["value"] == pytest.approx(weighted, abs=0.01)
    assert found["none"]["maj"]["value"] == pytest.approx(0.45)
    assert found["oracle"]["oracle"]["value"] == pytest.approx(0.8)


def test_before_is_the_base_and_after_the_last_iteration(tmp_path: Path) -> None:
    steps = {str(step): {"right": [float(step), 2.0 * step]} for step in (0, 1, 2, 10)}
    (tmp_path / "verification.json").write_text(
        json.dumps({"iterations": steps, "problems": ["a", "b"], "solutions": 4, "verifications": 2})
    )
    settings = {"algo.name": "topr", "seed": 1}
    (found,) = tallies([({"settings": settings}, tmp_path)]).items()
    assert found[0] == json.dumps(settings, sort_keys=True)
    assert found[1] == {"before": {"right": [0.0, 0.0]}, "after": {"right": [10.0, 20.0]}, "problems": ["a", "b"],
                        "solutions": 4, "verifications": 2}  # fmt: skip
