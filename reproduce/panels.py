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
SEED_DOTS: Any = {"marker": "o", "ls": "", "ms": 3, "mfc": "white", "mec": "black", "mew": 0.7, "clip_on": False}
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
            ax.axhline(PERCENT * self.base.mean(stage="base"), label="base", **LEVEL_LINE)
        if self.log_y:
            make_log_axis(ax, "y")
        ax.set(**self.labels)
        ax.set_title(self.title, fontsize=self.title_size)
        if self.legend is not None and ax.get_legend_handles_labels()[0]:
            legend = ax.legend(fontsize=7, **self.legend)
            legend.set_in_layout(self.legend.get("loc") == BELOW)  # others may lie where the grid has no panel


def legend_below(columns: int) -> dict[str, Any]:
    """Options of a legend below its panel."""
    return {"ncols": columns, "loc": BELOW, "bbox_to_anchor": (0.5, -0.2)}


PanelsOf = Callable[[str, Runs, Extra], Sequence[Panel]]  # of a model's name and its runs


def grid(
    panels_of: PanelsOf, *, rows: Split = models, columns: int | None = None, width: float = 4.2, height: float = 3.1
) -> Callable[[Runs, Extra], Drawing]:
    """A drawing with a row of panels for each model.

    rows: the split whose groups have a row each. columns: wrap all panels after so many; 0: all stand in one row.
    width, height: of a panel in inches.
    """

    def draw(runs: Runs, extra: Extra) -> Drawing:
        panel_rows = [panels_of(name, members, extra) for name, members in rows(runs).items()]
        if columns is not None:
            panel_rows = wrapped(panel_rows, columns)
        longest = max(map(len, panel_rows), default=1)
        drawing, axes = empty_grid(longest, max(len(panel_rows), 1), width=width, height=height)
        for axes_of_row, panels in zip(axes, panel_rows, strict=False):
            for ax, panel in zip(axes_of_row, panels, strict=False):
                panel.draw_on(ax)
            for ax in axes_of_row[len(panels) :]:
                ax.set_axis_off()
        return drawing

    return draw


def wrapped(panel_rows: Iterable[Sequence[Panel]], columns: int) -> list[Sequence[Panel]]:
    """All panels in rows of so many; 0: in one row."""
    panels = list(itertools.chain.from_iterable(panel_rows))
    length = columns or max(len(panels), 1)
    return [panels[start : start + length] for start in range(0, len(panels), length)]


def empty_grid(
    columns: int, rows: int = 1, *, width: float = 4.2, height: float = 3.1
) -> tuple[Drawing, list[list[Axes]]]:
    """A drawing with a grid of plots, [rows][columns]."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width * columns, height * rows))
    return drawing, drawing.subplots(rows, columns, squeeze=False).tolist()


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
    if high < 30 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif high < 1000 * low:  # powers of ten alone would leave it with a mark or two
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
    ends = np.array([(interval.low, interval.value, interval.high) for interval in intervals])
    return np.maximum(PERCENT * np.diff(ends).T, 0)


# ---- kinds of panels: each draws groups of runs


def metric(ax: Axes, groups: Groups, name: str, part: str = "metrics", *, as_share: bool = False) -> None:
    """A column of the records' `part` while training: the mean over seeds, every seed thin.

    as_share: in percent, with the 95 % t interval over seeds and a dotted line where the first curve begins.
    """
    scale = PERCENT if as_share else 1.0
    start: float | None = None
    for key, runs in groups.items():
        style = style_of(key, groups)
        curves_of_seeds = recorded_curves(runs, name, part)
        points = scale * band(curves_of_seeds, share=as_share, interpolate=True)
        if points.empty:
            continue
        for curve in curves_of_seeds:
            ax.plot(curve.index, scale * curve, color=style["color"], lw=0.5, alpha=0.5)
        ax.plot(points.index, points["mean"], label=name_of(key), **style)
        if as_share and len(curves_of_seeds) > 1:
            ax.fill_between(points.index, points["low"], points["high"], color=style["color"], alpha=0.1, lw=0)
        if as_share and start is None:
            start = points["mean"].iloc[0]
    if start is not None:
        ax.axhline(start, label="start", **LEVEL_LINE)
    ax.set(xlabel="updates", ylabel=f"{name} (%)" if as_share else name_of(name))


def recorded_curves(runs: Runs, name: str, part: str) -> list[pd.Series]:
    """A column of the records' `part` by step, of each run that has it."""
    curves_of_seeds = []
    for record in runs:
        if name in record.get(part, {}):
            curves_of_seeds.append(pd.Series(record[part][name], record[part]["step"], dtype=float))
    return curves_of_seeds


