"""TOPR's Figures 8 and 9: several iterations of sampling and training, and which problems a composition weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above
from reproduce.figure import Extra, of_model
from reproduce.training import by_model
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.problem_weights import EFFECTIVE_POSITIVE, difficulty_of_run
from topr_exp.report.selection import Runs, difference, of_problems
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPOSITIONS = ("uniform", "positives", "anna_karenina")


def compositions(runs: Runs) -> dict[str, Runs]:
    found = runs.split("compose.name")
    return {name: found[name] for name in COMPOSITIONS if name in found}


def draw_figure_8(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, name in zip(row, ("pass@1", "maj"), strict=True):
            for i, (label, group) in enumerate(compositions(members).items()):
                over_iterations(ax, i, label, group, name)
            k = members[0]["final"]["k"]
            ax.set(xlabel="iteration", ylabel=f"{'maj@' + str(k) if name == 'maj' else name} (%)", title=model)
            ax.set_xticks(range(len(members[0]["iterations"])))
        row[0].legend(fontsize=7)
    return figure


def over_iterations(ax: Axes, i: int, label: str, runs: Runs, name: str) -> None:
    """The mean after each iteration with its interval over seeds and problems, every seed thin."""
    values = np.stack([[of_problems(each, name) for each in record["iterations"]] for record in runs])
    found = [crossed_interval(values[:, step]) for step in range(values.shape[1])]
    steps, style = range(len(found)), draw.series_style(i)
    for line in 100 * values.mean(axis=2):
        ax.plot(steps, line, color=style["color"], lw=0.5, alpha=0.5)
    examples = " ".join(sorted({f"{record['summary']['n_train']:,.0f}" for record in runs}))
    told = f"{draw.name_of(label)} ({examples} examples)"
    ax.plot(steps, [100 * one.value for one in found], label=told, **style)
    low, high = ([100 * getattr(one, end) for one in found] for end in ("low", "high"))
    ax.fill_between(steps, low, high, color=style["color"], alpha=0.12, lw=0)


def judge_figure_8(runs: Runs, extra: Extra) -> list[Claim]:
    groups = compositions(runs)
    none = Runs([])
    uniform, positives, anna = (groups.get(name, none) for name in COMPOSITIONS)
    found = [
        above("uniform beats positives only, pass@1", difference(positives, uniform)),
        above("Anna Karenina beats uniform, pass@1", difference(uniform, anna)),
        above("Anna Karenina beats uniform, maj@n", difference(uniform, anna, "maj")),
    ]
    for label, group in groups.items():
        first, last = (np.stack([of_problems(each["iterations"][i], "pass@1") for each in group]) for i in (1, -1))
        text = f"{draw.name_of(label)}: goes on to improve after the first iteration"
        found.append(above(text, crossed_interval(last - first)))
    return found


# ---- Figure 9


def weights_by_difficulty(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """`report.difficulty` of each run's completions, by model and seed."""
    found: Extra = {}
    for record, folder in finished:
        settings = record["settings"]
        found[f"{settings['model.name']} {settings['seed']}"] = difficulty_of_run(folder, 1, list(EFFECTIVE_POSITIVE))
    return found


def draw_figure_9(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(len(models))
    for ax, (model, members) in zip(grid[0], models.items(), strict=True):
        seeds = of_model(members, extra)
        for i, p in enumerate(EFFECTIVE_POSITIVE):
            lines = np.array([each["per_problem"][i] for each in seeds], dtype=np.float64)  # nan: no such problems
            x = np.flatnonzero(np.isfinite(lines).all(axis=0))
            lines = lines[:, x]
            ax.plot(x, lines.mean(axis=0), label=f"{100 * p:g} %", **draw.series_style(i))
            ax.fill_between(
                x, lines.min(axis=0), lines.max(axis=0), color=draw.series_style(i)["color"], alpha=0.15, lw=0
            )
        ax.set_xticks(range(10), [f"{tenth / 10:.1f}" for tenth in range(10)])
        ax.set(xlabel="accuracy of the base on a problem, from", ylabel="weight of a problem (1: all alike)")
        ax.set_title(model)
        ax.legend(fontsize=7, title="p̃", ncols=2)
    return figure


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


def table_8(runs: Runs) -> Mapping[str, Runs]:
    return {draw.name_of(name): group for name, group in compositions(runs).items()}
