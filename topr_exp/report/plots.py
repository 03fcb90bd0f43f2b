"""Plots of the report as numbers: lines of groups of runs, or of rows of groups in a sweep, with 95 % intervals."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from textwrap import fill
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from topr_exp.evaluation.intervals import Point, t_half_width
from topr_exp.report.estimates import Groups, estimate, finished_only, headlines
from topr_exp.report.grouping import RunGroups, settings_text
from topr_exp.report.reader import Run, was_truncated
from topr_exp.runs.records import is_count
from topr_exp.runtime.json_files import DAMAGE, as_number

MOST_LINES = 10  # of a plot
MOST_POINTS = 160  # of a curve; more updates are averaged in bins
TICK_WIDTH = 30  # characters of a line
BASE_STYLE = -1  # of a base's line
CURVE_AXES = {"tokens": "tokens trained on", "virtual_time": "virtual time (updates)"}  # of asynchronous runs
TRAINING_METRICS = ("loss", "log_ratio_pos", "log_ratio_neg", "kl_mu", "ess_neg")
SUMMARY_AXES = ("effective_positive", "baseline", "positive_share", "n_train")  # of sweep plots
LINEAR_AXES = ("effective_positive", "baseline", "positive_share")  # of sweep plots; never logarithmic
TIED_AXES = ("effective_positive", "baseline")  # one follows from the other
AXIS_TITLES = {"effective_positive": "effective proportion of positives p̃"}
POINT_COLUMNS = ("value", "low", "high")  # of a `Point`; a line's points have "mean" for "value"

Curve: TypeAlias = pd.Series  # numbers by position
Curves = dict[str, list[Curve]]  # of the runs of each group, by label


@dataclass(frozen=True)
class Line:
    """A line of a plot; style: the number of its colour and dashes."""

    name: str
    style: int
    points: pd.DataFrame  # by position: mean, low, high
    run_curves: Sequence[Curve] = ()  # of the runs that it is the mean of


@dataclass(frozen=True)
class Plot:
    """Lines with the titles of their axes; share: between 0 and 1, shown in percent."""

    name: str  # of its files
    section: str  # of the page
    caption: str
    x_title: str
    y_title: str
    lines: list[Line]
    share: bool = True
    whiskers: bool = False  # intervals at points, not along lines
    ticks: tuple[str, ...] = ()  # names of the positions 0, 1, ...; no line joins the points
    log_x: bool = False


PROBLEM_PLOTS = {  # of a statistic of each problem's completions, by the key of an evaluation
    "pass@k": Plot("pass_at_k", "samples", "pass@K: any of K correct", "K", "pass@K (%)", []),
    "maj@k": Plot("maj_at_k", "samples", "maj@K: the most frequent answer of K correct", "K", "maj@K (%)", []),
    "correct_histogram": Plot(
        "correct_histogram",
        "samples",
        "problems by number of correct completions",
        "correct completions of a problem",
        "share of problems (%)",
        [],
    ),
    "levels": Plot("levels", "samples", "pass@1 by difficulty", "difficulty", "pass@1 (%)", []),
}


def plot_runs(run_groups: RunGroups) -> list[Plot]:
    """Every plot that these runs have numbers for, of the best MOST_LINES groups."""
    best_groups = dict(islice(run_groups.ranking.items(), MOST_LINES))
    plots = list(filter(has_curve, curve_plots(run_groups, best_groups)))
    if is_asynchronous(best_groups):
        plots.append(age_plot(best_groups))
    finished_groups = finished_only(best_groups)
    if finished_groups:
        plots.append(final_plot(finished_groups))
        for kind in PROBLEM_PLOTS:
            plots.append(problem_plot(finished_groups, kind))
        plots += sweep_plots(run_groups)
    return [plot for plot in plots if plot.lines]


# ---- curves


def curve_plots(run_groups: RunGroups, groups: Groups) -> Iterator[Plot]:
    """Figures of the tests while training, then metrics of the updates."""
    test_names = [*headlines(run_groups.runs), "invalid"]
    if any(map(was_truncated, run_groups.runs)):
        test_names.append("truncated_share")
    for name in test_names:
        yield curve_plot(groups, "test", name)
    if is_asynchronous(groups):
        for axis in CURVE_AXES:
            yield curve_plot(groups, "test", "pass@1", axis=axis)
    for name in TRAINING_METRICS:
        yield curve_plot(groups, "training", name)


def is_asynchronous(groups: Groups) -> bool:
    return any("age" in run.curves["training"] for run in runs_of(groups))


def runs_of(groups: Groups) -> list[Run]:
    return list(chain.from_iterable(groups.values()))


def has_curve(plot: Plot) -> bool:
    """Return True where a plot shows more than both ends of its lines."""
    return any(len(line.points) > 2 for line in plot.lines)


def is_share(name: str) -> bool:
    """Tell by its name whether a number lies between 0 and 1."""
    return any(word in name for word in ("pass@", "maj@", "invalid", "truncated"))


def curve_plot(groups: Groups, kind: str, name: str, *, axis: str = "") -> Plot:
    """A number against the updates, or against a key of CURVE_AXES, a line a group. kind: "test" or "training"."""
    shows_problem_counts = kind == "test" and len(tested_problems(runs_of(groups))) > 1
    curves: Curves = {}
    for label, runs in groups.items():
        counts = tested_problems(runs)
        if shows_problem_counts and counts:
            label = f"{label}, {' or '.join(map(str, counts))} problems"
        curves[label] = read_curves(runs, kind, name, axis=axis)
    if kind == "test":
        file_name = f"curve_{file_part(name)}"
        caption = f"{name} on test problems while training"
    else:
        file_name = f"{kind}_{file_part(name)}"
        caption = f"{name} (bins of updates)"
    if axis:
        file_name = f"{file_name}_{axis}"
        caption = f"{caption}, by {CURVE_AXES[axis]}"
    share = is_share(name)
    return Plot(
        file_name,
        "curves",
        caption,
        x_title=CURVE_AXES.get(axis, "updates"),
        y_title=f"{name} (%)" if share else name,
        lines=mean_lines(curves, share=share, interpolate=bool(axis)),
        share=share,
    )


def read_curves(runs: Sequence[Run], kind: str, name: str, *, axis: str) -> list[Curve]:
    """A number's curves of the runs that logged it, for `curve_plot`."""
    curves = []
    for run in runs:
        frame = run.curves[kind]
        if name in frame:
            curve = on_axis(run, frame[name], axis)
            curves.append(thin(curve))
    return curves


