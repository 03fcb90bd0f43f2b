"""Every number of a plot, of runs that differ in nothing but their seeds, with its 95 % interval."""

import math
from ast import literal_eval
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from tests import by_hand
from tests.conftest import column, each_row
from tests.report.made_up import evaluation, made_run
from topr_exp.report.drawing import draw, draw_files, offset_positions
from topr_exp.report.grouping import group_runs
from topr_exp.report.plots import Line, Plot, band, plot_runs, size_by_age, thin
from topr_exp.report.reader import to_frame

SHIFTS = (4.0, -1.0, -3.0)  # points between the seeds
BASE = evaluation(30, 40, 20, ends=(25, 36)) | {"correct_histogram": [0, 0, 50]}


def runs_of(algo, correct, maj, invalid, **settings):
    """Three seeds; the curve is below what is measured in the end, which is on other problems."""
    runs = []
    for seed, shift in enumerate(SHIFTS):
        level = correct + shift
        final = evaluation(level, maj + shift, invalid, ends=(correct - 4, correct + 4))
        final["correct_histogram"] = [10, 0, 40]
        curve = {0: (28.0, 22.0), 10: (level - 9, invalid + 4), 20: (level - 5, invalid + 2)}
        updates = [{"loss": step + shift, "kl_mu": 2.0 * step + len(algo)} for step in range(1, 5)]
        run = made_run(f"{algo}{seed}", BASE, final, curve, updates, seed=seed, algo__name=algo, **settings)
        runs.append(run)
    return runs


def lines_by_plot(runs):
    lines = {}
    for plot in plot_runs(group_runs(runs)):
        assert plot.name not in lines
        lines[plot.name] = {line.name.partition(" (")[0]: line.points for line in plot.lines}
    return lines


def percents(points):
    """The mean at each position."""
    return (100 * points["mean"]).round(6).to_dict()


def assert_students(points, *levels):
    """Compare with Student's intervals of the seeds around these levels."""
    for row, level in zip(points.to_numpy(), levels, strict=True):
        expected = by_hand.interval([level + shift for shift in SHIFTS])
        assert 100 * row == pytest.approx(expected, abs=0.02)


@pytest.fixture(scope="module")
def plots():
    return lines_by_plot([*runs_of("topr", 60, 70, 5), *runs_of("is", 45, 50, 11)])


# A plot | one of its lines | the percentage at each position
PERCENTS = """
curve_pass_1 | topr | {0: 28, 10: 51, 20: 55}
curve_pass_1 | is | {0: 28, 10: 36, 20: 40}
curve_invalid | is | {0: 22, 10: 15, 20: 13}
training_kl_mu | is | {1: 400, 2: 600, 3: 800, 4: 1000}
final | invalid | {0: 5, 1: 11}
final | base pass@1 | {0: 30, 1: 30}
pass_at_k | base | {1: 30, 8: 50}
pass_at_k | topr | {1: 60, 8: 80}
pass_at_k | is | {1: 45, 8: 65}
maj_at_k | is | {8: 50}
correct_histogram | topr | {0: 20, 1: 0, 2: 80}
correct_histogram | base | {0: 0, 1: 0, 2: 100}
"""


@each_row("plot line values", PERCENTS)
def test_every_number_is_that_of_its_group(plot, line, values, plots):
    assert percents(plots[plot][line]) == literal_eval(values)


def test_intervals_are_over_the_seeds_and_those_of_one_evaluation_over_its_problems(plots):
    assert_students(plots["curve_pass_1"]["topr"][1:], 51, 55)
    assert_students(plots["final"]["pass@1"], 60, 45)
    assert_students(plots["final"]["maj@8"], 70, 50)
    assert plots["pass_at_k"]["base"].iloc[0].tolist() == [0.3, 0.25, 0.36]


def test_asynchronous_runs_are_drawn_against_tokens_and_virtual_time_and_size_by_age():
    """Two seeds, of which the second takes twice the time and the tokens of the first."""
    runs = []
    curve = {0: (20.0, 5.0), 2: (30.0, 5.0), 4: (50.0, 5.0)}
    for seed, slowness in enumerate((1.0, 2.0)):
        updates = []
        for step in range(1, 5):
            costs = {"tokens": 100 * slowness, "virtual_time": slowness * step}
            ages = {"age": 1.0, "ess_age0": 0.9, "ess_age2": 0.1 * step}
            updates.append(costs | ages)
        runs.append(made_run(f"late{seed}", BASE, BASE, curve, updates, seed=seed))

    plots = lines_by_plot(runs)

    assert percents(plots["curve_pass_1_virtual_time"]["topr"]) == {0: 20, 2: 27.5, 4: 40}
    assert percents(plots["curve_pass_1_tokens"]["topr"]) == {0: 20, 200: 27.5, 400: 40}
    assert percents(plots["ess_by_age"]["topr"]) == {0: 90, 2: 25}
    assert size_by_age(made_run("begun", BASE, BASE)).empty


def test_a_line_of_a_sweep_joins_runs_that_differ_in_its_axis_alone():
    levels = {"topr": {0.1: 40, 0.4: 60, 0.7: 55}, "is": {0.1: 20, 0.4: 30}}
    runs = []
    for algo, level_of_share in levels.items():
        for share, level in level_of_share.items():
            runs += runs_of(algo, level, 50, 5, effective_positive=share)

    lines = lines_by_plot(runs)["sweep_effective_positive"]

    assert {algo: percents(line) for algo, line in lines.items()} == levels
    assert_students(lines["topr"], 40, 60, 55)


