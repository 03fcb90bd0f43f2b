"""Figures for papers, PDF and PNG: colours that the colour-blind tell apart, dashes and markers that grey keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topr_exp.report.compare import Comparison, axes, tell
from topr_exp.report.runs import Run
from topr_exp.report.series import band, drawn, estimate, eval_values, majority_name
from topr_exp.report.thinning import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, ordered by lightness steps that stay apart in grey.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((), (6, 2), (2, 1.5), (7, 2, 2, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")  # one a line; the last is the base's
MOST_LINES = 10
MOST_INSIDE = 4  # entries of a legend that stands inside its plot
PERCENT = 100.0  # the scale of shares
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": 200, "pdf.fonttype": 42,
    "figure.constrained_layout.use": True, "lines.linewidth": 1.5, "text.usetex": False, "text.parse_math": False,
}  # fmt: skip
RATIOS = ("log_ratio_pos", "log_ratio_neg", "kl_mu", "ess_neg")

INTERVALS = (
    "Bands and bars: 95 % t intervals over three or more runs that differ in their seeds; of two runs their range; of "
    "a single run the 95 % bootstrap interval over test problems. The test problems are the same for all runs: how "
    "another choice of problems would move all of them is not in the intervals over runs. Runs that differ in `seed` "
    "alone share their training completions: how another sampling would move them is not in the intervals either."
)

Drawing = Callable[["Axes"], Any]


def write_figures(folder: Path, runs: Sequence[Run], comparison: Comparison) -> list[str]:
    """Draw every figure that these runs have numbers for; returns notes on what was left out."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window, whatever the environment
    import matplotlib.pyplot as plt

    groups, notes = lines_of(runs, comparison)
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


def lines_of(runs: Sequence[Run], comparison: Comparison) -> tuple[dict[str, list[Run]], list[str]]:
    """The runs of each line: the groups, or where these are many the values of the first setting that differs."""
    groups = {label: [runs[i] for i in members] for label, members in comparison.groups.items()}
    if len(groups) <= MOST_LINES:
        return groups, []
    key = comparison.keys[0] if comparison.keys else "seed"
    merged: dict[str, list[Run]] = {}
    for run, settings in zip(runs, comparison.settings, strict=True):
        merged.setdefault(tell(key, settings), []).append(run)
    best = sorted(merged.items(), key=lambda item: -value_of(item[1]))[:MOST_LINES]
    what = f"figures show the {len(groups)} groups merged by {key}"
    if len(merged) > MOST_LINES:
        what += f", the best {MOST_LINES} of {len(merged)} values"
    return dict(best), [what]


def value_of(runs: Sequence[Run]) -> float:
    found = estimate(runs, "pass@1")
    return found.value if found is not None else -1.0


def drawings(
    runs: Sequence[Run], comparison: Comparison, groups: dict[str, list[Run]]
) -> Iterator[tuple[str, str, Drawing]]:
    """File name, caption and drawing of each figure."""
    for name in ("pass@1", majority_name(runs), "invalid"):
        if name is not None and any(len(eval_values(run, name)[0]) > 1 for run in runs):
            draw = partial(learning_curves, groups=groups, name=name)
            yield f"curve_{safe(name)}", f"{name} on test problems while training", draw
    logged = {name for run in runs for name in (run.updates[-1] if run.updates else ())}
    for name in ("loss", *RATIOS):
        if name in logged:
            draw = partial(training_curves, groups=groups, name=name)
            yield f"training_{safe(name)}", f"{name} of the training batches (bins of updates)", draw
    if not any(run.figure("final", "pass@1") is not None for run in runs):
        return
    draw = partial(final_bars, groups=groups, majority=majority_name(runs))
    yield "final", "after training; the dotted line is pass@1 of the base", draw
    for kind in ("pass@k", "maj@k"):
        yield (
            safe(kind.replace("@", "_at_")),
            f"{kind.replace('k', 'K')} against K",
            partial(over_k, groups=groups, kind=kind),
        )
    yield "correct_histogram", "problems by their number of correct completions", partial(histogram, groups=groups)
    for key, places in axes(list(runs), comparison).items():
        if len({value for value in places if value is not None}) > 2:
            draw = partial(sweep, runs=runs, comparison=comparison, key=key, places=places)
            yield f"sweep_{safe(key)}", f"final pass@1 against {key}", draw


def safe(name: str) -> str:
    return "".join(ch if ch.isalnum() else "_" for ch in name)


def look(i: int) -> dict[str, Any]:
    """The line style of the i-th group; -1 is the base."""
    if i < 0:
        return {"color": "0.45", "dashes": (1, 1)}
    return {"color": COLORS[i % len(COLORS)], "dashes": DASHES[i % len(DASHES)]}


def band_line(ax: Axes, i: int, label: str, curves: list[Any], scale: float = 1.0) -> None:
    """The mean of some curves and its interval, if there is anything to draw."""
    found = band(curves, share=scale == PERCENT)
    if found is None:
        return
    marker: Any = {"marker": MARKERS[i], "markersize": 4} if len(found.x) < 25 else {}
    name = f"{label} ({found.curves} runs)" if found.curves > 1 else label
    ax.plot(found.x, scale * found.mean, label=name, **look(i), **marker)
    if found.curves > 1:
        ax.fill_between(found.x, scale * found.low, scale * found.high, color=look(i)["color"], alpha=0.15, lw=0)


