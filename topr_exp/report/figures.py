"""Figures of the report: colours that the colour-blind tell apart, dashes and markers that grey keeps.

A line is a group of runs that differ in nothing but their seeds (or, of a sweep, a row of such groups).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topr_exp.evaluation.intervals import Interval, t_half_width
from topr_exp.report.estimates import Groups, estimate, headlines
from topr_exp.report.groups import Comparison, tell
from topr_exp.report.runs import DAMAGE, Run, was_cut_off
from topr_exp.runtime.json_files import as_number

# Okabe and Ito's palette without its yellow, ordered by lightness steps that stay apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Any = ((), (6, 2), (2, 1.5), (7, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")  # one a line; the last is the base's
BASE = -1  # the style of a base's line
MOST_LINES = 10  # of a figure
POINTS = 160  # of a curve that is drawn, at most; more updates are averaged in bins
LONGEST_TICK = 30  # characters
MOST_TICKS = 8  # of a logarithmic axis that is marked at its points
ASIDE, ASIDE_OF_TICK = 0.008, 0.12  # between error bars of the same place, of an axis and between ticks
PERCENT = 100.0  # the scale of shares
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": 200, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True, "lines.linewidth": 1.5, "text.usetex": False, "text.parse_math": False,
    "svg.fonttype": "none",
}  # fmt: skip
AXES = {"tokens": "tokens trained on", "virtual_time": "virtual time (updates)"}  # of asynchronous runs' pass@1
METRICS = ("loss", "log_ratio_pos", "log_ratio_neg", "kl_mu", "ess_neg")  # that curves show, beside those of tests
RESULTS = ("effective_positive", "baseline", "positive_share", "n_train")  # of the summary, as axes of sweep plots
LINEAR = ("effective_positive", "baseline", "positive_share")  # axes of sweep plots that are never logarithmic
KINDS = {  # of a problem's completions -> file, title, x axis, y axis
    "pass@k": ("pass_at_k", "pass@K: any of K correct", "K", "pass@K (%)"),
    "maj@k": ("maj_at_k", "maj@K: the most frequent answer of K correct", "K", "maj@K (%)"),
    "correct_histogram": (
        "correct_histogram", "problems by number of correct completions", "correct completions of a problem",
        "share of problems (%)",
    ),
    "levels": ("levels", "pass@1 by difficulty", "difficulty", "pass@1 (%)"),
}  # fmt: skip
INTERVALS = (
    "Shares in percent, intervals 95 %: over seeds and test problems (crossed random effects), of one run over test "
    "problems; of mean rewards, and where verdicts are gone, Student's t over runs. Bands: Student's t over three or "
    "more runs, of two their range. No interval holds the sampling of completions that runs share."
)


@dataclass(frozen=True)
class Line:
    """A line of a plot; style: the number of its colour and dashes."""

    name: str
    style: int
    points: pd.DataFrame  # by place: mean, low, high
    single: Sequence[pd.Series[float]] = ()  # the runs that it is the mean of


@dataclass(frozen=True)
class Plot:
    """Lines with the titles of their axes; share: between 0 and 1, and shown in percent."""

    name: str  # of its files
    section: str  # of the page
    caption: str
    x_title: str
    y_title: str
    lines: list[Line]
    share: bool = True
    whiskers: bool = False  # intervals at points, not along lines
    ticks: tuple[str, ...] = ()  # the names of the places 0, 1, ..., which no line joins
    log_x: bool = False


def plots(comparison: Comparison, groups: Groups) -> list[Plot]:
    """Every plot that these runs have numbers for; groups: best first, of which the first MOST_LINES are shown."""
    runs, groups = comparison.runs, dict([*groups.items()][:MOST_LINES])
    names = [*headlines(runs), "invalid", *["truncated_share"] * any(map(was_cut_off, runs))]
    curves = [curve_plot(groups, "test", name) for name in names]
    found = []
    if any("age" in run.curves["training"] for members in groups.values() for run in members):
        curves += [curve_plot(groups, "test", "pass@1", axis) for axis in AXES]
        found.append(age_plot(groups))
    curves += [curve_plot(groups, "training", name) for name in METRICS]
    found = [*filter(is_curve, curves), *found]
    done = {label: known for label, each in groups.items() if (known := [run for run in each if run.status == "done"])}
    if done:
        found += [final_plot(done), *(kind_plot(done, kind) for kind in KINDS), *sweep_plots(comparison)]
    return [plot for plot in found if plot.lines]


def is_curve(plot: Plot) -> bool:
    """Check that a plot shows more than where its lines begin and end."""
    return any(len(line.points) > 2 for line in plot.lines)


def is_share(name: str) -> bool:
    """Tell by its name whether a number lies between 0 and 1."""
    return any(part in name for part in ("pass@", "maj@", "invalid", "truncated"))


def curve_plot(groups: Groups, kind: str, name: str, axis: str = "") -> Plot:
    """A number against the updates, or against a key of AXES, a line for each group."""
    share = is_share(name)
    singles = {label: [thin(placed(run, run.curves[kind][name], axis)) for run in members if name in run.curves[kind]]
               for label, members in groups.items()}  # fmt: skip
    caption = f"{name} on test problems while training" if kind == "test" else f"{name} (bins of updates)"
    file = f"{'curve' if kind == 'test' else kind}_{safe(name)}"
    if axis:
        file, caption = f"{file}_{axis}", f"{caption}, by {AXES[axis]}"
    lines = mean_lines(singles, share=share, between=bool(axis))
    return Plot(
        file, "curves", caption, AXES.get(axis, "updates"), f"{name} (%)" if share else name, lines, share=share
    )


def mean_lines(singles: Mapping[str, list[pd.Series[float]]], *, share: bool, between: bool = False) -> list[Line]:
    """A line for each group that has curves."""
    lines = []
    for i, (label, single) in enumerate(singles.items()):
        if len(found := band(single, share=share, between=between)):
            several = f" ({len(single)} runs{', their range' * (len(single) == 2)})" * (len(single) > 1)
            lines.append(Line(label + several, i, found, single))
    return lines


def placed(run: Run, curve: pd.Series[float], axis: str) -> pd.Series[float]:
    """A curve at the places of another axis, where the run logged it; the base is at 0."""
    if not axis:
        return curve
    logged = run.curves["training"].get(axis, pd.Series(dtype=float))
    places = (logged.cumsum() if axis == "tokens" else logged).reindex(curve.index)
    places[places.index == 0] = 0.0
    return curve.set_axis(places)[places.notna().to_numpy()]


def age_plot(groups: Groups) -> Plot:
    """Mean effective sample size of the updates' completions by their age."""
    known = {label: [ess for run in members if len(ess := by_age(run))] for label, members in groups.items()}
    caption, y_title = "effective sample size by age (1, 2 to 3, 4 to 7, ...), mean of the updates", "ess"
    return Plot("ess_by_age", "curves", caption, "age (updates)", y_title, mean_lines(known, share=True), share=False)


