"""Figures of the report: colours that the colour-blind tell apart, dashes and markers that grey keeps.

A line is a group of runs that differ in nothing but their seeds (or, of a sweep, a row of such groups).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.curves import Band, band
from topr_exp.report.estimates import estimate, majority_name
from topr_exp.report.groups import Comparison, axes, bases, tell
from topr_exp.report.runs import Run
from topr_exp.runtime.jsonfiles import number

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, ordered by lightness steps that stay apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((), (6, 2), (2, 1.5), (7, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")  # one a line; the last is the base's
BASE = -1  # the style of a base's line
MOST_LINES = 10  # of a figure in a file
LONGEST_TICK = 30  # characters
MOST_INSIDE = 4  # entries of a legend that stands inside its plot
ASIDE, ASIDE_OF_TICK = 0.008, 0.12  # between error bars of the same place, of an axis and between ticks
MARGINS = {"left": 0.15, "right": 0.98, "bottom": 0.14, "top": 0.97}  # where the page does without a layout's time
PERCENT = 100.0  # the scale of shares
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": 200, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True, "lines.linewidth": 1.5, "text.usetex": False, "text.parse_math": False,
    "svg.fonttype": "none",
}  # fmt: skip
RATIOS = ("log_ratio_pos", "log_ratio_neg", "kl_mu", "ess_neg")
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
    "Bars and points: 95 % intervals over runs that differ in their seeds and over test problems (crossed random "
    "effects); of a single run over test problems (bootstrap). Bands: 95 % t intervals over three or more runs, of two "
    "their range: how another choice of test problems would move all of them is not in them. Runs that differ in "
    "`seed` alone share their training completions: how another sampling would move them is in no interval."
)
Groups = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Line:
    """A line of a plot; style: the number of its colour and dashes."""

    name: str
    style: int
    band: Band


@dataclass(frozen=True)
class Plot:
    """Lines with the titles of their axes; share: between 0 and 1, and shown in percent."""

    name: str  # of its files
    section: str  # of the page
    caption: str
    lines: list[Line]
    x_title: str
    y_title: str
    share: bool = True
    log_x: bool = False
    whiskers: bool = False  # intervals at points, not along lines
    ticks: tuple[str, ...] = ()  # the names of the places 0, 1, ..., which no line joins
    in_files: bool = True  # not on the page alone


# ---- from runs to plots


def plots(runs: Sequence[Run], comparison: Comparison, groups: Groups) -> list[Plot]:
    """Every plot that these runs have numbers for."""
    return [plot for plot in every_plot(runs, comparison, groups) if plot.lines]


def every_plot(runs: Sequence[Run], comparison: Comparison, groups: Groups) -> Iterator[Plot]:
    majority = majority_name(runs) or ""
    for kind, main in (("test", ("pass@1", majority, "invalid")), ("training", ("loss", *RATIOS))):
        known = {name for run in runs for name in run.curves(kind)}
        several = kind == "training" or any(len(run.curves(kind)) > 1 for run in runs)
        for name in [name for name in main if name in known] if several else ():
            yield curve_plot(groups, kind, name)
            if name == main[0]:
                yield single_runs(groups, kind, name)
    if not any(run.figure("final", "pass@1") is not None for run in runs):
        return
    yield final_plot(dict([*groups.items()][:MOST_LINES]), majority)
    for kind in KINDS:
        yield replace(kinds_plot(groups, bases(list(runs), comparison), kind), in_files=kind != "levels")
    for axis, places in axes(list(runs), comparison).items():
        if len({value for value in places if value is not None}) > 2:
            yield sweep_plot(runs, comparison, axis, places)


def is_share(name: str) -> bool:
    """Tell by its name whether a number lies between 0 and 1."""
    parts = ("pass@", "maj@", "correct", "invalid", "share", "clipped")
    return any(part in name for part in parts) and not name.startswith("length") and "reward" not in name


def curve_plot(groups: Groups, kind: str, name: str) -> Plot:
    """A number against the updates, a line for each group; of tests those on as many problems as its first run's."""
    lines = []
    for i, (label, members) in enumerate(groups.items()):
        having = [run for run in members if name in run.curves(kind)]
        asked = [run.curve[0].get("problems") if kind == "test" else None for run in having]
        known = [run.curves(kind)[name] for run, problems in zip(having, asked, strict=True) if problems == asked[0]]
        found = band([(one.index.to_numpy(float), one.to_numpy()) for one in known], share=is_share(name))
        if found is not None:  # places that all have
            lines.append(Line(f"{label} ({found.curves} runs)" if found.curves > 1 else label, i, found))
    caption = f"{name} on test problems while training" if kind == "test" else f"{name} (bins of updates)"
    title = f"{name} (%)" if is_share(name) else name
    prefix = "curve" if kind == "test" else "training"
    return Plot(f"{prefix}_{safe(name)}", "curves", caption, lines, "optimizer steps", title, share=is_share(name))


