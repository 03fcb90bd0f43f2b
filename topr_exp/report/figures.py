"""Figures for papers, PDF and PNG: colours that the colour-blind tell apart, dashes and markers that grey keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.report.estimates import estimate, majority_name, pass_at_1
from topr_exp.report.groups import Comparison, axes, bases
from topr_exp.report.plots import BASE, KINDS, Groups, Plot, curve_names, curve_plot, kinds_plot, sweep_plot
from topr_exp.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, ordered by lightness steps that stay apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((), (6, 2), (2, 1.5), (7, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")  # one a line; the last is the base's
MOST_LINES = 10
MOST_INSIDE = 4  # entries of a legend that stands inside its plot
ASIDE = 0.008  # of an axis, between error bars of the same place
PERCENT = 100.0  # the scale of shares
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": 200, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True, "lines.linewidth": 1.5, "text.usetex": False, "text.parse_math": False,
}  # fmt: skip
RATIOS = ("log_ratio_pos", "log_ratio_neg", "kl_mu", "ess_neg")

INTERVALS = (
    "Bars and points: 95 % intervals over runs that differ in their seeds and over test problems (crossed random "
    "effects); of a single run over test problems (bootstrap). Bands: 95 % t intervals over three or more runs, of two "
    "their range: how another choice of test problems would move all of them is not in them. Runs that differ in "
    "`seed` alone share their training completions: how another sampling would move them is in no interval."
)

Drawing = Callable[["Axes"], Any]


def write_figures(folder: Path, runs: Sequence[Run], comparison: Comparison) -> list[str]:
    """Draw every figure that these runs have numbers for; returns notes on what was left out."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window, whatever the environment
    import matplotlib.pyplot as plt

    groups, notes = best_groups(runs, comparison)
    captions = []
    with mpl.rc_context(STYLE):
        for name, caption, drawing in drawings(runs, comparison, groups):
            figure, ax = plt.subplots(figsize=(5.2, 3.3))
            drawing(ax)
            legend(figure, ax)
            for kind in ("pdf", "png"):
                # No date inside, so that the same runs give the same file.
                figure.savefig(folder / f"{name}.{kind}", metadata={"CreationDate": None} if kind == "pdf" else None)
            plt.close(figure)
            captions.append(f"{name}: {caption}")
    (folder / "captions.txt").write_text("\n".join([*captions, "", INTERVALS, ""]), encoding="utf-8")
    return notes


def best_groups(runs: Sequence[Run], comparison: Comparison) -> tuple[Groups, list[str]]:
    """The groups, the best ones where there are many: figures never pool runs of different settings."""
    groups = {label: [runs[i] for i in members] for label, members in comparison.groups.items()}
    if len(groups) <= MOST_LINES:
        return groups, []
    best = sorted(groups, key=lambda label: -pass_at_1(groups[label]))[:MOST_LINES]
    kept = {label: members for label, members in groups.items() if label in best}
    return kept, [f"figures show the {MOST_LINES} of {len(groups)} groups with the highest final pass@1"]


def drawings(runs: Sequence[Run], comparison: Comparison, groups: Groups) -> Iterator[tuple[str, str, Drawing]]:
    """File name, caption and drawing of each figure."""
    for name in ("pass@1", majority_name(runs), "invalid"):
        if name in curve_names(runs, "test") and any(len(run.test_curves.steps) > 1 for run in runs):
            assert name is not None
            plot = curve_plot(groups, "test", name)
            if plot.lines:
                yield f"curve_{safe(name)}", f"{name} on test problems while training", partial(draw_plot, plot=plot)
    for name in ("loss", *RATIOS):
        if name in curve_names(runs, "training") and (plot := curve_plot(groups, "training", name)).lines:
            caption = f"{name} of the training batches (bins of updates)"
            yield f"training_{safe(name)}", caption, partial(draw_plot, plot=plot)
    if not any(run.figure("final", "pass@1") is not None for run in runs):
        return
    draw = partial(draw_bars, groups=groups, majority=majority_name(runs))
    yield "final", "after training; the dotted lines are pass@1 of the base", draw
    for kind, name in (("pass@k", "pass_at_k"), ("maj@k", "maj_at_k"), ("correct_histogram", "correct_histogram")):
        plot = kinds_plot(groups, bases(list(runs), comparison), kind)
        if plot.lines:  # there is no maj@K where a grader of the user's says nothing of incorrect answers
            yield name, KINDS[kind][0], partial(draw_plot, plot=plot)
    for axis, places in axes(list(runs), comparison).items():
        if len({value for value in places if value is not None}) > 2:
            plot = sweep_plot(runs, comparison, axis, places, "pass@1")
            plot = replace(plot, lines=plot.lines[:MOST_LINES])
            yield f"sweep_{safe(axis)}", f"final pass@1 against {axis}", partial(draw_plot, plot=plot)


