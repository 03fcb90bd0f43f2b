"""Every number of a plot is computed once, of runs that differ in nothing but their seeds, with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from topr_exp.report.curves import Band
from topr_exp.report.figures import Line, Plot, draw, plots
from topr_exp.report.groups import bases, group_runs
from topr_exp.report.page import best_first
from topr_exp.report.runs import Run

SHIFT = (0.0, 3.0, -2.0)  # points between the seeds
MORE = by_hand.mean(SHIFT)


def group(algo: str, correct: float, maj: float, invalid: float, **settings: Any) -> list[Run]:
    """Three seeds; the curve is below what is measured in the end, which is on other problems."""
    found = []
    for seed, shift in enumerate(SHIFT):
        final = evaluation(correct + shift, maj + shift, invalid, ends=(correct - 4, correct + 4))
        final["correct_histogram"] = [10, 0, 0, 0, 0, 0, 0, 0, 40] if algo == "topr" else [25, 25, 0, 0, 0, 0, 0, 0, 0]
        base = evaluation(30, 40, 20, ends=(25, 36))
        base["correct_histogram"] = [0, 0, 50, 0, 0, 0, 0, 0, 0]
        curve = {0: (28.0, 22.0), 10: (correct - 9 + shift, invalid + 4), 20: (correct - 5 + shift, invalid + 2)}
        updates = [{"loss": i + shift, "kl_mu": 2.0 * i + len(algo)} for i in range(1, 5)]
        more = {"seed": seed, "algo__name": algo, **settings}
        found.append(made_run(f"{algo}{seed}{settings}", base, final, curve, updates, **more))
    return found


def plotted(runs: Sequence[Run]) -> dict[str, dict[str, Band]]:
    """The bands of each plot by its name and that of the line."""
    comparison = group_runs(list(runs))
    found = plots(runs, comparison, best_first(runs, comparison))
    assert len({plot.name for plot in found}) == len(found)
    return {plot.name: {line.name.split(" (")[0]: line.band for line in plot.lines} for plot in found}


def points(band: Band) -> tuple[list[float], Any]:
    return np.round(band.x, 9).tolist(), pytest.approx((100 * band.mean).tolist())


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Band]]:
    return plotted([*group("topr", 60, 70, 5), *group("is", 45, 50, 11)])


def test_curves_are_those_of_their_groups(found: dict[str, dict[str, Band]]) -> None:
    topr = found["curve_pass_1"]["topr"]
    assert points(topr) == ([0, 10, 20], [28, 51 + MORE, 55 + MORE])
    assert (100 * topr.low[1], 100 * topr.high[1]) == pytest.approx(
        by_hand.interval([51 + shift for shift in SHIFT])[1:], abs=0.01
    )
    assert points(found["curve_pass_1"]["is"]) == ([0, 10, 20], [28, 36 + MORE, 40 + MORE])
    assert points(found["curve_invalid"]["is"]) == ([0, 10, 20], [22, 15, 13])
    single = {name: points(band) for name, band in found["curve_pass_1_runs"].items()}
    assert single["topr1{}"] == ([0, 10, 20], [28, 54, 58])
    assert len(single) == 6


def test_metrics_are_those_of_their_groups(found: dict[str, dict[str, Band]]) -> None:
    assert found["training_loss"]["topr"].mean.tolist() == pytest.approx([i + MORE for i in range(1, 5)])
    assert found["training_kl_mu"]["is"].mean.tolist() == [4, 6, 8, 10]


def test_the_final_figures_stand_side_by_side(found: dict[str, dict[str, Band]]) -> None:
    for name, levels in (("pass@1", (60, 45)), ("maj@8", (70, 50))):
        band = found["final"][name]
        expected = [by_hand.interval([level + shift for shift in SHIFT]) for level in levels]
        assert np.stack([band.mean, band.low, band.high], axis=1) * 100 == pytest.approx(np.array(expected), abs=0.02)
    assert points(found["final"]["invalid"]) == ([0, 1], [5, 11])
    assert points(found["final"]["base pass@1"]) == ([0, 1], [30, 30])


def test_k_and_histograms(found: dict[str, dict[str, Band]]) -> None:
    expected = {"topr": [60 + MORE, 80 + MORE], "is": [45 + MORE, 65 + MORE], "base": [30, 50]}
    assert {name: ([1, 8], values) for name, values in expected.items()} == {
        name: points(band) for name, band in found["pass_at_k"].items()
    }
    assert points(found["maj_at_k"]["is"]) == ([8], [50 + MORE])
    counts = {"base": [0, 0, 100] + [0] * 6, "topr": [20] + [0] * 7 + [80], "is": [50, 50] + [0] * 7}
    assert {name: ([*range(9)], values) for name, values in counts.items()} == {
        name: points(band) for name, band in found["correct_histogram"].items()
    }
    base = found["pass_at_k"]["base"]  # the same completions in all: the interval over problems
    assert (base.low[0], base.high[0]) == (0.25, 0.36)


LEVELS = {("topr", 0.1): 40, ("topr", 0.2): 60, ("topr", 0.5): 55, ("is", 0.1): 20, ("is", 0.2): 30, ("sft", 0.5): 35}


def test_a_line_of_a_sweep_is_of_one_setting_each() -> None:
    """As in Figure 5: p̃ in several runs, each once, beside another setting that differs. Longer lines come first."""
    runs = [run for (algo, p), level in LEVELS.items()
            for run in group(algo, level, 50, 5, effective_positive=p)]  # fmt: skip
    found = plotted(runs)["sweep_effective_positive"]
    assert list(found) == ["topr", "is", "sft"]
    for algo, band in found.items():
        mine = {p: level for (name, p), level in LEVELS.items() if name == algo}
        assert ([*mine], [level + MORE for level in mine.values()]) == points(band)
        ends = [by_hand.interval([level + shift for shift in SHIFT])[1:] for level in mine.values()]
        assert 100 * np.stack([band.low, band.high], axis=1) == pytest.approx(np.array(ends), abs=0.02)


def test_what_follows_from_the_drawn_set_is_averaged_over_seeds() -> None:
    runs = group("topr", 60, 70, 5, n=1) + group("topr", 60, 70, 5, n=2)
    for i, run in enumerate(runs):
        run.summary["effective_positive"] = 0.2 * run.config["n"] + 0.01 * i
    bands = plotted(runs)["sweep_effective_positive"].values()
    assert sorted(float(band.x[0]) for band in bands) == pytest.approx([0.21, 0.44])


def test_figures_never_pool_groups() -> None:
    runs = [made_run(f"{p}", evaluation(30, 40, 20), evaluation(p, 50, 5), {0: (30, 20), 10: (p, 5)}, p=p)
            for p in range(40, 64, 2)]  # fmt: skip
    found = plotted(runs)
    assert len(found["curve_pass_1"]) == 12
    assert ([*range(10)], [float(p) for p in range(62, 42, -2)]) == points(found["final"]["pass@1"])  # the best ones


def test_each_base_is_its_own_line() -> None:
    def runs(*levels: float) -> list[Run]:
        return [made_run(name, evaluation(level, 40, 20, ends=(10, 50)), evaluation(50, 60, 5, ends=(40, 60)),
                         model__name=name) for name, level in zip(("tiny", "noise"), levels, strict=True)]  # fmt: skip

    found = plotted(runs(20, 30))["pass_at_k"]
    assert {name: band.mean[0] for name, band in found.items() if name.startswith("base")} == {
        "base, tiny": 0.2, "base, noise": 0.3
    }  # fmt: skip
    same = runs(20, 20)
    assert list(bases(same, group_runs(same))) == ["base"]


@pytest.mark.parametrize("whiskers", [True, False])
def test_an_interval_reaches_as_far_down_and_up_as_it_does(whiskers: bool) -> None:
    """Those over problems, and of shares near 0 and 1, lie on one side more than on the other."""
    columns = ((1, 2, 4), (0.9, 0.5, 0.1), (0.7, 0.3, 0.0), (1.0, 0.6, 0.2))
    places, means, low, high = (np.array(column, dtype=np.float64) for column in columns)
    line = Line("topr", 0, Band(places, means, low, high, 1))
    (ax,) = draw(Plot("x", "result", "x", [line], "x", "y", whiskers=whiskers))[0].axes
    if whiskers:
        ends = [one[:, 1] for one in ax.containers[0].lines[2][0].get_segments()]
    else:
        band = ax.collections[0].get_paths()[0].vertices
        ends = [sorted({y for place, y in band if place == x}) for x in places]
    assert np.array(ends) == pytest.approx(100 * np.stack([low, high], axis=1))