def tested_problems(runs: Sequence[Run]) -> list[int]:
    """The different numbers of test problems that the curves of runs are on, in order."""
    counts = set()
    for run in runs:
        for record in run.curve:
            count = record.get("problems")
            if is_count(count):
                counts.add(count)
    return sorted(counts)


def mean_lines(curves: Curves, *, share: bool, interpolate: bool = False) -> list[Line]:
    """A line for each group that has curves."""
    lines = []
    for style, (label, group_curves) in enumerate(curves.items()):
        if len(group_curves) == 2:
            label = f"{label} (2 runs, their range)"
        elif len(group_curves) > 2:
            label = f"{label} ({len(group_curves)} runs)"
        points = band(group_curves, share=share, interpolate=interpolate)
        if len(points):
            lines.append(Line(label, style, points, group_curves))
    return lines


def on_axis(run: Run, curve: Curve, axis: str) -> Curve:
    """A curve at the positions of another axis, where the run logged it; the base is at 0."""
    if not axis:
        return curve
    positions = run.curves["training"].get(axis, pd.Series(dtype=float))  # by step
    if axis == "tokens":
        positions = positions.cumsum()
    positions = positions.reindex(curve.index)
    positions[positions.index == 0] = 0.0
    is_logged = positions.notna().to_numpy()
    return curve.set_axis(positions)[is_logged]


def age_plot(groups: Groups) -> Plot:
    """Mean effective sample size of the updates' completions by their age."""
    curves: Curves = {}
    for label, runs in groups.items():
        curves[label] = list(filter(len, map(size_by_age, runs)))
    return Plot(
        "ess_by_age",
        "curves",
        "effective sample size by age (1, 2 to 3, 4 to 7, ...), mean of the updates",
        x_title="age (updates)",
        y_title="ess",
        lines=mean_lines(curves, share=True),
        share=False,
    )


def size_by_age(run: Run) -> Curve:
    """A run's mean effective sample size by age in updates; empty without updates."""
    means = run.curves["training"].filter(regex=r"^ess_age\d+$").mean()
    if means.empty:
        return pd.Series(dtype=float)
    ages = means.index.str.removeprefix("ess_age").astype(float)
    return means.set_axis(ages).sort_index()


