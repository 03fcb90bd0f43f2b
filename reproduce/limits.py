"""TOPR's Table 1 as measured: for each choice of the four limits its use of negatives, variance and speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, below
from reproduce.figure import Extra, of_model
from reproduce.training import algorithms, by_model, higher
from reproduce.variance import LIMITS
from topr_exp.report.selection import Runs, gain, over_seeds
from topr_exp.runs.records import Record

LOW_VARIANCE = ("sft", "tis", "naive")  # as the paper's table has it

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_table_1(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(3, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        draw.metric(row[0], algorithms(members), "weight_neg")
        row[0].set_title(model)
        draw.legend_below(row[0], 3)
        draw.metric(row[1], algorithms(members), "grad_norm")
        draw.log_axis(row[1], "y")
        noise(row[2], [name for name in algorithms(members) if name in LIMITS], of_model(members, extra))
    return figure


def noise(ax: Axes, names: Sequence[str], seeds: Sequence[Extra]) -> None:
    """The variance of an example's gradient by choice of limits at the weights where TOPR ended; every seed a dot."""
    for i, name in enumerate(names):
        values = np.array([each[name][0] for each in seeds])
        if len(values):
            color = draw.series_style(draw.place(name, names))["color"]
            ax.bar(i, float(np.exp(np.log(values).mean())), color=color, alpha=draw.OF_BARS)
            ax.plot(np.full(len(values), i), values, **draw.SEED)
    ax.set_ylim(bottom=0.5 * min((each[name][0] for each in seeds for name in names), default=1))
    draw.log_axis(ax, "y")
    ax.set_xticks(range(len(names)), [draw.name_of(name) for name in names], rotation=30, ha="right")
    ax.set(title="variance of a gradient, same weights", ylabel="trace of the covariance")


def judge_table_1(runs: Runs, extra: Extra) -> list[Claim]:
    algos = algorithms(runs)
    found = []
    for name, (_, _, a_neg, b_neg) in LIMITS.items():
        group = algos.get(name, Runs([]))
        if b_neg > 0 and a_neg == 0:
            found.append(above(f"{draw.name_of(name)}: bounded, uses negatives; ends above the base", gain(group)))
        elif b_neg == 0:
            weights = [each["metrics"]["weight_neg"][-1] for each in group]
            shown = f"weight of negatives at the end {np.mean(weights):.2g}" if weights else "no runs"
            holds = not any(weights) if weights else None
            found.append(Claim(f"{draw.name_of(name)}: no weight on negatives", holds, shown))
        else:
            found.append(below(f"{draw.name_of(name)}: unbounded below; ends below the base", gain(group)))
    topr = algos.get("topr", Runs([]))
    seeds = of_model(runs, extra)
    found += [varies(name, name in LOW_VARIANCE, seeds) for name in (*LOW_VARIANCE, "is")]
    for name in ("tis", "is"):
        other = algos.get(name, Runs([]))
        title = draw.name_of(name)
        text = f"fast learning: after a quarter of the updates TOPR is ahead of {title} (pass@1, first problems, %)"
        curves = [Runs([each for each in group if "curve" in each]) for group in (topr, other)]
        found.append(higher(text, "TOPR", curves[0], title, curves[1], early))
    return found


def varies(name: str, low: bool, seeds: Sequence[Extra]) -> Claim:
    """Whether a gradient varies as the paper has it, by the interval over seeds of the log of the ratio to TOPR's.

    low: at most twice as much as with TOPR's limits is claimed, else more than with these.
    """
    text = f"{draw.name_of(name)}: at the same weights a gradient varies "
    text += "at most twice as much as" if low else "more than"
    text += " with TOPR's limits (trace of the covariance, times TOPR's)"
    times = [each[name][0] / each["topr"][0] for each in seeds]
    shown = " ".join(f"{value:.3g}" for value in times) or "no runs"
    found = over_seeds([float(np.log(value)) for value in times])
    decided = below(text, found, float(np.log(2))) if low else above(text, found)
    return Claim(text, decided.holds, shown)


def table_1(runs: Runs, extra: Extra) -> list[str]:
    """The paper's table with what was measured: a row for each choice of limits."""
    lines = [
        "| | a⁺ b⁺ a⁻ b⁻ | weight of negatives at the end | objective bounded | variance of a gradient, times TOPR's | "
        "pass@1 after a quarter | at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    seeds = of_model(runs, extra)
    for name, group in algorithms(runs).items():
        if name not in LIMITS:
            continue
        limits = " ".join(f"{limit:g}".replace("inf", "∞") for limit in LIMITS[name])
        weight = np.mean([each["metrics"]["weight_neg"][-1] for each in group])
        times = f"{np.exp(np.mean([np.log(each[name][0] / each['topr'][0]) for each in seeds])):.2g}" if seeds else ""
        quarter = f"{np.mean([early(each) for each in group if 'curve' in each]):.1f}"
        bounded = "yes" if LIMITS[name][2] == 0 else "no"
        lines.append(f"| {draw.name_of(name)} | {limits} | {weight:.2g} | {bounded} | {times} | {quarter} | "
                     f"{group.interval().percent()} |")  # fmt: skip
    return lines


def early(record: Record) -> float:
    """pass@1, in percent, after a quarter of the updates, on the problems of the curve; between two points linear."""
    steps = record["curve"]["step"]
    return 100 * float(np.interp(steps[-1] / 4, steps, record["curve"]["pass@1"]))