def test_figures_never_pool_groups_and_show_the_best():
    runs = []
    for level in range(40, 64, 2):
        final = evaluation(level, 50, 5)
        curve = {0: (30, 20), 5: (35, 9), 10: (level, 5)}
        runs.append(made_run(str(level), BASE, final, curve, p=level))

    plots = lines_by_plot(runs)

    ten_best = list(range(62, 42, -2))
    assert list(plots["curve_pass_1"]) == [f"p={level}" for level in ten_best]
    assert list(percents(plots["final"]["pass@1"]).values()) == ten_best


def test_groups_whose_names_begin_alike_are_told_apart_below_their_points():
    runs = []
    for lr in (1e-4, 3e-4, 1e-3, 3e-3):
        for template in ("{question}", 40 * "x"):
            settings = {"data__template": template, "optim__lr": lr}
            runs.append(made_run(f"{lr} {template}", BASE, evaluation(50, 60, 5), **settings))
    run_groups = group_runs(runs)

    (plot,) = [plot for plot in plot_runs(run_groups) if plot.name == "final"]

    assert ["".join(tick.split()) for tick in plot.ticks] == ["".join(label.split()) for label in run_groups.ranking]
    one_line = replace(plot, ticks=tuple(map(str, range(8))))
    assert draw(plot).get_figwidth() > draw(one_line).get_figwidth()


def test_a_sweep_of_too_many_lines_says_which_it_shows():
    runs = []
    for level in range(40, 64, 2):
        for share in (0.1, 0.2, 0.5):
            runs.append(made_run(f"{level}{share}", BASE, BASE, p=level, effective_positive=share))

    captions = {plot.name: plot.caption for plot in plot_runs(group_runs(runs))}

    expected = "final pass@1 against effective_positive (10 of 12 lines, those with the most points)"
    assert captions["sweep_effective_positive"] == expected


def test_curves_on_other_numbers_of_problems_say_so():
    """As of runs with and without evaluation.every, whose curve then is on all test problems."""
    runs = [*runs_of("topr", 60, 70, 5), *runs_of("is", 45, 50, 11)]
    for run in runs:
        for record in run.curve:
            record["problems"] = 50
    assert list(lines_by_plot(runs)["curve_pass_1"]) == ["topr", "is"]

    for record in runs[-1].curve:
        record["problems"] = 200
    lines = lines_by_plot(runs)
    assert list(lines["curve_pass_1"]) == ["topr, 50 problems", "is, 50 or 200 problems"]
    assert list(lines["training_loss"]) == ["topr", "is"]


# ---- drawing


POINTS = pd.DataFrame(
    {"mean": [0.9, 0.5, 0.1], "low": [0.7, 0.3, 0.0], "high": [1.0, 0.6, 0.2]},
    index=[1.0, 2.0, 4.0],
)


def drawn_axes(**options):
    plot = Plot("x", "result", "x", "x", "y", [Line("topr", 0, POINTS)], **options)
    assert draw_files([plot])[0] == draw_files([plot])[0], "the same runs give the same files"
    (axes,) = draw(plot).axes
    return axes


@pytest.mark.parametrize("log_x", [False, True])
def test_points_of_many_lines_stay_nearest_to_their_position(log_x):
    positions = np.array([0.02, 0.05, 0.1, 1.0])
    points = pd.DataFrame({"mean": 0.5, "low": 0.4, "high": 0.6}, index=positions)
    lines = [Line(str(style), style, points) for style in range(10)]
    plot = Plot("x", "sweep", "x", "x", "y", lines, whiskers=True, log_x=log_x)

    for index in range(len(lines)):
        offsets = offset_positions(plot, index)
        nearest = [np.abs(positions - offset).argmin() for offset in offsets]
        assert nearest == [0, 1, 2, 3]


def test_whiskers_reach_from_the_low_to_the_high_end():
    _, _, bars = drawn_axes(whiskers=True).containers[0].lines

    ends = [segment[:, 1] for segment in bars[0].get_segments()]

    assert np.array(ends) == pytest.approx(100 * POINTS[["low", "high"]].to_numpy())


def test_a_band_reaches_from_the_low_to_the_high_end():
    (outline,) = drawn_axes(whiskers=False).collections[0].get_paths()

    heights = pd.DataFrame(outline.vertices).groupby(0)[1]

    ends = heights.agg(["min", "max"])
    assert ends.to_numpy() == pytest.approx(100 * POINTS[["low", "high"]].to_numpy())


# ---- curves of single runs, and bands over repetitions


def test_what_is_missing_or_not_finite_is_no_number():
    records = []
    for step, loss in enumerate([1.0, math.nan, None, "x", 3.0, math.inf, True, {"a": 1}], 1):
        records.append({"step": step, "optimizer_step": step, "loss": loss})

    with patch("topr_exp.report.plots.MOST_POINTS", 2):
        curve = thin(to_frame(records)["loss"])

    assert curve.to_dict() == {4: 1.0, 8: 3.0}, "where each bin ends"
    assert to_frame([]).empty


def test_a_band_has_the_interval_of_the_values_at_each_position_that_all_curves_have():
    curves = [{0: 0.3, 10: 0.5, 20: 0.4}, {0: 0.2, 10: 0.6, 20: 0.5}, {0: 0.35, 20: 0.45}]
    not_begun = pd.Series(dtype=float)

    points = band([*map(pd.Series, curves), not_begun])

    assert points.index.tolist() == [0, 20]
    for position in points.index:
        expected = by_hand.interval(column(curves, position))
        assert points.loc[position].tolist() == pytest.approx(expected)
    assert band([]).empty


def test_of_two_curves_a_band_is_their_range():
    points = band([pd.Series({0: 0.3, 10: 0.5}), pd.Series({0: 0.2, 10: 0.6})])

    assert points[["low", "high"]].to_numpy().tolist() == [[0.2, 0.3], [0.5, 0.6]]
