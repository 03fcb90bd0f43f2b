"""TOPR, Figure 9: the weight of problems by their difficulty, without any training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import NO_RUNS, Claim, Extra, decide
from reproduce.difficulty import EFFECTIVE_POSITIVE, difficulty_of_run
from reproduce.figure import Figure, FinishedRuns, model_and_seed, numbers_of_seeds
from reproduce.panels import Panel, grid
from reproduce.selection import Runs
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compute_weights(finished: FinishedRuns) -> Extra:
    """`difficulty_of_run` of each run's completions, by model and seed."""
    return {model_and_seed(record): difficulty_of_run(folder, EFFECTIVE_POSITIVE) for record, folder in finished}


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    return [Panel(partial(problem_weights, seeds=numbers_of_seeds(runs, extra)), model)]


def problem_weights(ax: Axes, seeds: list[Extra]) -> None:
    """The weight of a problem by the base's accuracy on it, a line for each p̃: the mean and the range of the seeds."""
    for i, p in enumerate(EFFECTIVE_POSITIVE):
        weights = np.array([seed["per_problem"][i] for seed in seeds], dtype=np.float64)  # nan: no such problems
        tenths = np.flatnonzero(np.isfinite(weights).all(axis=0))
        weights, style = weights[:, tenths], series_style(i)
        ax.plot(tenths, weights.mean(axis=0), label=f"{100 * p:g} %", **style)
        ax.fill_between(tenths, weights.min(axis=0), weights.max(axis=0), color=style["color"], alpha=0.15, lw=0)
    ax.set_xticks(range(10), [f"{tenth / 10:.1f}" for tenth in range(10)])
    ax.set(xlabel="accuracy of the base on a problem, from", ylabel="weight of a problem (1: all alike)")
    ax.legend(fontsize=7, title="p̃", ncols=2)


def more_weight_on_hard_problems(runs: Runs, extra: Extra) -> Claim:
    text = "the smaller p̃, the more weight on problems with an accuracy below 50 %, in every seed"
    shares = []
    for seed in numbers_of_seeds(runs, extra):
        shares.append([sum(share_of_tenth[:5]) for share_of_tenth in seed["share"]])
    if not shares:
        return Claim(text, None, NO_RUNS)
    hard = np.array(shares)  # [seeds, p̃]
    means = zip(EFFECTIVE_POSITIVE, hard.mean(axis=0), strict=True)
    by_proportion = ", ".join(f"{100 * p:g} %: {100 * share:.1f}" for p, share in means)
    decreases = bool((np.diff(hard, axis=1) < 0).all())
    return Claim(text, decreases, f"share of the weight by p̃: {by_proportion}")


FIGURE = Figure(
    name="fig9",
    title="Figure 9",
    claim="The smaller the effective proportion of positives, the more weight hard problems get.",
    experiments=("fig9",),
    draw=grid(panels, columns=0),
    judge=decide(more_weight_on_hard_problems),
    compute_extra=compute_weights,
    note="Bands: from the lowest to the highest seed, each with its own completions. No training is involved; the "
    "table is that of the runs whose completions were counted.",
)
