"""Panels of figures: curves, points against a setting and bars of groups of runs, every seed there to be seen."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reproduce.claims import Extra
from reproduce.files import write_file
from reproduce.groups import PAPERS, RATE, Groups, Split, models, name_of
from reproduce.selection import Record, Runs
from topr_exp.report import MARKERS, STYLE, Interval, band, plain_number, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

PERCENT = 100.0  # the scale of shares
# An algorithm looks the same in every figure, the papers' first; colours and dashes together repeat after 28. A place
# is left empty: TOPR and those it is compared with differ in colour.
STYLE_ORDER = (*PAPERS, "", "opmd", "asymre", "grpo", "rec", "agro", "kl_pg", "rloo", "agro_on_policy")
DOTS_PER_INCH = 110
PANEL_WIDTH, PANEL_HEIGHT = 4.2, 3.1  # inches
SEED_DOTS: Any = {"marker": "o", "ls": "", "ms": 3, "mfc": "white", "mec": "black", "mew": 0.7, "clip_on": False}
SEED_LINE: Any = {"lw": 0.5, "alpha": 0.5}  # one seed's curve
LEVEL_LINE: Any = {"color": "0.45", "ls": (0, (1, 2)), "lw": 1}  # at one height, dotted
BELOW = "upper center"  # the corner of a legend that hangs below its axes
BAR_OPACITY = 0.75  # so that black lines are seen on black too


# ---- figures


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    draw: Callable[[Axes], None]
    title: str = ""
    base: Runs | None = None  # with a dotted line at the base of these runs
    legend: dict[str, Any] | None = None  # its options; {}: inside, where there is room
    log_y: bool = False
    title_size: float | str = "large"
    labels: dict[str, Any] = field(default_factory=dict)  # xlabel, ylabel, ylim in place of the kind's

    def draw_on(self, ax: Axes) -> None:
        self.draw(ax)
        if self.base:
            height = PERCENT * self.base.mean(stage="base")
            ax.axhline(height, label="base", **LEVEL_LINE)
        if self.log_y:
            make_log_axis(ax, "y")
        ax.set(**self.labels)
        ax.set_title(self.title, fontsize=self.title_size)
        has_labels = bool(ax.get_legend_handles_labels()[0])
        if self.legend is not None and has_labels:
            legend = ax.legend(fontsize=7, **self.legend)
            is_below = self.legend.get("loc") == BELOW
            legend.set_in_layout(is_below)  # others may lie where the grid has no panel


def legend_below(columns: int) -> dict[str, Any]:
    """Options of a legend below its panel."""
    return {"ncols": columns, "loc": BELOW, "bbox_to_anchor": (0.5, -0.2)}


PanelsOf = Callable[[str, Runs, Extra], Sequence[Panel]]  # of a model's name and its runs


def grid(
    panels_of: PanelsOf,
    *,
    rows: Split = models,
    columns: int | None = None,
    width: float = PANEL_WIDTH,
    height: float = PANEL_HEIGHT,
) -> Callable[[Runs, Extra], Drawing]:
    """A drawing with a row of panels for each model.

    rows: the split whose groups have a row each. columns: wrap all panels after so many; 0: all stand in one row.
    width, height: of a panel in inches.
    """

    def draw(runs: Runs, extra: Extra) -> Drawing:
        panel_rows = [panels_of(name, members, extra) for name, members in rows(runs).items()]
        if columns is not None:
            panel_rows = wrap_panels(panel_rows, columns)
        row_count = max(len(panel_rows), 1)
        column_count = max(map(len, panel_rows), default=1)
        drawing, axes = empty_grid(column_count, row_count, width=width, height=height)
        for axes_of_row, panels in zip(axes, panel_rows, strict=False):
            draw_row(axes_of_row, panels)
        return drawing

    return draw


def draw_row(axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """Draw panels from the left; the plots of the row that are left over stay empty."""
    for ax, panel in itertools.zip_longest(axes, panels):
        if panel is None:
            ax.set_axis_off()
        else:
            panel.draw_on(ax)


def wrap_panels(panel_rows: Iterable[Sequence[Panel]], columns: int) -> list[Sequence[Panel]]:
    """All panels in rows of so many; 0: in one row."""
    panels = list(itertools.chain.from_iterable(panel_rows))
    length = columns or max(len(panels), 1)
    rows: list[Sequence[Panel]] = []
    for start in range(0, len(panels), length):
        rows.append(panels[start : start + length])
    return rows


def empty_grid(
    columns: int, rows: int = 1, *, width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT
) -> tuple[Drawing, list[list[Axes]]]:
    """A drawing with a grid of plots, [rows][columns]; width, height: of a plot in inches."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width * columns, height * rows))
    axes = drawing.subplots(rows, columns, squeeze=False)
    return drawing, axes.tolist()