def thin(curve: Curve) -> Curve:
    """Average bins of 2^i consecutive updates, at the end of each, so that runs of other lengths share positions."""
    width = 1
    while width * MOST_POINTS < len(curve):
        width *= 2
    bins = np.arange(len(curve)) // width
    means = curve.groupby(bins).mean()
    bin_ends = curve.index.to_series().groupby(bins).last()
    return means.set_axis(bin_ends)


def band(curves: Sequence[Curve], *, share: bool = False, interpolate: bool = False) -> pd.DataFrame:
    """Average the curves of repetitions where all have a value.

    Returns columns mean, low and high by position: the 95 % t interval, of two curves their range; empty without
    curves. interpolate: at the positions of the first curve, the others interpolated. share: the interval lies between
    0 and 1.
    """
    known_curves = []
    for curve in curves:
        known_values = curve.dropna()
        if len(known_values):
            known_curves.append(known_values)
    if not known_curves:
        return pd.DataFrame()
    if interpolate:
        positions = known_curves[0].index
        known_curves = [interpolated(curve, positions) for curve in known_curves]
    table = pd.concat(known_curves, axis=1, join="inner")  # [positions, curves]
    mean = table.mean(axis=1)
    if len(known_curves) == 2:
        low = table.min(axis=1)
        high = table.max(axis=1)
    else:
        values = table.to_numpy().T  # [curves, positions]
        half_width = t_half_width(values)
        low = mean - half_width
        high = mean + half_width
    points = pd.DataFrame({"mean": mean, "low": low, "high": high})
    if share:
        return points.clip(0, 1)
    return points


def interpolated(curve: Curve, positions: pd.Index) -> Curve:
    """A curve at other positions, as far as it reaches."""
    values = np.interp(positions, curve.index, curve, left=np.nan, right=np.nan)
    return pd.Series(values, positions).dropna()


# ---- finished runs


def final_plot(groups: Groups) -> Plot:
    """Final pass@1, maj@K and invalid share of every group, and pass@1 of its base."""
    names = [*filter(is_share, headlines(runs_of(groups))), "invalid"]
    lines = []
    for style, name in enumerate(names):
        lines.append(estimate_line(groups, name, style=style))
    lines.append(estimate_line(groups, "pass@1", "base", style=BASE_STYLE))
    # Uncut: two may differ at their ends alone.
    ticks = [fill(label, TICK_WIDTH, break_on_hyphens=False) for label in groups]
    return Plot(
        "final",
        "final",
        "pass@1, maj@K and invalid before and after training",
        x_title="",
        y_title="%",
        lines=without_empty(lines),
        whiskers=True,
        ticks=tuple(ticks),
    )


def estimate_line(groups: Groups, name: str, stage: str = "final", *, style: int) -> Line:
    """The estimates of a figure, one a group."""
    title = f"base {name}" if stage == "base" else name
    points = {}
    for index, runs in enumerate(groups.values()):
        interval = estimate(runs, name, stage)
        if interval is not None:
            points[index] = interval.as_dict()
    return Line(title, style, line_points(points))


def line_points(points: Mapping[Any, Point]) -> pd.DataFrame:
    """Tabulate points by position; one may lack the ends of its interval, and what has no value is left out."""
    rows = list(points.values())
    positions = list(points)
    table = pd.DataFrame(rows, index=positions, columns=POINT_COLUMNS, dtype=float)
    table = table.rename(columns={"value": "mean"})
    return table.sort_index().dropna(subset="mean")


def problem_plot(groups: Groups, kind: str) -> Plot:
    """A plot of PROBLEM_PLOTS, of every base and of every group after training; kind: its key."""
    base_lines: dict[tuple[float, ...], Line] = {}  # by their values: as a rule all groups began with one base
    final_lines = []
    for style, (label, runs) in enumerate(groups.items()):
        base_points = problem_statistic(runs[0].summary.get("base"), kind)
        base_values = tuple(base_points["mean"])
        if base_values not in base_lines:
            base_lines[base_values] = Line(f"base of {label}", BASE_STYLE, base_points)
        final_points = final_statistic(runs, kind)
        final_lines.append(Line(label, style, final_points))
    lines = [*base_lines.values(), *final_lines]
    if len(base_lines) == 1:
        lines[0] = replace(lines[0], name="base")
    return replace(PROBLEM_PLOTS[kind], lines=without_empty(lines))