def curves(ax: Axes, groups: Groups) -> None:
    """pass@1 on the first test problems while training."""
    metric(ax, groups, "pass@1", "curve", as_share=True)


Number = Callable[[Record], float]  # of a run


def against(ax: Axes, groups: Groups, key: str, *, number: Number | None = None, shift: float = 0.03) -> None:
    """Final pass@1, or a number of each run, against a setting on a log axis; every seed a dot.

    shift: between the groups' positions, as a share of these, so that error bars stand side by side.
    """
    marks: set[float] = set()
    for i, (label, runs) in enumerate(groups.items()):
        by_position = {}
        for value, group in runs.split(key).items():
            marks.add(float(value))
            by_position[float(value) * (1 + shift * i)] = group
        draw_points(ax, by_position, number, label=name_of(label), index=i, style=style_of(label, groups))
    mark_log_axis(ax, marks)
    if number is None:
        ax.set(ylabel="pass@1 (%)")


def against_number(ax: Axes, groups: Groups, key: str, at: Number, *, number: Number | None = None) -> None:
    """As `against`, with the mean of a number `at` of each run in place of the setting's value."""
    for i, (label, runs) in enumerate(groups.items()):
        by_position = {}
        for group in runs.split(key).values():
            by_position[float(np.mean(list(map(at, group))))] = group
        draw_points(ax, by_position, number, label=name_of(label), index=i, style=style_of(label, groups))
    make_log_axis(ax, "x")
    if number is None:
        ax.set(ylabel="pass@1 (%)")


def draw_points(
    ax: Axes, groups: dict[float, Runs], number: Number | None, *, label: str, index: int, style: dict[str, Any]
) -> None:
    """A line through groups of runs at their positions, with a share's interval over seeds and problems."""
    if not groups:
        return
    positions, color, marker = list(groups), style["color"], MARKERS[index % len(MARKERS)]
    if number is None:
        intervals = [group.interval() for group in groups.values()]
        means = [PERCENT * interval.value for interval in intervals]
        dots = [PERCENT * np.array(group.seed_means()) for group in groups.values()]
        ax.plot(positions, means, label=label, **style)
        ax.errorbar(positions, means, error_lengths(intervals), fmt=marker, ms=4, color=color, capsize=2, lw=1)
    else:
        dots = [np.array(list(map(number, group))) for group in groups.values()]
        ax.plot(positions, list(map(np.mean, dots)), marker=marker, ms=4, label=label, **style)
    for position, values in zip(positions, dots, strict=True):
        ax.plot([position] * len(values), values, ".", ms=2.5, color=color, alpha=0.6)


def bars(ax: Axes, groups: Groups, name: str = "pass@1", *, with_base: bool = True) -> None:
    """A final share by group, the base first: interval over seeds and problems, every seed a dot."""
    drawn_groups = {key: runs for key, runs in groups.items() if len(runs)}
    names = [name_of(key) for key in drawn_groups]
    first_position = 0
    if with_base and drawn_groups:
        first_runs = next(iter(drawn_groups.values()))
        draw_bar(ax, 0, first_runs.interval(name, "base"), color="0.6")
        names.insert(0, "base")
        first_position = 1
    for position, (key, runs) in enumerate(drawn_groups.items(), first_position):
        draw_bar(ax, position, runs.interval(name), color=style_of(key, groups)["color"])
        dots = PERCENT * np.array(runs.seed_means(name))
        ax.plot(np.full(len(dots), position + 0.2), dots, **SEED_DOTS)
    name_ticks(ax, names)
    ax.set(ylabel=f"{name} (%)")


def draw_bar(ax: Axes, position: int, interval: Interval, *, color: str) -> None:
    height = PERCENT * interval.value
    ax.bar(position, height, color=color, width=0.7, alpha=BAR_OPACITY)
    ax.errorbar(position, height, error_lengths([interval]), color="black", capsize=2, lw=1)


def cells(ax: Axes, runs: Runs, key: str, *, form: str = "{:g}", scale: float = 1.0) -> None:
    """Mean pass@1 by learning rate and another setting; form, scale: of the setting's values."""
    values, learning_rates = sorted(runs.split(key)), sorted(runs.split(RATE))
    table = np.full((len(learning_rates), len(values)), np.nan)
    for i, rate in enumerate(learning_rates):
        for j, value in enumerate(values):
            cell = runs.where({RATE: rate, key: value})
            if len(cell):
                table[i, j] = 100 * cell.mean()
                ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", color="white", fontsize=8)
    ax.imshow(table, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=100)
    ax.set_xticks(range(len(values)), [form.format(scale * value) for value in values])
    ax.set_yticks(range(len(learning_rates)), list(map(plain_number, learning_rates)))
    ax.set(ylabel="learning rate")
    ax.grid(visible=False)