def project_style() -> AbstractContextManager[None]:
    """The project's style, for all that is drawn within."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def save_picture(drawing: Drawing, path: Path) -> None:
    """Write a PNG without a date inside, so that the same numbers give the same file."""
    stream = io.BytesIO()
    without_program: Any = {"Software": None}
    drawing.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata=without_program)
    write_file(path, stream.getvalue())


# ---- axes


def style_of(key: Any, keys: Iterable[Any]) -> dict[str, Any]:
    """An algorithm's own style, else that of the key's position among the keys."""
    if key in STYLE_ORDER:
        return series_style(STYLE_ORDER.index(key))
    return series_style(list(keys).index(key))


def make_log_axis(ax: Axes, which: str) -> None:
    """Make an axis ("x" or "y") logarithmic, with plain numbers: the style has no mathematics in text."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = {"x": ax.xaxis, "y": ax.yaxis}[which]
    low, high = axis.get_view_interval()
    # On a short axis powers of ten alone would be a mark or two.
    if high < 30 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif high < 1000 * low:
        axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(lambda value, _: plain_number(value))
    axis.set_minor_formatter(NullFormatter())


def mark_log_axis(ax: Axes, values: Iterable[float]) -> None:
    """Make the x axis logarithmic and mark it at these values alone."""
    make_log_axis(ax, "x")
    marks = sorted(values)
    ax.set_xticks(marks, list(map(plain_number, marks)), minor=False)
    ax.set_xticks([], minor=True)


def name_ticks(ax: Axes, names: Sequence[str]) -> None:
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")


def error_lengths(intervals: Sequence[Interval]) -> np.ndarray:
    """[2, intervals] how far they reach down and up from their values, in percent."""
    down, up = [], []
    for interval in intervals:
        down.append(interval.value - interval.low)
        up.append(interval.high - interval.value)
    return np.maximum(PERCENT * np.array([down, up]), 0)


# ---- kinds of panels: each draws groups of runs


def metric(
    ax: Axes,
    groups: Groups,
    name: str,
    part: str = "metrics",
    *,
    as_share: bool = False,
) -> None:
    """A column of the records' `part` while training: the mean over seeds, every seed thin.

    as_share: in percent, with the 95 % t interval over seeds and a dotted line where the first curve begins.
    """
    scale, title = 1.0, name_of(name)
    if as_share:
        scale, title = PERCENT, f"{name} (%)"
    start: float | None = None
    for key, runs in groups.items():
        curves_of_seeds = recorded_curves(runs, name, part)
        points = scale * band(curves_of_seeds, share=as_share, interpolate=True)
        if points.empty:
            continue
        style = style_of(key, groups)
        color = style["color"]
        for curve in curves_of_seeds:
            ax.plot(curve.index, scale * curve, color=color, **SEED_LINE)
        ax.plot(points.index, points["mean"], label=name_of(key), **style)
        if as_share and len(curves_of_seeds) > 1:
            ax.fill_between(points.index, points["low"], points["high"], color=color, alpha=0.1, lw=0)
        if as_share and start is None:
            start = points["mean"].iloc[0]
    if start is not None:
        ax.axhline(start, label="start", **LEVEL_LINE)
    ax.set(xlabel="updates", ylabel=title)


def recorded_curves(runs: Runs, name: str, part: str) -> list[pd.Series]:
    """A column of the records' `part` by step, of each run that has it."""
    curves_of_seeds = []
    for record in runs:
        columns = record.get(part, {})
        if name in columns:
            curve = pd.Series(columns[name], columns["step"], dtype=float)
            curves_of_seeds.append(curve)
    return curves_of_seeds


def curves(ax: Axes, groups: Groups) -> None:
    """pass@1 on the first test problems while training."""
    metric(ax, groups, "pass@1", "curve", as_share=True)


Number = Callable[[Record], float]  # of a run


def against(
    ax: Axes,
    groups: Groups,
    key: str,
    *,
    number: Number | None = None,
    shift: float = 0.03,
) -> None:
    """Final pass@1, or a number of each run, against a setting on a log axis; every seed a dot.

    shift: between the groups' positions, as a share of these, so that error bars stand side by side.
    """
    marks: set[float] = set()
    for index, (label, runs) in enumerate(groups.items()):
        group_at = {}
        for value, members in runs.split(key).items():
            position = float(value)
            marks.add(position)
            group_at[position * (1 + shift * index)] = members
        draw_points(ax, group_at, number, label=label, groups=groups)
    mark_log_axis(ax, marks)
    if number is None:
        ax.set(ylabel="pass@1 (%)")


