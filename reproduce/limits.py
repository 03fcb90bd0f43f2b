"""TOPR's Table 1 as measured: for each choice of the four limits its use of negatives, variance and speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, below, by_seeds, pick
from reproduce.draw import grid, metric, panel
from reproduce.figure import Extra, algorithms, name_of, of_model
from reproduce.training import higher
from reproduce.variance import LIMITS
from topr_exp.report.selection import Runs, gain
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOW_VARIANCE = ("sft", "tis", "naive")  # as the paper's table has it


def noises(ax: Axes, runs: Runs, extra: Extra) -> None:
    noise(ax, [name for name in algorithms(runs) if name in LIMITS], of_model(runs, extra))


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
    ax.set_xticks(range(len(names)), [name_of(name) for name in names], rotation=30, ha="right")
    ax.set(ylabel="trace of the covariance")


draw_table_1 = grid(
    panel(metric, algorithms, "weight_neg", legend=3),
    panel(metric, algorithms, "grad_norm", title="", log=True),
    panel(noises, lambda runs: runs, extra=True, title="variance of a gradient, same weights"),
)


def judge_table_1(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, (_, _, a_neg, b_neg) in LIMITS.items():
        group, title = pick(runs, name), name_of(name)
        if b_neg > 0 and a_neg == 0:
            found.append(above(f"{title}: bounded, uses negatives; ends above the base", gain(group)))
        elif b_neg == 0:
            weights = [each["metrics"]["weight_neg"][-1] for each in group]
            shown = f"weight of negatives at the end {np.mean(weights):.2g}" if weights else "no runs"
            found.append(Claim(f"{title}: no weight on negatives", not any(weights) if weights else None, shown))
        else:
            found.append(below(f"{title}: unbounded below; ends below the base", gain(group)))
    found += [varies(name, name in LOW_VARIANCE, of_model(runs, extra)) for name in (*LOW_VARIANCE, "is")]
    for name in ("tis", "is"):
        text = f"fast learning: after a quarter of the updates TOPR is ahead of {name_of(name)}"
        text += " (pass@1, first problems, %)"
        topr, other = (Runs([each for each in pick(runs, one) if "curve" in each]) for one in ("topr", name))
        found.append(higher(text, "TOPR", topr, name_of(name), other, early))
    return found


def varies(name: str, low: bool, seeds: Sequence[Extra]) -> Claim:
    """Whether a gradient varies as the paper has it, by the interval over seeds of the log of the ratio to TOPR's.

    low: at most twice as much as with TOPR's limits is claimed, else more than with these.
    """
    text = f"{name_of(name)}: at the same weights a gradient varies "
    text += "at most twice as much as" if low else "more than"
    text += " with TOPR's limits (trace of the covariance, times TOPR's)"
    times = [each[name][0] / each["topr"][0] for each in seeds]
    shown, logs = " ".join(f"{value:.3g}" for value in times), [float(np.log(value)) for value in times]
    return by_seeds(text, logs, shown, below, float(np.log(2))) if low else by_seeds(text, logs, shown)


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
        lines.append(
            f"| {name_of(name)} | {limits} | {weight:.2g} | {bounded} | {times} | {quarter} | "
            f"{group.interval().percent()} |"
        )
    return lines


def early(record: Record) -> float:
    """pass@1, in percent, after a quarter of the updates, on the problems of the curve; between two points linear."""
    steps = record["curve"]["step"]
    return 100 * float(np.interp(steps[-1] / 4, steps, record["curve"]["pass@1"]))