def safe(name: str) -> str:
    return "".join(ch if ch.isalnum() else "_" for ch in name)


def series_style(i: int) -> dict[str, Any]:
    """The line style of the i-th group."""
    if i == BASE:
        return {"color": "0.45", "dashes": (1, 1)}
    return {"color": COLORS[i % len(COLORS)], "dashes": DASHES[i % len(DASHES)]}


def draw_plot(ax: Axes, plot: Plot) -> None:
    """Lines with their intervals, as bands or at their points."""
    scale = PERCENT if plot.share else 1.0
    width = max(line.band.x.max() for line in plot.lines) - min(line.band.x.min() for line in plot.lines)
    for i, line in enumerate(plot.lines):
        style, found = series_style(line.style), line.band
        x, mean, low, high = found.x, scale * found.mean, scale * found.low, scale * found.high
        if plot.whiskers:  # a little beside one another, so that all can be seen
            x = x + ASIDE * (i - (len(plot.lines) - 1) / 2) * width
        marker: Any = {"marker": MARKERS[line.style % len(MARKERS)], "markersize": 4} if len(x) < 25 else {}
        ax.plot(x, mean, label=line.name, **style, **marker)
        if plot.whiskers:
            ax.errorbar(x, mean, [mean - low, high - mean], fmt="none", ecolor=style["color"], capsize=2)
        else:
            ax.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
    if plot.log_x:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel=plot.x_title, ylabel=plot.y_title)


def draw_bars(ax: Axes, groups: Groups, majority: str | None) -> None:
    """Final pass@1, maj@K and invalid share of every group, pass@1 of its base as a dotted line."""
    names = ["pass@1", *([majority] if majority else []), "invalid"]
    width = 0.8 / len(names)
    for j, name in enumerate(names):
        for i, members in enumerate(groups.values()):
            found = estimate(members, name)
            if found is None:
                continue
            place = i + (j - (len(names) - 1) / 2) * width
            hatch = ("", "///", "...")[j % 3]
            label = name if i == 0 else None
            ax.bar(place, 100 * found.value, width, color=COLORS[j], hatch=hatch, edgecolor="white", label=label)
            ax.vlines(place, 100 * found.low, 100 * found.high, color="black", lw=1)
    for i, members in enumerate(groups.values()):
        base = estimate(members, "pass@1", "base")
        if base is not None:
            label = "base pass@1" if i == 0 else None
            ax.plot([i - 0.45, i + 0.45], [100 * base.value] * 2, color="black", ls=":", lw=1, label=label)
    many = len(groups) > 3
    ax.set_xticks(range(len(groups)), list(groups), rotation=30 if many else 0, ha="right" if many else "center")
    ax.set(ylabel="%")
    ax.grid(axis="x", visible=False)


def legend(figure: Figure, ax: Axes) -> None:
    """Inside while there is room, else beside the plot; above bars, which leave none."""
    handles, labels = ax.get_legend_handles_labels()
    if ax.patches:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    elif len(labels) > MOST_INSIDE:
        figure.set_size_inches(7.2, 3.3)
        figure.legend(handles, labels, loc="outside right upper")
    elif labels:
        ax.legend()