def single_runs(groups: Groups, kind: str, name: str) -> Plot:
    """The curves of single runs in the colours of their groups, for the page."""
    found = curve_plot({run.name: [run] for members in groups.values() for run in members}, kind, name)
    styles = [i for i, members in enumerate(groups.values()) for _ in members]
    lines = [replace(line, style=styles[line.style]) for line in found.lines]
    caption = f"{found.caption}, single runs"
    return replace(found, name=f"{found.name}_runs", caption=caption, lines=lines, in_files=False)


def final_plot(groups: Groups, majority: str) -> Plot:
    """Final pass@1, maj@K and invalid share of every group, and pass@1 of its base."""
    shown = [(name, "final", i) for i, name in enumerate(["pass@1", *([majority] if majority else []), "invalid"])]
    lines = []
    for name, part, style in [*shown, ("pass@1", "base", BASE)]:
        found = {i: estimate(members, name, part) for i, members in enumerate(groups.values())}
        points = [(i, one) for i, one in found.items() if one is not None]
        if points:
            lines.append(Line(f"base {name}" if part == "base" else name, style, of_intervals(points)))
    ticks = tuple(label if len(label) < LONGEST_TICK else f"{label[: LONGEST_TICK - 1]}…" for label in groups)
    return Plot("final", "result", "before and after training", lines, "", "%", whiskers=True, ticks=ticks)


def kinds_plot(groups: Groups, of_bases: Groups, kind: str) -> Plot:
    """A statistic of KINDS, of the bases and of every group after training."""
    parts = [*((label, BASE, runs, "base") for label, runs in of_bases.items()),
             *((label, i, runs, "final") for i, (label, runs) in enumerate(groups.items()))]  # fmt: skip
    lines = []
    for label, style, members, part in parts:
        known = [one for run in members if (one := of_problems(run.summary.get(part), kind)) is not None]
        if known:
            same = all(np.array_equal(one.mean, known[0].mean) for one in known)  # as a base is for all seeds
            found = known[0] if same else band([(one.x, one.mean) for one in known], share=True)
            lines += [Line(label, style, found)] if found is not None else []
    name, caption, x_title, y_title = KINDS[kind]
    return Plot(name, "samples", caption, lines, x_title, y_title, log_x=x_title == "K")


def of_problems(figures: Any, kind: str) -> Band | None:
    """pass@K, maj@K, the histogram of correct completions or pass@1 by difficulty of an evaluation."""
    found = figures.get(kind) if isinstance(figures, dict) else None
    points: list[tuple[float | None, ...]] = []
    if isinstance(found, list) and sum(found):
        points = [(x, count / sum(found), None, None) for x, count in enumerate(found)]
    elif isinstance(found, dict):
        names = ("pass@1" if kind == "levels" else "value", "low", "high")
        known = {int(k): point for k, point in found.items() if k.isdigit() and isinstance(point, dict)}
        points = [(x, *(number(known[x].get(name)) for name in names)) for x in sorted(known)]
    points = [point for point in points if point[1] is not None]
    return to_band(points) if points else None


def of_intervals(points: Sequence[tuple[float, Interval]]) -> Band:
    """Estimates at their places as one curve."""
    return to_band([(x, found.value, found.low, found.high) for x, found in points])


def to_band(points: Sequence[tuple[float | None, ...]]) -> Band:
    """Points (place, value, low, high) as one curve."""
    x, mean, low, high = np.array(points, dtype=np.float64).T
    return Band(x, mean, low, high, 1)


def sweep_plot(runs: Sequence[Run], comparison: Comparison, axis: str, places: Sequence[float | None]) -> Plot:
    """Final pass@1 of every group against a number; groups that differ in it alone are one line.

    places: of the runs on the axis. What follows from the drawn training set differs a little between seeds: the mean.
    """
    own = {"effective_positive", "baseline"} if axis in ("effective_positive", "baseline") else {axis}
    rows: dict[str, list[tuple[float, Interval]]] = {}
    for members in comparison.groups.values():
        known = [place for i in members if (place := places[i]) is not None]
        found = estimate([runs[i] for i in members], "pass@1")
        if known and found is not None:
            settings = comparison.settings[members[0]]
            label = ", ".join(tell(key, settings) for key in comparison.keys if key not in own)
            rows.setdefault(label or "all runs", []).append((float(np.mean(known)), found))
    lines = [Line(label, i, of_intervals(sorted(points, key=lambda point: point[0])))
             for i, (label, points) in enumerate(rows.items())]  # fmt: skip
    lines.sort(key=lambda line: -len(line.band.x))  # those with most points are shown at first
    title = {"effective_positive": "effective proportion of positives p~"}.get(axis, axis)
    caption = f"final pass@1 against {axis}"
    return Plot(f"sweep_{safe(axis)}", "sweep", caption, lines, title, "final pass@1 (%)", whiskers=True)