def by_age(run: Run) -> pd.Series[float]:
    means = run.curves["training"].filter(regex=r"^ess_age\d+$").mean()
    if means.empty:  # no update yet
        return pd.Series(dtype=float)
    return means.set_axis(means.index.str.removeprefix("ess_age").astype(float)).sort_index()


def thin(curve: pd.Series[float], points: int = POINTS) -> pd.Series[float]:
    """Average bins of 2^i consecutive updates, at the end of each, so that runs of other lengths share places."""
    width = 1
    while width * points < len(curve):
        width *= 2
    bins = np.arange(len(curve)) // width
    return curve.groupby(bins).mean().set_axis(curve.index.to_series().groupby(bins).last())


def band(curves: Sequence[pd.Series[float]], *, share: bool = False, between: bool = False) -> pd.DataFrame:
    """Average repetitions where all have a value: mean, low and high of the 95 % t interval; of two their range.

    between: at the places of the first one, the others interpolated. share: the interval lies between 0 and 1.
    """
    known = [found for curve in curves if len(found := curve.dropna())]
    if between and known:
        x = known[0].index
        known = [pd.Series(np.interp(x, y.index, y, left=np.nan, right=np.nan), x).dropna() for y in known]
    if not known:
        return pd.DataFrame()
    table = pd.concat(known, axis=1, join="inner")
    mean, half = table.mean(axis=1), t_half_width(table.to_numpy().T)
    ends = (table.min(axis=1), table.max(axis=1)) if len(known) == 2 else (mean - half, mean + half)
    found = pd.DataFrame({"mean": mean, "low": ends[0], "high": ends[1]})
    return found.clip(0, 1) if share else found


