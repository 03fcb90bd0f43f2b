"""Intervals against plain arithmetic, and which runs and problems a difference pairs."""

from __future__ import annotations

import numpy as np
import pytest

from tests import by_hand
from tests.reproduce.worlds import group
from topr_exp.evaluation.intervals import Interval, crossed_interval
from topr_exp.report.selection import Runs, difference, gain, of_problems, over_seeds


def ends(found: Interval | None) -> tuple[float, float, float]:
    assert found is not None
    return found.value, found.low, found.high


@pytest.mark.parametrize("shape", [(2, 9), (3, 30), (5, 12)])
def test_an_interval_over_seeds_and_problems(shape: tuple[int, int]) -> None:
    seeds, problems = shape
    rng = np.random.default_rng(seeds)
    effects = 0.03 * rng.normal(size=(seeds, 1)) + 0.1 * rng.normal(size=(1, problems))
    table = 0.5 + effects + 0.02 * rng.normal(size=shape)
    assert ends(crossed_interval(table)) == pytest.approx(by_hand.crossed_interval(table.tolist()), abs=2e-3)


def test_an_interval_over_seeds_alone_and_over_problems_alone() -> None:
    values = [0.31, 0.35, 0.29, 0.42]
    assert ends(over_seeds(values)) == pytest.approx(by_hand.interval(values), abs=1e-4)
    assert ends(crossed_interval(np.array([values]))) == pytest.approx(by_hand.interval(values), abs=1e-4)
    assert over_seeds(values[:1]) is None


def test_a_verifier_s_solutions_to_a_problem_are_averaged_and_no_others() -> None:
    """It is asked of all first solutions, then of all second ones: three problems, two solutions, four verdicts."""
    counts = {"correct": "4 0 1 2 0 3", "invalid": "0 4 1 0 2 1"}
    found = {"n": 4, "solutions": 2, "of_problems": counts}
    assert of_problems(found, "pass@1").tolist() == [(4 + 2) / 8, 0, (1 + 3) / 8]
    assert of_problems(found, "invalid").tolist() == [0, (4 + 2) / 8, (1 + 1) / 8]


def test_the_columns_are_what_they_are_called() -> None:
    runs = Runs(group("topr", 60, invalid=5, maj=80, base={"correct": 25.0, "invalid": 30.0, "maj": 35.0}).records())
    found = {(name, part): 100 * float(np.mean(runs.each(name, part)))
             for name in ("pass@1", "maj", "invalid") for part in ("base", "final")}  # fmt: skip
    assert found == pytest.approx(
        {("pass@1", "base"): 25, ("pass@1", "final"): 60, ("maj", "base"): 35, ("maj", "final"): 80,
         ("invalid", "base"): 30, ("invalid", "final"): 5}, abs=0.07
    )  # fmt: skip
    assert ends(gain(runs))[0] == pytest.approx(0.35, abs=0.001)
    assert ends(gain(runs, "invalid"))[0] == pytest.approx(-0.25, abs=0.001)


def test_seeds_are_paired_by_their_number_wherever_they_stand() -> None:
    """Seeds lie up to 40 points apart, the second algorithm 5 above the first in each: decided over the shared seeds,
    which stand at other places in the two lists."""
    levels = {0: 20, 1: 60, 2: 40, 3: 55, 4: 25}

    def runs(algo: str, seeds: tuple[int, ...], more: float) -> Runs:
        made = group(algo, tuple(float(levels[seed] + more) for seed in seeds), seeds=seeds).records()
        return Runs(made[::-1] if more else made)

    found = difference(runs("a", (0, 1, 2, 3), 0), runs("b", (1, 2, 3, 4), 5))
    assert found is not None
    assert (found.seeds, found.value) == (3, pytest.approx(0.05, abs=0.001))
    assert 0.03 < found.low < found.high < 0.07
    assert difference(runs("a", (0, 1), 0), runs("b", (2, 3), 5)) is None


def test_runs_are_told_apart_by_their_settings() -> None:
    groups = [group("topr", 50, effective_positive=p, compose__positive_share=q) for p in (0.5, 0.02, 0.1)
              for q in (0.1, 0.5)]  # fmt: skip
    runs = Runs([record for each in groups for record in each.records()] + group("topr", 20).records())
    assert list(runs.split("effective_positive")) == [0.02, 0.1, 0.5]
    assert [len(each) for each in runs.split("effective_positive").values()] == [6, 6, 6]
    assert len(runs.where(effective_positive=0.1, compose__positive_share=0.5)) == 3
    assert len(runs.where(effective_positive=None)) == 3
    assert runs.seeds == sorted(runs.seeds)
