"""Every number of a plot is computed once, of runs that differ in nothing but their seeds, with its 95 % interval."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from topr_exp.report.drawing import draw, plain_number
from topr_exp.report.estimates import best_first
from topr_exp.report.grouping import group_runs
from topr_exp.report.plots import Line, Plot, band, plot_runs, size_by_age, thin
from topr_exp.report.reader import Run, to_frame

SHIFT = (0.0, 3.0, -2.0)  # points between the seeds
MORE = by_hand.mean(SHIFT)


def group(algo: str, correct: float, maj: float, invalid: float, **settings: Any) -> list[Run]:
    """Three seeds; the curve is below what is measured in the end, which is on other problems."""
    runs = []
    for seed, shift in enumerate(SHIFT):
        final = evaluation(correct + shift, maj + shift, invalid, ends=(correct - 4, correct + 4))
        final["correct_histogram"] = [10, 0, 0, 0, 0, 0, 0, 0, 40] if algo == "topr" else [25, 25, 0, 0, 0, 0, 0, 0, 0]
        base = evaluation(30, 40, 20, ends=(25, 36))
        base["correct_histogram"] = [0, 0, 50, 0, 0, 0, 0, 0, 0]
        curve = {0: (28.0, 22.0), 10: (correct - 9 + shift, invalid + 4), 20: (correct - 5 + shift, invalid + 2)}
        updates = [{"loss": i + shift, "kl_mu": 2.0 * i + len(algo)} for i in range(1, 5)]
        seed_settings = {"seed": seed, "algo__name": algo, **settings}
        runs.append(made_run(f"{algo}{seed}{settings}", base, final, curve, updates, **seed_settings))
    return runs


def plotted(runs: Sequence[Run]) -> dict[str, dict[str, pd.DataFrame]]:
    """The points of each plot by its name and that of the line."""
    comparison = group_runs(runs)
    plots = plot_runs(comparison, best_first(comparison.groups))
    assert len({plot.name for plot in plots}) == len(plots)
    return {plot.name: {line.name.split(" (")[0]: line.points for line in plot.lines} for plot in plots}


def points(line: pd.DataFrame) -> tuple[list[float], Any]:
    return [round(x, 9) for x in line.index], pytest.approx((100 * line["mean"]).tolist())


def percent(line: pd.DataFrame) -> Any:
    """[places, 3]"""
    return pytest.approx(100 * line[["mean", "low", "high"]].to_numpy(), abs=0.02)


def of_seeds(*levels: float) -> np.ndarray:
    return np.array([by_hand.interval([level + shift for shift in SHIFT]) for level in levels])


@pytest.fixture(scope="module")
def plots() -> dict[str, dict[str, pd.DataFrame]]:
    return plotted([*group("topr", 60, 70, 5), *group("is", 45, 50, 11)])


def test_curves_and_metrics_are_those_of_their_groups(plots: dict[str, dict[str, pd.DataFrame]]) -> None:
    topr = plots["curve_pass_1"]["topr"]
    assert points(topr) == ([0, 10, 20], [28, 51 + MORE, 55 + MORE])
    assert of_seeds(51, 55) == percent(topr[1:])
    assert points(plots["curve_pass_1"]["is"]) == ([0, 10, 20], [28, 36 + MORE, 40 + MORE])
    assert points(plots["curve_invalid"]["is"]) == ([0, 10, 20], [22, 15, 13])
    assert plots["training_loss"]["topr"]["mean"].tolist() == pytest.approx([i + MORE for i in range(1, 5)])
    assert plots["training_kl_mu"]["is"]["mean"].tolist() == [4, 6, 8, 10]


def test_asynchronous_runs_are_drawn_against_tokens_and_virtual_time_and_size_by_age() -> None:
    runs = []
    for seed, slow in enumerate((1.0, 2.0)):
        updates = [{"age": 1.0, "tokens": 100 * slow, "virtual_time": slow * i, "ess_age0": 0.9, "ess_age2": 0.1 * i}
                   for i in range(1, 5)]  # fmt: skip
        curve = {0: (20.0, 5.0), 2: (30.0, 5.0), 4: (50.0, 5.0)}
        runs.append(made_run(f"late{seed}", evaluation(20, 30, 5), evaluation(50, 60, 5), curve, updates, seed=seed))
    assert size_by_age(made_run("begun", evaluation(20, 30, 5), evaluation(50, 60, 5), {}, [])).empty
    plots = plotted(runs)
    (by_time,), (by_tokens,) = (plots[f"curve_pass_1_{axis}"].values() for axis in ("virtual_time", "tokens"))
    assert points(by_time) == ([0, 2, 4], [20, 27.5, 40])  # the slower seed's between its places
    assert points(by_tokens) == ([0, 200, 400], [20, 27.5, 40])
    (ages,) = plots["ess_by_age"].values()
    assert (ages.index.tolist(), ages["mean"].tolist()) == ([0, 2], pytest.approx([0.9, 0.25]))
    assert not {"ess_by_age", "curve_pass_1_tokens"} & plotted(group("topr", 60, 70, 5)).keys()


def test_the_final_figures_stand_side_by_side(plots: dict[str, dict[str, pd.DataFrame]]) -> None:
    for name, levels in (("pass@1", (60, 45)), ("maj@8", (70, 50))):
        assert of_seeds(*levels) == percent(plots["final"][name])
    assert points(plots["final"]["invalid"]) == ([0, 1], [5, 11])
    assert points(plots["final"]["base pass@1"]) == ([0, 1], [30, 30])


def test_k_and_histograms(plots: dict[str, dict[str, pd.DataFrame]]) -> None:
    expected = {"topr": [60 + MORE, 80 + MORE], "is": [45 + MORE, 65 + MORE], "base": [30, 50]}
    assert {name: ([1, 8], values) for name, values in expected.items()} == {
        name: points(line) for name, line in plots["pass_at_k"].items()
    }
    assert points(plots["maj_at_k"]["is"]) == ([8], [50 + MORE])
    counts = {"base": [0, 0, 100] + [0] * 6, "topr": [20] + [0] * 7 + [80], "is": [50, 50] + [0] * 7}
    assert {name: ([*range(9)], values) for name, values in counts.items()} == {
        name: points(line) for name, line in plots["correct_histogram"].items()
    }
    # The same completions in all: the interval over problems.
    assert plots["pass_at_k"]["base"].iloc[0].tolist() == [0.3, 0.25, 0.36]


def test_each_base_is_its_own_line() -> None:
    def bases(*levels: float) -> dict[str, float]:
        runs = [made_run(name, evaluation(level, 40, 20, ends=(10, 50)), evaluation(50, 60, 5, ends=(40, 60)),
                         model__name=name) for name, level in zip(("tiny", "noise"), levels, strict=True)]  # fmt: skip
        return {n: line["mean"].iloc[0] for n, line in plotted(runs)["pass_at_k"].items() if n.startswith("base")}

    assert bases(20, 30) == {"base of tiny": 0.2, "base of noise": 0.3}
    assert bases(20, 20) == {"base": 0.2}


LEVELS = {("topr", 0.1): 40, ("topr", 0.2): 60, ("topr", 0.5): 55, ("is", 0.1): 20, ("is", 0.2): 30, ("sft", 0.5): 35}


def test_a_line_of_a_sweep_is_of_one_setting_each() -> None:
    """As in Figure 5: p̃ in several runs, each once, beside another setting that differs. Longer lines come first."""
    runs = [run for (algo, p), level in LEVELS.items()
            for run in group(algo, level, 50, 5, effective_positive=p)]  # fmt: skip
    lines = plotted(runs)["sweep_effective_positive"]
    assert list(lines) == ["topr", "is", "sft"]
    for algo, line in lines.items():
        levels = {p: level for (name, p), level in LEVELS.items() if name == algo}
        assert ([*levels], [level + MORE for level in levels.values()]) == points(line)
        assert of_seeds(*levels.values()) == percent(line)


def test_what_follows_from_the_drawn_set_is_averaged_over_seeds() -> None:
    runs = [run for n in (1, 2, 3) for run in group("topr", 60, 70, 5, n=n)]
    for i, run in enumerate(runs):
        run.summary["effective_positive"] = 0.2 * run.config["n"] + 0.01 * i
    lines = plotted(runs)["sweep_effective_positive"].values()
    assert sorted(float(line.index[0]) for line in lines) == pytest.approx([0.21, 0.44, 0.67])


def test_figures_never_pool_groups_and_show_the_best() -> None:
    runs = [made_run(f"{p}", evaluation(30, 40, 20), evaluation(p, 50, 5), {0: (30, 20), 5: (35, 9), 10: (p, 5)}, p=p)
            for p in range(40, 64, 2)]  # fmt: skip
    plots = plotted(runs)
    assert list(plots["curve_pass_1"]) == [f"p={p}" for p in range(62, 42, -2)]
    assert ([*range(10)], [float(p) for p in range(62, 42, -2)]) == points(plots["final"]["pass@1"])


@pytest.mark.parametrize(("steps", "is_drawn"), [((0, 20), False), ((0, 10, 20), True)])
def test_a_curve_shows_more_than_where_it_begins_and_ends(steps: tuple[int, ...], is_drawn: bool) -> None:
    """The final figures and the table have these."""
    curve, updates = dict.fromkeys(steps, (30.0, 5.0)), [{"loss": 1.0}] * len(steps)
    plots = plotted([made_run("a", evaluation(20, 30, 5), evaluation(50, 60, 5), curve, updates)])
    assert [name in plots for name in ("curve_pass_1", "curve_invalid", "training_loss", "final")] == [
        *[is_drawn] * 3,
        True,
    ]


@pytest.mark.parametrize(
    ("key", "values", "scale"),
    [("lr", (1e-5, 1e-4, 3e-4), "log"), ("n", (2, 4, 8), "linear"), ("shift", (-1.0, 0.1, 10.0), "linear"),
     ("effective_positive", (0.02, 0.2, 0.5), "linear")],
)  # fmt: skip
def test_a_setting_that_spans_a_decade_has_a_logarithmic_axis(key: str, values: tuple[float, ...], scale: str) -> None:
    runs = [run for value in values for algo in ("topr", "is") for run in group(algo, 60, 70, 5, **{key: value})]
    comparison = group_runs(runs)
    (plot,) = [plot for plot in plot_runs(comparison, comparison.groups) if plot.name == f"sweep_{key}"]
    (ax,) = draw(plot).axes
    assert ax.get_xscale() == scale
    if scale == "log":
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1e-5", "1e-4", "3e-4"]
        places = [line.get_xdata()[0] for line in ax.lines if line.get_label() in ("topr", "is")]
        assert places == pytest.approx([1e-5, 1e-5], rel=0.05)
        assert places[0] < 1e-5 < places[1], "beside one another"


def test_small_and_large_numbers_are_written_as_in_the_documents() -> None:
    texts = {0.0001: "1e-4", 3e-5: "3e-5", 0.00015: "1.5e-4", 0.02: "0.02", 1: "1", 128: "128", 0: "0", 1e6: "1e6"}
    assert {value: plain_number(value) for value in texts} == texts


@pytest.mark.parametrize("whiskers", [True, False])
def test_an_interval_reaches_as_far_down_and_up_as_it_does(whiskers: bool) -> None:
    """Those over problems, and of shares near 0 and 1, lie on one side more than on the other."""
    columns = {"mean": (0.9, 0.5, 0.1), "low": (0.7, 0.3, 0.0), "high": (1.0, 0.6, 0.2)}
    line = Line("topr", 0, pd.DataFrame(columns, index=[1.0, 2.0, 4.0]))
    (ax,) = draw(Plot("x", "result", "x", "x", "y", [line], whiskers=whiskers)).axes
    if whiskers:
        ends = [segment[:, 1] for segment in ax.containers[0].lines[2][0].get_segments()]
    else:
        area = ax.collections[0].get_paths()[0].vertices
        ends = [sorted({y for place, y in area if place == x}) for x in line.points.index]
    assert np.array(ends) == pytest.approx(100 * line.points[["low", "high"]].to_numpy())


# ---- curves of single runs, and bands over repetitions


def losses(*values: object) -> pd.DataFrame:
    return to_frame([{"iteration": 1, "step": i, "optimizer_step": i, "samples": 8 * i, "loss": value, "loss_se": 1.0}
                     for i, value in enumerate(values, 1)])  # fmt: skip


def test_what_is_missing_or_not_finite_is_no_number() -> None:
    curve = thin(losses(1.0, math.nan, None, "x", 3.0, math.inf, True, {"a": 1})["loss"], points=2)
    np.testing.assert_allclose(curve, [1.0, 3.0])
    assert curve.index.tolist() == [4, 8], "where each bin ends"
    assert to_frame([]).empty


def test_a_band_has_at_each_place_the_interval_of_the_values_there() -> None:
    """It has only places that all curves were measured at."""
    first, second, third = (pd.Series(values, [0.0, 10.0, 20.0])
                            for values in ([0.3, 0.5, 0.4], [0.2, 0.6, 0.5], [0.35, 0.4, 0.45]))  # fmt: skip
    points_of_band = band([first, second, third.iloc[[0, 2]], first[:0]], share=True)
    assert points_of_band.index.tolist() == [0, 20]
    for x, row in points_of_band.iterrows():
        mean, low, high = by_hand.interval([first[x], second[x], third[x]])
        assert row.tolist() == pytest.approx([mean, max(0.0, low), high], abs=1e-3)
    ends = band([first, second[:2]])  # of two their range, up to where the shorter one ends
    assert (ends.index.tolist(), ends["low"].tolist(), ends["high"].tolist()) == ([0, 10], [0.2, 0.5], [0.3, 0.6])
    assert band([]).empty
    np.testing.assert_allclose(band([first, second.iloc[[0, 2]]], interpolate=True)["mean"], [0.25, 0.425, 0.45])