def learning_curves(ax: Axes, groups: dict[str, list[Run]], name: str) -> None:
    for i, (label, members) in enumerate(groups.items()):
        band_line(ax, i, label, [eval_values(run, name) for run in members], PERCENT)
    ax.set(xlabel="optimizer steps", ylabel=f"{name} (%)")


def training_curves(ax: Axes, groups: dict[str, list[Run]], name: str) -> None:
    for i, (label, members) in enumerate(groups.items()):
        curves = [run.curves for run in members]
        band_line(ax, i, label, [(one.steps, one.metrics[name]) for one in curves if name in one.metrics])
    ax.set(xlabel="optimizer steps", ylabel=name)


def final_bars(ax: Axes, groups: dict[str, list[Run]], majority: str | None) -> None:
    """Final pass@1, maj@K and invalid share of every group, the base as a dotted line."""
    names = ["pass@1", *([majority] if majority else []), "invalid"]
    width = 0.8 / len(names)
    for j, name in enumerate(names):
        for i, members in enumerate(groups.values()):
            found = drawn(members, name)
            if found is None:
                continue
            place = i + (j - (len(names) - 1) / 2) * width
            hatch = ("", "///", "...")[j % 3]
            label = name if i == 0 else None
            ax.bar(place, 100 * found.value, width, color=COLORS[j], hatch=hatch, edgecolor="white", label=label)
            if found.low is not None and found.high is not None:
                ax.vlines(place, 100 * found.low, 100 * found.high, color="black", lw=1)
    base = estimate([run for members in groups.values() for run in members], "pass@1", "base")
    if base is not None:
        ax.axhline(100 * base.value, color="black", ls=":", lw=1, label="base pass@1")
    ax.set_xticks(
        range(len(groups)),
        list(groups),
        rotation=30 if len(groups) > 3 else 0,
        ha="right" if len(groups) > 3 else "center",
    )
    ax.set(ylabel="%")
    ax.grid(axis="x", visible=False)
    ax.set_ylim(top=1.22 * ax.get_ylim()[1])  # room for the legend


def base_and_groups(ax: Axes, groups: dict[str, list[Run]], curve: Callable[[dict[str, Any]], Any]) -> None:
    """What `curve` makes of an evaluation's figures (None: nothing), for the base and for every group."""
    every = [run for members in groups.values() for run in members]
    lines = [("base", every, "base"), *((label, members, "final") for label, members in groups.items())]
    for i, (label, members, part) in enumerate(lines, -1):
        figures = [found for run in members if isinstance(found := run.summary.get(part), dict)]
        curves = [one for found in figures if (one := curve(found)) is not None]
        band_line(ax, i, label, curves[:1] if part == "base" else curves, PERCENT)  # the base is the same for all


def over_k(ax: Axes, groups: dict[str, list[Run]], kind: str) -> None:
    """pass@K or maj@K against K."""

    def curve(figures: dict[str, Any]) -> Any:
        points = figures.get(kind)
        if not isinstance(points, dict) or not points:
            return None
        found = [(int(k), number(point.get("value"))) for k, point in points.items() if k.isdigit()]
        good = sorted((k, value) for k, value in found if value is not None)
        return np.array([k for k, _ in good], float), np.array([value for _, value in good], float)

    base_and_groups(ax, groups, curve)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel="K", ylabel=f"{kind.replace('k', 'K')} (%)")


def histogram(ax: Axes, groups: dict[str, list[Run]]) -> None:
    """The share of problems by their number of correct completions (TOPR, Figure 4)."""

    def curve(figures: dict[str, Any]) -> Any:
        counts = figures.get("correct_histogram")
        if not isinstance(counts, list) or not sum(counts):
            return None
        return np.arange(len(counts), dtype=float), np.array(counts, float) / sum(counts)

    base_and_groups(ax, groups, curve)
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")


def sweep(ax: Axes, runs: Sequence[Run], comparison: Comparison, key: str, places: Sequence[float | None]) -> None:
    """Final pass@1 against a number that differs, a line for each value of the first other setting that does."""
    own = {"effective_positive", "baseline"} if key in ("effective_positive", "baseline", "positive_share") else {key}
    by = next((other for other in comparison.keys if other not in own), None)
    lines: dict[str, dict[float, list[Run]]] = {}
    for run, settings, place in zip(runs, comparison.settings, places, strict=True):
        if place is not None and run.figure("final", "pass@1") is not None:
            label = tell(by, settings) if by else "all runs"
            lines.setdefault(label, {}).setdefault(float(f"{place:.2g}"), []).append(run)
    for i, (label, points) in enumerate(list(lines.items())[:MOST_LINES]):
        xs = sorted(points)
        found = [one for x in xs if (one := drawn(points[x], "pass@1")) is not None]
        values = [100 * one.value for one in found]
        below = [100 * (one.value - one.low) if one.low is not None else 0 for one in found]
        above = [100 * (one.high - one.value) if one.high is not None else 0 for one in found]
        style = look(i)
        bars = ax.errorbar(
            xs,
            values,
            [below, above],
            color=style["color"],
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
            capsize=2,
            label=label,
        )
        if style["dashes"]:
            bars.lines[0].set_dashes(style["dashes"])
    ax.set(
        xlabel={"effective_positive": "effective proportion of positives p~"}.get(key, key), ylabel="final pass@1 (%)"
    )


def legend(figure: Figure, ax: Axes) -> None:
    """Inside while there is room, else beside the plot."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > MOST_INSIDE:
        figure.set_size_inches(7.2, 3.3)
        figure.legend(handles, labels, loc="outside right upper")
    elif labels:
        ax.legend()
