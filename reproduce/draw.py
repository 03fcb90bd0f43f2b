"""What figures are drawn with: curves, points against a setting, bars; every seed is there to be seen."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reproduce.figure import Extra
from reproduce.groups import ORDER, Groups, Split, by_model, name_of
from reproduce.selection import Runs
from topr_exp.report.drawing import MARKERS, PERCENT, STYLE, plain_number, series_style
from topr_exp.report.plots import band
from topr_exp.runs.records import Record
from topr_exp.runtime.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An algorithm looks the same in every figure, the papers' first; colours and dashes together repeat after 28.
RELATIVES = ("opmd", "asymre", "grpo", "rec", "agro", "kl_pg", "rloo", "agro_on_policy")
DOTS_PER_INCH = 110
SEED: Any = {"marker": "o", "ls": "", "ms": 3, "mfc": "white", "mec": "black", "mew": 0.7, "clip_on": False}  # on a bar
LEVEL: Any = {"color": "0.45", "ls": (0, (1, 2)), "lw": 1}  # a line at one height, dotted
INSIDE: dict[str, Any] = {}  # a legend inside its panel
OF_BARS = 0.75  # opacity, so that black lines are seen on black too


def style_of(key: Any, keys: Iterable[Any]) -> dict[str, Any]:
    """An algorithm's own style, else that of the key's place among the keys."""
    known = (*ORDER, "", *RELATIVES)  # a place left empty: TOPR and those it is compared with differ in colour
    return series_style(known.index(key) if key in known else [*keys].index(key))


def drawing() -> AbstractContextManager[None]:
    """The project's style, for all that is drawn within."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def empty(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.1) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of plots, [rows][columns]."""
    from matplotlib.figure import Figure as New

    figure = New(figsize=(width * columns, height * rows))
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def save(figure: Figure, path: Path) -> None:
    """As a PNG without a date inside, so that the same numbers give the same file."""
    data = io.BytesIO()
    unnamed: Any = {"Software": None}
    figure.savefig(data, format="png", dpi=DOTS_PER_INCH, metadata=unnamed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data.getvalue())


# ---- axes


def log_axis(ax: Axes, which: str) -> None:
    """A log axis, of what is drawn, whose labels are plain numbers: the style has no mathematics in text."""
    from matplotlib.ticker import LogLocator, NullFormatter

    {"x": ax.set_xscale, "y": ax.set_yscale}[which]("log")
    axis = {"x": ax.xaxis, "y": ax.yaxis}[which]
    low, high = axis.get_view_interval()
    if high < 1000 * low:  # powers of ten alone would leave it with a mark or two
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1, 3)))
    axis.set_major_formatter(lambda value, _: plain_number(value))
    axis.set_minor_formatter(NullFormatter())


def log_ticks(ax: Axes, values: Iterable[float]) -> None:
    """A log x axis that is marked at these values alone."""
    log_axis(ax, "x")
    known = sorted(values)
    ax.set_xticks(known, [plain_number(x) for x in known], minor=False)
    ax.set_xticks([], minor=True)


def names_below(ax: Axes, names: Sequence[str]) -> None:
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")


# ---- kinds of panels: each draws groups of runs


def over_updates(ax: Axes, groups: Groups, part: str, name: str, share: bool = False) -> None:
    """A column of the records' `part` while training: the mean over seeds, every seed thin.

    share: in percent, with the 95 % t interval over seeds and a dotted line where the first curve begins.
    """
    scale = PERCENT if share else 1.0
    start: float | None = None
    for key, runs in groups.items():
        style = style_of(key, groups)
        parts = [each[part] for each in runs if name in each.get(part, {})]
        lines = [pd.Series(each[name], each["step"], dtype=float) for each in parts]
        found = scale * band(lines, share=share, interpolate=True)
        if found.empty:
            continue
        for line in lines:
            ax.plot(line.index, scale * line, color=style["color"], lw=0.5, alpha=0.5)
        ax.plot(found.index, found["mean"], label=name_of(key), **style)
        if share and len(lines) > 1:
            ax.fill_between(found.index, found["low"], found["high"], color=style["color"], alpha=0.1, lw=0)
        if share and start is None:
            start = found["mean"].iloc[0]
    if start is not None:
        ax.axhline(start, label="start", **LEVEL)
    ax.set(xlabel="updates", ylabel=f"{name} (%)" if share else name_of(name))


def curves(ax: Axes, groups: Groups, name: str = "pass@1") -> None:
    """A share on the first test problems while training."""
    over_updates(ax, groups, "curve", name, share=True)


def metric(ax: Axes, groups: Groups, name: str) -> None:
    over_updates(ax, groups, "metrics", name)