def against_number(ax: Axes, groups: Groups, key: str, at: Number, *, number: Number | None = None) -> None:
    """As `against`, with the mean of a number `at` of each run in place of the setting's value."""
    for label, runs in groups.items():
        group_at = {}
        for members in runs.split(key).values():
            position = float(seed_numbers(members, at).mean())
            group_at[position] = members
        draw_points(ax, group_at, number, label=label, groups=groups)
    make_log_axis(ax, "x")
    if number is None:
        ax.set(ylabel="pass@1 (%)")


def draw_points(ax: Axes, group_at: dict[float, Runs], number: Number | None, *, label: Any, groups: Groups) -> None:
    """A line through groups of runs at their positions: pass@1 with its interval, or a number; every seed a dot.

    label: the key among `groups`, by which it is called and looks.
    """
    if not group_at:
        return
    positions = list(group_at)
    style = style_of(label, groups)
    color = style["color"]
    marker = MARKERS[list(groups).index(label) % len(MARKERS)]
    if number is None:
        intervals = [group.interval() for group in group_at.values()]
        means = [PERCENT * interval.value for interval in intervals]
        ax.plot(positions, means, label=name_of(label), **style)
        ax.errorbar(
            positions,
            means,
            error_lengths(intervals),
            fmt=marker,
            ms=4,
            color=color,
            capsize=2,
            lw=1,
        )
    else:
        means = [float(seed_numbers(group, number).mean()) for group in group_at.values()]
        ax.plot(positions, means, marker=marker, ms=4, label=name_of(label), **style)
    for position, group in group_at.items():
        dots = seed_numbers(group, number)
        ax.plot(np.full(len(dots), position), dots, ".", ms=2.5, color=color, alpha=0.6)


def seed_numbers(runs: Runs, number: Number | None) -> np.ndarray:
    """[seeds] a number of each run, or its pass@1 in percent."""
    if number is None:
        return PERCENT * np.array(runs.seed_means())
    return np.array(list(map(number, runs)))


def bars(ax: Axes, groups: Groups, name: str = "pass@1", *, with_base: bool = True) -> None:
    """A final share by group, the base first: interval over seeds and problems, every seed a dot."""
    names: list[str] = []
    for key, runs in groups.items():
        if not len(runs):
            continue
        if with_base and not names:
            draw_bar(ax, 0, runs.interval(name, "base"), color="0.6")
            names.append("base")
        position = len(names)
        draw_bar(ax, position, runs.interval(name), color=style_of(key, groups)["color"])
        dots = PERCENT * np.array(runs.seed_means(name))
        ax.plot(np.full(len(dots), position + 0.2), dots, **SEED_DOTS)
        names.append(name_of(key))
    name_ticks(ax, names)
    ax.set(ylabel=f"{name} (%)")


def draw_bar(ax: Axes, position: int, interval: Interval, *, color: str) -> None:
    height = PERCENT * interval.value
    ax.bar(position, height, color=color, width=0.7, alpha=BAR_OPACITY)
    ax.errorbar(position, height, error_lengths([interval]), color="black", capsize=2, lw=1)


def cells(
    ax: Axes,
    runs: Runs,
    key: str,
    *,
    form: str = "{:g}",
    scale: float = 1.0,
) -> None:
    """Mean pass@1 by learning rate and another setting; form, scale: of the setting's values."""
    values = sorted(runs.split(key))
    learning_rates = sorted(runs.split(RATE))
    shape = (len(learning_rates), len(values))
    points = np.full(shape, np.nan)
    for row, rate in enumerate(learning_rates):
        for column, value in enumerate(values):
            cell = runs.where({RATE: rate, key: value})
            if len(cell):
                mean = PERCENT * cell.mean()
                points[row, column] = mean
                ax.text(column, row, f"{mean:.0f}", ha="center", va="center", color="white", fontsize=8)
    ax.imshow(
        points,
        origin="lower",
        aspect="auto",
        cmap="cividis",
        vmin=0,
        vmax=PERCENT,
    )
    ax.set_xticks(range(shape[1]), [form.format(scale * value) for value in values])
    ax.set_yticks(range(shape[0]), list(map(plain_number, learning_rates)))
    ax.set(ylabel="learning rate")
    ax.grid(visible=False)