def final_plot(groups: Groups) -> Plot:
    """Final pass@1, maj@K and invalid share of every group, and pass@1 of its base."""
    names = [*filter(is_share, headlines([run for runs in groups.values() for run in runs])), "invalid"]
    lines = []
    for style, name, part in [*((i, name, "final") for i, name in enumerate(names)), (BASE, "pass@1", "base")]:
        found = {float(i): estimate(members, name, part) for i, members in enumerate(groups.values())}
        lines.append(Line(f"base {name}" if part == "base" else name, style, of_intervals(found)))
    ticks = tuple(label if len(label) < LONGEST_TICK else f"{label[: LONGEST_TICK - 1]}…" for label in groups)
    lines = [line for line in lines if len(line.points)]
    return Plot(
        "final",
        "final",
        "pass@1, maj@K and invalid before and after training",
        "",
        "%",
        lines,
        whiskers=True,
        ticks=ticks,
    )


def of_intervals(points: Mapping[float, Interval | None]) -> pd.DataFrame:
    """Estimates at their places as one line."""
    known = {x: {"mean": one.value, "low": one.low, "high": one.high} for x, one in points.items() if one is not None}
    return pd.DataFrame(known).T


def kind_plot(groups: Groups, kind: str) -> Plot:
    """A statistic of KINDS, of every base and of every group after training."""
    name, caption, x_title, y_title = KINDS[kind]
    bases: dict[Any, Line] = {}  # by their figures: as a rule all groups began with one
    lines = []
    for i, (label, runs) in enumerate(groups.items()):
        base = of_problems(runs[0].summary.get("base"), kind)
        known = [of_problems(run.summary.get("final"), kind) for run in runs]
        bases.setdefault(tuple(base["mean"]), Line(f"base of {label}", BASE, base))
        same = all(found.equals(known[0]) for found in known)  # completions, or a single run
        lines.append(Line(label, i, known[0] if same else band([found["mean"] for found in known], share=True)))
    began = [replace(line, name="base" if len(bases) == 1 else line.name) for line in bases.values()]
    return Plot(name, "samples", caption, x_title, y_title, [line for line in began + lines if len(line.points)])


def of_problems(figures: Any, kind: str) -> pd.DataFrame:
    """pass@K, maj@K, the histogram of correct completions or pass@1 by difficulty of an evaluation; may be empty."""
    rows: dict[int, Any] = {}
    with contextlib.suppress(*DAMAGE):
        if kind == "correct_histogram":
            rows = {x: {"mean": float(count) / sum(figures[kind])} for x, count in enumerate(figures[kind])}
        else:
            names = {"mean": "pass@1" if kind == "levels" else "value", "low": "low", "high": "high"}
            points = {int(k): point for k, point in figures[kind].items()}
            rows = {x: {end: as_number(points[x].get(name)) for end, name in names.items()} for x in sorted(points)}
    table = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
    return table.reindex(columns=["mean", "low", "high"]).dropna(subset="mean")


def sweep_plots(comparison: Comparison) -> Iterator[Plot]:
    """Final pass@1 of every group against each setting or result with more than two values, averaged over seeds.

    Groups that differ in it alone are one line.
    """
    for axis in dict.fromkeys([*RESULTS, *comparison.differing]):  # p̃ and p first: what the paper sweeps
        own = {"effective_positive", "baseline"} if axis in ("effective_positive", "baseline") else {axis}
        rows: dict[str, dict[float, Interval]] = {}
        for members in comparison.groups.values():
            places = [run.figure(axis) if axis in RESULTS else as_number(run.settings.get(axis)) for run in members]
            known, found = [place for place in places if place is not None], estimate(members, "pass@1")
            if known and found is not None:
                label = ", ".join(tell(key, members[0]) for key in comparison.keys if key not in own)
                rows.setdefault(label or "all runs", {})[float(np.mean(known))] = found
        if len({place for row in rows.values() for place in row}) < 3:
            continue
        lines = [Line(label, i, of_intervals(points).sort_index()) for i, (label, points) in enumerate(rows.items())]
        lines = sorted(lines, key=lambda line: -len(line.points))[:MOST_LINES]  # those with most points
        title = {"effective_positive": "effective proportion of positives p̃"}.get(axis, axis)
        caption = f"final pass@1 against {axis}"
        name, log_x = f"sweep_{safe(axis)}", axis not in LINEAR and spans_decade(lines)
        yield Plot(name, "sweep", caption, title, "final pass@1 (%)", lines, whiskers=True, log_x=log_x)


def spans_decade(lines: Sequence[Line]) -> bool:
    """Check that the places of all points are positive and the last at least ten times the first."""
    places = [place for line in lines for place in line.points.index]
    return 0 < 10 * min(places) <= max(places)


