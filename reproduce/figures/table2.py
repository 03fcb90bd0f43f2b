"""TOPR, Table 2: a generative verifier before and after training, and the answers that its approval selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Claim, Extra, above, below, judge_by
from reproduce.figure import ALL_SEEDS, Figure
from reproduce.panels import PERCENT, Panel, grid, name_ticks
from reproduce.selection import Runs, over_seeds
from reproduce.verification import (
    VerifierScores,
    balanced_accuracy,
    compute_tallies,
    problem_values,
    scores_of_runs,
    selection_of,
    tallies_by_row,
)
from topr_exp.report import Tally, crossed_interval, series_style, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    column = partial(table_column, tallies=tallies_by_row(runs, extra))
    return [
        Panel(partial(column, name="accuracy"), model, labels={"ylabel": "verifier accuracy (%)"}),
        Panel(partial(column, name="invalid"), model, labels={"ylabel": "invalid (%)"}),
        Panel(partial(column, name="weighted_sc"), model, labels={"ylabel": "weighted SC (%)"}),
    ]


def table_column(ax: Axes, tallies: Mapping[str, Tally], *, name: str) -> None:
    """A bar for each row of the table, grey without a verifier, where there is nothing but the vote."""
    names: list[str] = []
    for row, tally in tallies.items():
        selection = selection_of(row)
        has_verifier = selection == "weighted_sc"
        if name == "weighted_sc":
            figure = summarise(tally)[selection]
        elif has_verifier:
            figure = summarise(tally)[name]
        else:
            continue
        position = len(names)
        names.append(row)
        color = series_style(0)["color"] if has_verifier else "0.6"
        height = PERCENT * figure["value"]
        ax.bar(position, height, color=color)
        if figure["low"] is not None:
            down, up = figure["value"] - figure["low"], figure["high"] - figure["value"]
            lengths = np.maximum([[PERCENT * down], [PERCENT * up]], 0)
            ax.errorbar(position, height, lengths, color="black", capsize=2)
    name_ticks(ax, names)


def judge(runs: Runs, extra: Extra) -> list[Claim]:
    if not runs:
        return []
    run_scores = scores_of_runs(runs, extra)

    def gain_in(name: str, reference: str | None = None, factor: float = 1.0) -> np.ndarray:
        """[seeds, problems] a score after training minus `factor` times it, or the reference, before."""
        base_scores = problem_values(run_scores, "before", reference or name)
        return problem_values(run_scores, "after", name) - factor * base_scores

    halved = "and leaves less than half of its invalid verdicts (after − half of before)"
    return [
        above("training makes the verifier more accurate", crossed_interval(gain_in("right"))),
        more_balanced(run_scores),
        more_balanced_where_readable(run_scores),
        below(halved, crossed_interval(gain_in("unparsable", factor=0.5))),
        above("weighted self-consistency gains by the training", crossed_interval(gain_in("weighted_sc"))),
        above("and beats the vote without a verifier", crossed_interval(gain_in("weighted_sc", "maj"))),
    ]


def more_balanced(run_scores: list[VerifierScores]) -> Claim:
    """It also gains where each verdict counts half: most solutions are incorrect, and 'incorrect' is easily said."""
    base_levels = [balanced_accuracy(run["before"]) for run in run_scores]
    final_levels = [balanced_accuracy(run["after"]) for run in run_scores]
    text = "and in balanced accuracy (the mean over correct and over incorrect solutions)"
    return levels_rise(text, base_levels, final_levels)


def levels_rise(text: str, base_levels: list[float], final_levels: list[float]) -> Claim:
    """That a level of each seed, a share, rises."""
    gains = np.subtract(final_levels, base_levels).tolist()
    interval = over_seeds(gains)
    claim = above(text, interval)
    base_texts = [f"{PERCENT * level:.1f}" for level in base_levels]
    final_texts = [f"{PERCENT * level:.1f}" for level in final_levels]
    evidence = f"{' '.join(base_texts)} to {' '.join(final_texts)}"
    if interval is not None:  # of a single seed there is none
        evidence = f"{claim.evidence}; {evidence}"
    return replace(claim, evidence=evidence)


def more_balanced_where_readable(run_scores: list[VerifierScores]) -> Claim:
    """Not by writing readable verdicts alone."""
    text = "and over readable verdicts (the balanced accuracy over their share)"
    return levels_rise(text, readable_levels(run_scores, "before"), readable_levels(run_scores, "after"))


def readable_levels(run_scores: list[VerifierScores], stage: str) -> list[float]:
    """The balanced accuracy of each seed over the share of verdicts that can be read, taken as equal for all."""
    levels = []
    for run in run_scores:
        tally = run[stage]
        unreadable_share = sum(tally["unparsable"]) / sum(tally["verified"])
        levels.append(balanced_accuracy(tally) / (1 - unreadable_share))
    return levels


FIGURE = Figure(
    name="table2",
    title="Table 2",
    claim="Trained with TOPR, a generative verifier becomes far more accurate, hardly ever leaves its verdict "
    "unreadable, and weighs the votes of solutions so that more answers are correct.",
    experiments=("table2",),
    draw=grid(panels, width=3.0),
    judge=judge_by(judge),
    full_words=(ALL_SEEDS,),
    names_models=True,
    compute_extra=compute_tallies,
    columns=("pass@1", "invalid"),
    note="In the table of numbers pass@1 is the verifier's accuracy, the mean over a problem's solutions; in the "
    "picture the intervals are bootstraps over problems. Most solutions are incorrect, so that a verifier which always "
    "says so is right more often than half of the time: see the balanced accuracy.",
)