def without_empty(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if len(line.points)]


def final_statistic(runs: Sequence[Run], kind: str) -> pd.DataFrame:
    """Points of a group after training: the mean of its runs, or where they share completions those of one."""
    points_of_runs = [problem_statistic(run.summary.get("final"), kind) for run in runs]
    first_points = points_of_runs[0]
    are_equal = all(points.equals(first_points) for points in points_of_runs)
    if are_equal:
        return first_points
    means = [points["mean"] for points in points_of_runs]
    return band(means, share=True)


def problem_statistic(evaluation: Any, kind: str) -> pd.DataFrame:
    """Points of a key of PROBLEM_PLOTS in an evaluation: mean, and low and high where known; may be empty."""
    points: dict[int, Point] = {}
    with contextlib.suppress(*DAMAGE):
        points = read_points(evaluation[kind], kind)
    return line_points(points)


def read_points(statistic: Any, kind: str) -> dict[int, Point]:
    """The points of a stored statistic by position; raises DAMAGE."""
    points: dict[int, Point] = {}
    if kind == "correct_histogram":
        problem_count = sum(statistic)
        for correct_count, problems in enumerate(statistic):
            points[correct_count] = {"value": float(problems) / problem_count}
    elif kind == "levels":
        for level, figures in statistic.items():
            points[int(level)] = {"value": as_number(figures.get("pass@1"))}
    else:
        for k, point in statistic.items():
            points[int(k)] = {name: as_number(point.get(name)) for name in POINT_COLUMNS}
    return points


# ---- sweeps


def sweep_plots(run_groups: RunGroups) -> Iterator[Plot]:
    """Final pass@1 of every group against each setting or result with more than two values, averaged over seeds.

    Groups that differ in it alone are one line.
    """
    for axis in dict.fromkeys([*SUMMARY_AXES, *run_groups.differing]):  # p̃ and p first: what the paper sweeps
        rows = sweep_rows(run_groups, axis)
        lines = []
        for style, (label, points) in enumerate(rows.items()):
            lines.append(Line(label, style, line_points(points)))
        distinct_positions = set(all_positions(lines))
        if len(distinct_positions) < 3:
            continue
        longest_lines = sorted(lines, key=lambda line: -len(line.points))[:MOST_LINES]
        caption = f"final pass@1 against {axis}"
        if len(lines) > MOST_LINES:
            caption += f" ({MOST_LINES} of {len(lines)} lines, those with the most points)"
        yield Plot(
            f"sweep_{file_part(axis)}",
            "sweep",
            caption,
            x_title=AXIS_TITLES.get(axis, axis),
            y_title="final pass@1 (%)",
            lines=longest_lines,
            whiskers=True,
            log_x=axis not in LINEAR_AXES and spans_decade(longest_lines),
        )


def sweep_rows(run_groups: RunGroups, axis: str) -> dict[str, dict[float, Point]]:
    """Estimates of final pass@1 by position on an axis, a row for each choice of the other settings."""
    axis_keys = TIED_AXES if axis in TIED_AXES else (axis,)
    label_keys = [key for key in run_groups.keys if key not in axis_keys]
    rows: dict[str, dict[float, Point]] = {}
    for runs in run_groups.groups.values():
        position = mean_position(runs, axis)
        interval = estimate(runs, "pass@1")
        if position is None or interval is None:
            continue
        label = settings_text(label_keys, runs[0]) or "all runs"
        points = rows.setdefault(label, {})
        points[position] = interval.as_dict()
    return rows


def mean_position(runs: Sequence[Run], axis: str) -> float | None:
    """The mean of a setting or result of runs; None where no run has it."""
    positions = []
    for run in runs:
        if axis in SUMMARY_AXES:
            position = run.summary_number(axis)
        else:
            position = as_number(run.settings.get(axis))
        if position is not None:
            positions.append(position)
    if not positions:
        return None
    return float(f"{np.mean(positions):.12g}")  # of equal values the mean may differ in the last digit


def spans_decade(lines: Sequence[Line]) -> bool:
    """Return True where all positions are positive and the last is at least ten times the first."""
    positions = all_positions(lines)
    return 0 < 10 * min(positions) <= max(positions)


def all_positions(lines: Sequence[Line]) -> list[float]:
    return [position for line in lines for position in line.points.index]


def file_part(name: str) -> str:
    """A name of letters, digits and underscores."""
    return re.sub(r"\W", "_", name)
