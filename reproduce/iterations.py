"""TOPR's Figures 8 and 9: several iterations of sampling and training, and which problems a composition weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, Row, above, judged, where
from reproduce.draw import INSIDE, grid, panel
from reproduce.figure import Extra, name_of, of_model
from topr_exp.difficulty import EFFECTIVE_POSITIVE, difficulty_of_run
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.selection import Runs, of_problems
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPOSITIONS = ("uniform", "positives", "anna_karenina")


def compositions(runs: Runs) -> dict[str, Runs]:
    found = runs.split("compose.name")
    return {name: found[name] for name in COMPOSITIONS if name in found}


def in_turn(ax: Axes, groups: Mapping[str, Runs], name: str) -> None:
    for i, (label, runs) in enumerate(groups.items()):
        over_iterations(ax, i, label, runs, name)
        ax.set_xticks(range(len(runs[0]["iterations"])))


def over_iterations(ax: Axes, i: int, label: str, runs: Runs, name: str) -> None:
    """The mean after each iteration with its interval over seeds and problems, every seed thin."""
    values = np.stack([[of_problems(each, name) for each in record["iterations"]] for record in runs])
    found = [crossed_interval(values[:, step]) for step in range(values.shape[1])]
    steps, style = range(len(found)), draw.series_style(i)
    for line in 100 * values.mean(axis=2):
        ax.plot(steps, line, color=style["color"], lw=0.5, alpha=0.5)
    examples = " ".join(sorted({f"{record['summary']['n_train']:,.0f}" for record in runs}))
    ax.plot(steps, [100 * one.value for one in found], label=f"{name_of(label)} ({examples} examples)", **style)
    low, high = ([100 * getattr(one, end) for one in found] for end in ("low", "high"))
    ax.fill_between(steps, low, high, color=style["color"], alpha=0.12, lw=0)


draw_figure_8 = grid(
    panel(in_turn, compositions, "pass@1", legend=INSIDE, xlabel="iteration", ylabel="pass@1 (%)"),
    panel(in_turn, compositions, "maj", xlabel="iteration", ylabel="maj@{k} (%)"),
)


def improvements(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for label, group in compositions(runs).items():
        first, last = (np.stack([of_problems(each["iterations"][i], "pass@1") for each in group]) for i in (1, -1))
        text = f"{name_of(label)}: goes on to improve after the first iteration"
        found.append(above(text, crossed_interval(last - first)))
    return found


UNIFORM, POSITIVES, ANNA = (where(compose__name=name) for name in COMPOSITIONS)
judge_figure_8 = judged(
    Row("uniform beats positives only, pass@1", UNIFORM, POSITIVES),
    Row("Anna Karenina beats uniform, pass@1", ANNA, UNIFORM),
    Row("Anna Karenina beats uniform, maj@n", ANNA, UNIFORM, "maj"),
    improvements,
)


# ---- Figure 9


def weights_by_difficulty(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """`report.difficulty` of each run's completions, by model and seed."""
    found = {}
    for record, folder in finished:
        name = f"{record['settings']['model.name']} {record['settings']['seed']}"
        found[name] = difficulty_of_run(folder, 1, list(EFFECTIVE_POSITIVE))
    return found


def weights(ax: Axes, runs: Runs, extra: Extra) -> None:
    """The weight of a problem by the base's accuracy on it, a line for each p̃: the mean and the range of the seeds."""
    seeds = of_model(runs, extra)
    for i, p in enumerate(EFFECTIVE_POSITIVE):
        lines = np.array([each["per_problem"][i] for each in seeds], dtype=np.float64)  # nan: no such problems
        x = np.flatnonzero(np.isfinite(lines).all(axis=0))
        lines, style = lines[:, x], draw.series_style(i)
        ax.plot(x, lines.mean(axis=0), label=f"{100 * p:g} %", **style)
        ax.fill_between(x, lines.min(axis=0), lines.max(axis=0), color=style["color"], alpha=0.15, lw=0)
    ax.set_xticks(range(10), [f"{tenth / 10:.1f}" for tenth in range(10)])
    ax.set(xlabel="accuracy of the base on a problem, from", ylabel="weight of a problem (1: all alike)")
    ax.legend(fontsize=7, title="p̃", ncols=2)


draw_figure_9 = grid(panel(weights, lambda runs: runs, extra=True), columns=0)


def judge_figure_9(runs: Runs, extra: Extra) -> list[Claim]:
    seeds = of_model(runs, extra)
    hard = np.array([[sum(row[:5]) for row in each["share"]] for each in seeds])  # [seeds, p̃]
    text = "the smaller p̃, the more weight on problems with an accuracy below 50 %, in every seed"
    if not len(hard):
        return [Claim(text, None, "no runs")]
    shown = ", ".join(
        f"{100 * p:g} %: {100 * share:.1f}" for p, share in zip(EFFECTIVE_POSITIVE, hard.mean(axis=0), strict=True)
    )
    return [Claim(text, bool((np.diff(hard, axis=1) < 0).all()), f"share of the weight by p̃: {shown}")]
