"""Pictures of plots in colours that the colour-blind tell apart, with dashes and markers that grey keeps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from topr_exp.report.plots import BASE_STYLE, Line, Plot, all_positions

# Okabe and Ito's palette without its yellow, ordered by lightness steps that stay apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Any = ((), (6, 2), (2, 1.5), (7, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")  # one a line; the last is the base's
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": 200, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True, "lines.linewidth": 1.5, "text.usetex": False, "text.parse_math": False,
    "svg.fonttype": "none",
}  # fmt: skip
MOST_TICKS = 8  # of a logarithmic axis that is marked at its points
SPACING = 0.008  # between lines' error bars at one position, as a share of the axis
TICK_SPACING = 0.12  # between lines' error bars at one tick, in ticks
MOST_MARKED_POINTS = 25
WIDTH, MARGIN = 5.2, 1.6  # inches of a figure; of what is left and right of its axes
TICK_LINE = 0.35  # inches between ticks for each line of their names
METADATA: Any = {  # by format; no date, so that the same runs give the same files
    "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}, "png": {},
}  # fmt: skip
INTERVALS = (
    "Shares in percent, intervals 95 %: over seeds and test problems (crossed random effects), of one run over test "
    "problems; of mean rewards, and where verdicts are gone, Student's t over runs. Bands: Student's t over three or "
    "more runs, of two their range. No interval holds the sampling of completions that runs share."
)


def series_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number, as arguments of `Axes.plot`; both repeat after 28."""
    if index == BASE_STYLE:
        return {"color": "#737373", "dashes": (1, 1)}
    color = COLORS[index % len(COLORS)]
    dashes = DASHES[index % len(DASHES)]
    return {"color": color, "dashes": dashes}


def plain_number(value: float) -> str:
    """A number as the documents write it: 1e-4 in place of 0.0001 and of 1e-04."""
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    if -3 < int(exponent) < 4:
        return f"{value:g}"
    return f"{float(mantissa):g}e{int(exponent)}"


class Drawing(NamedTuple):
    """A plot with its picture for the page."""

    plot: Plot
    svg: str


def draw_files(plots: Sequence[Plot]) -> tuple[dict[str, bytes], list[Drawing]]:
    """Draw plots: the files (PDF and PNG with their captions) by name, and the drawings for the page."""
    captions = []
    files = {}
    drawings = []
    for plot in plots:
        captions.append(f"{plot.name}: {plot.caption}\n")
        with mpl.rc_context({**STYLE, "svg.hashsalt": plot.name}):  # ids that no other figure of the page has
            figure = draw(plot)
            svg = encode(figure, "svg").decode()  # without a legend, which the page has
            drawings.append(Drawing(plot, svg[svg.index("<svg") :]))
            if len(plot.lines) > 1:
                figure.axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
            # The picture grows with the legend: it holds all, and no more.
            files[f"{plot.name}.pdf"] = encode(figure, "pdf", bbox_inches="tight")
            files[f"{plot.name}.png"] = encode(figure, "png", bbox_inches="tight")
    files["captions.txt"] = f"{''.join(captions)}\n{INTERVALS}\n".encode()
    return files, drawings


def encode(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return a figure as the content of a file, and fix its layout: a later legend moves nothing.

    options: of `savefig`.
    """
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, metadata=METADATA[kind], **options)
    figure.set_layout_engine("none")
    return stream.getvalue()


def draw(plot: Plot) -> Figure:
    """Draw lines with their intervals; the parts of line i have ids NAME.i.0, NAME.i.1 and so on."""
    figure = Figure(figsize=(figure_width(plot), 3.3), layout="constrained")
    ax = figure.subplots()
    for i, line in enumerate(plot.lines):
        artists = draw_line(ax, plot, line, x=offset_positions(plot, i))
        for j, artist in enumerate(artists):
            artist.set_gid(f"{plot.name}.{i}.{j}")
    if plot.section == "curves":
        ax.locator_params("x", integer=True)
    if plot.x_title == "K":
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if plot.log_x:
        mark_log_axis(ax, all_positions(plot.lines))
    if plot.ticks:
        label_style: Any = {}
        if len(plot.ticks) > 3:
            label_style = {"rotation": 30, "ha": "right"}
        ax.set_xticks(range(len(plot.ticks)), plot.ticks, **label_style)
        ax.grid(axis="x", visible=False)
    ax.set(xlabel=plot.x_title, ylabel=plot.y_title)
    return figure


def figure_width(plot: Plot) -> float:
    """Inches: names of ticks, which are slanted and may have several lines, stand side by side."""
    most_lines = max((tick.count("\n") + 1 for tick in plot.ticks), default=0)
    return max(WIDTH, MARGIN + TICK_LINE * most_lines * len(plot.ticks))


def offset_positions(plot: Plot, index: int) -> np.ndarray:
    """The x of a line's points, moved aside where error bars of other lines have the same; index: of the line."""
    x = plot.lines[index].points.index.to_numpy(float)
    middle = (len(plot.lines) - 1) / 2
    steps_aside = index - middle
    if plot.ticks:
        return x + steps_aside * TICK_SPACING
    positions = np.unique(all_positions(plot.lines))
    if plot.log_x:  # equal distances are equal factors
        spacing = line_spacing(np.log(positions), len(plot.lines))
        return x * np.exp(steps_aside * spacing)
    if plot.whiskers:
        spacing = line_spacing(positions, len(plot.lines))
        return x + steps_aside * spacing
    return x


def line_spacing(positions: np.ndarray, line_count: int) -> float:
    """The distance between the error bars of neighbouring lines at one position: all stay nearest to it.

    positions: all of them, sorted and distinct.
    """
    if len(positions) == 1:
        return 0.0
    least_gap = float(np.diff(positions).min())
    full_width = float(positions[-1] - positions[0])
    widest_spacing = least_gap / 2 / line_count
    return min(SPACING * full_width, widest_spacing)


def draw_line(ax: Axes, plot: Plot, line: Line, *, x: np.ndarray) -> list[Artist]:
    """Draw a line at x, its interval and the curves of its runs."""
    scale = 100.0 if plot.share else 1.0  # shares in percent
    mean, low, high = scale * line.points.to_numpy(float).T  # [points] each
    style = series_style(line.style)
    color = style["color"]
    artists: list[Artist] = []
    if plot.whiskers:
        bar_lengths = [mean - low, high - mean]  # below and above the mean
        bars = ax.errorbar(x, mean, bar_lengths, fmt="none", ecolor=color, capsize=2)
        artists += bars.get_children()
    else:
        artists.append(ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0))
    if len(line.run_curves) > 1:
        for curve in line.run_curves:
            artists += ax.plot(curve.index, scale * curve, color=color, lw=0.5, alpha=0.5)
    if plot.ticks:  # no line joins the points
        style = {"color": color, "ls": ""}
    if len(x) < MOST_MARKED_POINTS:
        marker = MARKERS[line.style % len(MARKERS)]
        style |= {"marker": marker, "markersize": 4}
    artists += ax.plot(x, mean, label=line.name, **style)
    return artists


def mark_log_axis(ax: Axes, positions: Sequence[float]) -> None:
    """Make the x axis logarithmic, marked at its positions where these are few."""
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: plain_number(value))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ticks = sorted(set(positions))
    if len(ticks) <= MOST_TICKS:
        ax.set_xticks(ticks)
        ax.set_xticks([], minor=True)