def against(
    ax: Axes,
    groups: Groups,
    key: str,
    of: str | Callable[[Record], float] = "pass@1",
    shift: float = 0.03,
    at: Callable[[Record], float] | None = None,
) -> None:
    """A final share, or a number of each run, against a setting on a log axis; every seed a dot.

    A share has its interval over seeds and problems. at: a number of each run, whose mean stands for the setting.
    """
    for i, (label, runs) in enumerate(groups.items()):
        style, marker, points = style_of(label, groups), MARKERS[i % len(MARKERS)], runs.split(key)
        if at is not None:
            points = {float(np.mean([at(record) for record in group])): group for group in points.values()}
        if not points:
            continue
        xs = np.array([float(x) for x in points]) * (1 + shift * i)
        if isinstance(of, str):
            each = [PERCENT * np.array(group.each(of)) for group in points.values()]
            found = [group.interval(of) for group in points.values()]
            values = [PERCENT * one.value for one in found]
            errors = PERCENT * np.array([[one.value - one.low, one.high - one.value] for one in found]).T
            ax.plot(xs, values, label=name_of(label), **style)
            ax.errorbar(xs, values, np.maximum(errors, 0), fmt=marker, ms=4, color=style["color"], capsize=2, lw=1)
        else:
            each = [np.array([of(record) for record in group]) for group in points.values()]
            ax.plot(xs, [np.mean(values) for values in each], marker=marker, ms=4, label=name_of(label), **style)
        for x, dots in zip(xs, each, strict=True):
            ax.plot([x] * len(dots), dots, ".", ms=2.5, color=style["color"], alpha=0.6)
    if at is not None:
        log_axis(ax, "x")
    else:
        log_ticks(ax, {float(x) for runs in groups.values() for x in runs.split(key)})
    if isinstance(of, str):
        ax.set(ylabel=f"{of} (%)")


def bars(ax: Axes, groups: Groups, name: str = "pass@1", base: bool = True) -> None:
    """A final share by group, the base first: interval over seeds and problems, every seed a dot."""
    shown = [(key, runs, "final") for key, runs in groups.items() if len(runs)]
    if base and shown:
        shown.insert(0, ("base", shown[0][1], "base"))
    for i, (key, runs, part) in enumerate(shown):
        found = runs.interval(name, part)
        error = PERCENT * np.array([[found.value - found.low], [found.high - found.value]])
        color = "0.6" if key == "base" else style_of(key, groups)["color"]
        ax.bar(i, PERCENT * found.value, color=color, width=0.7, alpha=OF_BARS)
        ax.errorbar(i, PERCENT * found.value, np.maximum(error, 0), color="black", capsize=2, lw=1)
        if part == "final":
            each = PERCENT * np.array(runs.each(name))
            ax.plot(np.full(len(each), i + 0.2), each, **SEED)
    names_below(ax, [name_of(key) for key, _, _ in shown])
    ax.set(ylabel=f"{name} (%)")


# ---- whole figures: a row of panels for each model

Panel = Callable[["Axes", str, Runs, Extra], None]  # draws on the axes what is in one model's runs


def panel(
    kind: Callable[..., None],
    groups: Callable[[Runs], Any],
    *given: Any,
    within: Callable[[Runs], Runs] = lambda runs: runs,
    base: bool = False,
    legend: int | dict[str, Any] | None = None,
    log: bool = False,
    extra: bool = False,
    title: str = "{model}",
    title_size: float | str = "large",
    **labels: Any,
) -> Panel:
    """A panel in which `kind` draws the groups of one model's runs.

    within: which of the runs; base: a dotted line for the base; legend: inside with these options, or its
    columns below; log: the y axis; extra: `kind` takes the figure's extra numbers; labels: of the axes, {model} and {k}
    filled in.
    """

    def drawn(ax: Axes, model: str, runs: Runs, numbers: Extra) -> None:
        runs = within(runs)
        kind(ax, groups(runs), *given, *([numbers] if extra else []))
        if base and len(runs):
            ax.axhline(PERCENT * float(runs.values(stage="base").mean()), label="base", **LEVEL)
        if log:
            log_axis(ax, "y")
        known = {"model": model, "k": runs[0]["final"]["k"] if len(runs) else ""}
        ax.set(**{key: text.format(**known) if isinstance(text, str) else text for key, text in labels.items()})
        ax.set_title(title.format(**known), fontsize=title_size)
        if legend is not None and ax.get_legend_handles_labels()[0]:
            below = {"ncols": legend, "loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
            made = ax.legend(fontsize=7, **(legend if isinstance(legend, dict) else below))
            made.set_in_layout(not isinstance(legend, dict))  # it may lie where the grid has no further panel

    return drawn


def grid(
    panels_of: Callable[[Runs], Sequence[Panel]], rows: Split = by_model, columns: int | None = None, **size: float
) -> Callable[[Runs, Extra], Figure]:
    """A drawing with a row of panels for each model.

    rows: what has a row in the place of a model; columns: wrap all panels after so many, 0: all stand in one row.
    """

    def drawn(runs: Runs, extra: Extra) -> Figure:
        lines = [[(name, members, each) for each in panels_of(members)] for name, members in rows(runs).items()]
        if columns is not None:
            cells = [cell for line in lines for cell in line]
            wide = columns or len(cells)
            lines = [cells[i : i + wide] for i in range(0, len(cells), wide)]
        figure, axes = empty(max(map(len, lines), default=1), max(len(lines), 1), **size)
        for row, line in zip(axes, lines, strict=False):
            for ax, (name, members, each) in zip(row, line, strict=False):
                each(ax, name, members, extra)
            for ax in row[len(line) :]:
                ax.set_axis_off()
        return figure

    return drawn