def safe(name: str) -> str:
    return "".join(ch if ch.isalnum() else "_" for ch in name)


# ---- from plots to files


def write_figures(folder: Path, found: Sequence[Plot]) -> dict[str, str]:
    """Draw plots as PDF and PNG with their captions; returns each as SVG by its name, for the page."""
    import matplotlib as mpl

    captions, drawings = [], {}
    for plot in found:
        with mpl.rc_context({**STYLE, "svg.hashsalt": plot.name}):  # ids that no other figure of the page has
            figure, parts = draw(plot)
            drawings[plot.name] = as_svg(figure)
            if plot.in_files:
                for part in parts[MOST_LINES:]:
                    for artist in part:
                        artist.remove()
                add_legend(figure)
                # No date inside, so that the same runs give the same file.
                figure.savefig(folder / f"{plot.name}.pdf", metadata={"CreationDate": None})
                figure.set_layout_engine("none")
                figure.savefig(folder / f"{plot.name}.png")
                captions.append(f"{plot.name}: {plot.caption}")
    (folder / "captions.txt").write_text("\n".join([*captions, "", INTERVALS, ""]), encoding="utf-8")
    return drawings


def as_svg(figure: Figure) -> str:
    """A figure without its legend, which the page has; it keeps the layout that this computes."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")
    text = stream.getvalue()
    return text[text.index("<svg") :]


def series_style(i: int) -> dict[str, Any]:
    """The line style of the i-th group."""
    if i == BASE:
        return {"color": "#737373", "dashes": (1, 1)}
    return {"color": COLORS[i % len(COLORS)], "dashes": DASHES[i % len(DASHES)]}


def draw(plot: Plot) -> tuple[Figure, list[list[Artist]]]:
    """Lines with their intervals, as bands or at their points; the parts of line i have ids NAME.i.0 and so on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.3), layout="constrained" if plot.in_files else None)
    ax: Axes = figure.subplots(gridspec_kw=None if plot.in_files else MARGINS)
    scale = PERCENT if plot.share else 1.0
    ends = [place for line in plot.lines for place in (line.band.x.min(), line.band.x.max())]
    width = ASIDE_OF_TICK if plot.ticks else ASIDE * (max(ends) - min(ends))
    parts = []
    for i, line in enumerate(plot.lines):
        x, mean, low, high = line.band.x, scale * line.band.mean, scale * line.band.low, scale * line.band.high
        style = series_style(line.style)
        if plot.whiskers:
            x = x + (i - (len(plot.lines) - 1) / 2) * width
        marker: Any = {"marker": MARKERS[line.style % len(MARKERS)], "markersize": 4} if len(x) < 25 else {}
        joined: Any = {"color": style["color"], "ls": ""} if plot.ticks else style
        artists: list[Artist] = [*ax.plot(x, mean, label=line.name, **joined, **marker)]
        if plot.whiskers:
            bars = ax.errorbar(x, mean, [mean - low, high - mean], fmt="none", ecolor=style["color"], capsize=2)
            artists += bars.get_children()
        else:
            artists.append(ax.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0))
        for j, artist in enumerate(artists):
            artist.set_gid(f"{plot.name}.{i}.{j}")
        parts.append(artists)
    if plot.log_x:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if plot.ticks:
        many = len(plot.ticks) > 3
        ax.set_xticks(range(len(plot.ticks)), plot.ticks, rotation=30 if many else 0, ha="right" if many else "center")
        ax.grid(axis="x", visible=False)
    ax.set(xlabel=plot.x_title, ylabel=plot.y_title)
    return figure, parts


def add_legend(figure: Figure) -> None:
    """Inside while there is room, else beside the plot."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) > MOST_INSIDE:
        figure.set_size_inches(7.2, 3.3)
        figure.set_layout_engine("constrained")
        figure.legend(handles, labels, loc="outside right upper")
    elif labels:
        figure.axes[0].legend()