def plain_number(value: float) -> str:
    """A number as the documents write it: 1e-4 in place of 0.0001 and of 1e-04."""
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    if -3 < int(exponent) < 4:
        return f"{value:g}"
    return f"{float(mantissa):g}e{int(exponent)}"


def safe(name: str) -> str:
    return "".join(ch if ch.isalnum() else "_" for ch in name)


def draw_files(found: Sequence[Plot]) -> tuple[dict[str, bytes], dict[str, tuple[Plot, str]]]:
    """Draw plots: the files (PDF and PNG with their captions) by name, and each plot with its SVG for the page."""
    captions = "\n".join([*(f"{plot.name}: {plot.caption}" for plot in found), "", INTERVALS, ""])
    files, drawings = {"captions.txt": captions.encode()}, {}
    for plot in found:
        with mpl.rc_context({**STYLE, "svg.hashsalt": plot.name}):  # ids that no other figure of the page has
            figure = draw(plot)
            # Without a legend, which the page has. No date inside, so that the same runs give the same files.
            svg = saved(figure, "svg", {"Date": None, "Creator": None}).decode()
            drawings[plot.name] = plot, svg[svg.index("<svg") :]
            if len(plot.lines) > 1:
                figure.axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))  # the picture grows with its names
            files[f"{plot.name}.pdf"] = saved(figure, "pdf", {"CreationDate": None}, "tight")
            files[f"{plot.name}.png"] = saved(figure, "png", {}, "tight")
    return files, drawings


def saved(figure: Figure, kind: str, metadata: dict[str, Any], size: Literal["tight"] | None = None) -> bytes:
    """Save a figure in memory; it keeps the layout that this computes. tight: the picture holds all, and no more."""
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=metadata, bbox_inches=size)
    figure.set_layout_engine("none")
    return stream.getvalue()


def series_style(i: int) -> dict[str, Any]:
    """The line style of the i-th group."""
    if i == BASE:
        return {"color": "#737373", "dashes": (1, 1)}
    return {"color": COLORS[i % len(COLORS)], "dashes": DASHES[i % len(DASHES)]}


def draw(plot: Plot) -> Figure:
    """Lines with their intervals, as bands or at their points; the parts of line i have ids NAME.i.0 and so on."""
    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    ax = figure.subplots()
    scale = PERCENT if plot.share else 1.0
    ends = [place for line in plot.lines for place in line.points.index]
    width = ASIDE_OF_TICK if plot.ticks else ASIDE * (max(ends) - min(ends))
    for i, line in enumerate(plot.lines):
        x, (mean, low, high) = line.points.index.to_numpy(float), scale * line.points.to_numpy(float).T
        style = series_style(line.style)
        color = style["color"]
        artists: list[Artist] = []
        aside = i - (len(plot.lines) - 1) / 2
        if plot.log_x:
            x = x * (max(ends) / min(ends)) ** (ASIDE * aside)
        elif plot.whiskers:
            x = x + aside * width
        if plot.whiskers:
            bars = ax.errorbar(x, mean, [mean - low, high - mean], fmt="none", ecolor=color, capsize=2)
            artists += bars.get_children()
        else:
            artists.append(ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0))
        for one in line.single if len(line.single) > 1 else ():
            artists += ax.plot(one.index, scale * one, color=color, lw=0.5, alpha=0.5)
        marker: Any = {"marker": MARKERS[line.style % len(MARKERS)], "markersize": 4} if len(x) < 25 else {}
        artists += ax.plot(x, mean, label=line.name, **marker, **({"color": color, "ls": ""} if plot.ticks else style))
        for j, artist in enumerate(artists):
            artist.set_gid(f"{plot.name}.{i}.{j}")
    if plot.section == "curves":
        ax.locator_params("x", integer=True)
    if plot.x_title == "K":
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if plot.log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: plain_number(value))
        ax.xaxis.set_minor_formatter(NullFormatter())
        if len({*ends}) <= MOST_TICKS:
            ax.set_xticks(sorted({*ends}))
            ax.set_xticks([], minor=True)
    if plot.ticks:
        many = len(plot.ticks) > 3
        ax.set_xticks(range(len(plot.ticks)), plot.ticks, rotation=30 if many else 0, ha="right" if many else "center")
        ax.grid(axis="x", visible=False)
    ax.set(xlabel=plot.x_title, ylabel=plot.y_title)
    return figure
