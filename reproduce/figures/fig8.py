"""TOPR, Figure 8: several iterations of sampling and training, by the composition of the training set."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Claim, Decision, Extra, above, ends_above, for_each, judge_by
from reproduce.figure import BOTH_BASES, Figure
from reproduce.groups import Groups, by_setting, name_of
from reproduce.panels import PERCENT, SEED_LINE, Panel, grid
from reproduce.selection import Runs
from topr_exp.report import crossed_interval, problem_shares, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

compositions = by_setting("compose.name", only=("uniform", "positives", "anna_karenina"))


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    draw_scores = partial(by_iteration, groups=compositions(runs))
    k = ""
    if runs:
        k = runs[0]["final"]["k"]
    pass_labels = {"xlabel": "iteration", "ylabel": "pass@1 (%)"}
    vote_labels = {"xlabel": "iteration", "ylabel": f"maj@{k} (%)"}
    return [
        Panel(partial(draw_scores, name="pass@1"), model, legend={}, labels=pass_labels),
        Panel(partial(draw_scores, name="maj"), model, labels=vote_labels),
    ]


def by_iteration(ax: Axes, groups: Groups, name: str) -> None:
    """The mean after each iteration with its interval over seeds and problems, every seed thin."""
    for i, (label, runs) in enumerate(groups.items()):
        style = series_style(i)
        color = style["color"]
        scores = iteration_scores(runs, name)
        iterations = range(scores.shape[1])
        means, low, high = [], [], []
        for iteration in iterations:
            interval = crossed_interval(scores[:, iteration], share=True)
            means.append(PERCENT * interval.value)
            low.append(PERCENT * interval.low)
            high.append(PERCENT * interval.high)
        for seed_means in PERCENT * scores.mean(axis=2):
            ax.plot(iterations, seed_means, color=color, **SEED_LINE)
        counts = {f"{record['summary']['n_train']:,.0f}" for record in runs}
        examples = " ".join(sorted(counts))
        ax.plot(iterations, means, label=f"{name_of(label)} ({examples} examples)", **style)
        ax.fill_between(iterations, low, high, color=color, alpha=0.12, lw=0)
        ax.set_xticks(iterations)


def iteration_scores(runs: Runs, name: str) -> np.ndarray:
    """[seeds, iterations, problems] a share of each problem's completions, of the base first."""
    scores_of_seeds = []
    for record in runs:
        scores = [problem_shares(evaluation, name) for evaluation in record["iterations"]]
        scores_of_seeds.append(scores)
    return np.stack(scores_of_seeds)


def goes_on_improving(composition: str) -> list[Decision]:
    def judge(runs: Runs, extra: Extra) -> Claim:
        scores = iteration_scores(runs, "pass@1")
        after_first, after_last = scores[:, 1], scores[:, -1]
        text = f"{composition}: goes on to improve after the first iteration"
        return above(text, crossed_interval(after_last - after_first))

    return [judge]


FIGURE = Figure(
    name="fig8",
    title="Figure 8",
    claim="Over several iterations training on all completions beats training on positives, and Anna Karenina sampling "
    "beats both.",
    experiments=("fig8",),
    draw=grid(panels),
    judge=judge_by(
        ends_above("uniform beats positives only, pass@1", "compose.name=uniform", "compose.name=positives"),
        ends_above("Anna Karenina beats uniform, pass@1", "compose.name=anna_karenina", "compose.name=uniform"),
        ends_above(
            "Anna Karenina beats uniform, maj@n", "compose.name=anna_karenina", "compose.name=uniform", metric="maj"
        ),
        for_each(compositions, goes_on_improving),
    ),
    levels=(compositions,),
    full_words=(BOTH_BASES,),
)
