"""TOPR, Figure 9: the weight of problems by their difficulty, without any training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import NO_RUNS, Claim, Extra, judge_by
from reproduce.difficulty import BUCKETS, EFFECTIVE_POSITIVE, difficulty_of_run
from reproduce.figure import Figure, FinishedRuns, model_and_seed, numbers_of_seeds
from reproduce.panels import Panel, grid
from reproduce.selection import Runs
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compute_weights(finished: FinishedRuns) -> Extra:
    """`difficulty_of_run` of each run's completions, by model and seed."""
    numbers = {}
    for record, folder in finished:
        numbers[model_and_seed(record)] = difficulty_of_run(folder, EFFECTIVE_POSITIVE)
    return numbers


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    return [Panel(partial(problem_weights, numbers=numbers_of_seeds(runs, extra)), model)]


def problem_weights(ax: Axes, numbers: list[Extra]) -> None:
    """The weight of a problem by the base's accuracy on it, a line for each p̃: the mean and the range of the seeds."""
    for i, p in enumerate(EFFECTIVE_POSITIVE):
        weights_of_seeds = [seed_numbers["per_problem"][i] for seed_numbers in numbers]
        weights = np.array(weights_of_seeds, dtype=np.float64)  # [seeds, buckets]
        has_problems = np.isfinite(weights).all(axis=0)
        buckets = np.flatnonzero(has_problems)
        weights = weights[:, buckets]
        style = series_style(i)
        ax.plot(buckets, weights.mean(axis=0), label=f"{100 * p:g} %", **style)
        low = weights.min(axis=0)
        high = weights.max(axis=0)
        ax.fill_between(buckets, low, high, color=style["color"], alpha=0.15, lw=0)
    bounds = [f"{bucket / BUCKETS:.1f}" for bucket in range(BUCKETS)]
    ax.set_xticks(range(BUCKETS), bounds)
    ax.set(xlabel="accuracy of the base on a problem, from")
    ax.set(ylabel="weight of a problem (1: all alike)")
    ax.legend(fontsize=7, title="p̃", ncols=2)


def more_weight_on_hard_problems(runs: Runs, extra: Extra) -> Claim:
    text = "the smaller p̃, the more weight on problems with an accuracy below 50 %, in every seed"
    numbers = numbers_of_seeds(runs, extra)
    if not numbers:
        return Claim(text, None, NO_RUNS)
    shares = np.array([seed_numbers["share"] for seed_numbers in numbers])  # [seeds, p̃, buckets]
    hard_share = shares[..., : BUCKETS // 2].sum(axis=-1)  # [seeds, p̃]
    texts = []
    for p, share in zip(EFFECTIVE_POSITIVE, hard_share.mean(axis=0), strict=True):
        texts.append(f"{100 * p:g} %: {100 * share:.1f}")
    decreases = bool((np.diff(hard_share, axis=1) < 0).all())
    return Claim(text, decreases, f"share of the weight by p̃: {', '.join(texts)}")


FIGURE = Figure(
    name="fig9",
    title="Figure 9",
    claim="The smaller the effective proportion of positives, the more weight hard problems get.",
    experiments=("fig9",),
    draw=grid(panels, columns=0),
    judge=judge_by(more_weight_on_hard_problems),
    compute_extra=compute_weights,
    note="Bands: from the lowest to the highest seed, each with its own completions. No training is involved; the "
    "table is that of the runs whose completions were counted.",
)
