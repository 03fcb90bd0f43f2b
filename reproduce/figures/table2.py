"""TOPR, Table 2: a generative verifier before and after training, and the answers that its approval selects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Claim, Extra, above, below, decide
from reproduce.figure import ALL_SEEDS, Figure
from reproduce.panels import Panel, grid, name_ticks
from reproduce.selection import Runs, over_seeds
from reproduce.verification import (
    Noted,
    balanced_accuracy,
    compute_tallies,
    noted_of_runs,
    problem_values,
    selection_of,
    tallies_by_row,
)
from topr_exp.report import crossed_interval, series_style, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    column = partial(table_column, runs=runs, extra=extra)
    return [
        Panel(partial(column, name="accuracy"), model, labels={"ylabel": "verifier accuracy (%)"}),
        Panel(partial(column, name="invalid"), model, labels={"ylabel": "invalid (%)"}),
        Panel(partial(column, name="weighted_sc"), model, labels={"ylabel": "weighted SC (%)"}),
    ]


def table_column(ax: Axes, runs: Runs, extra: Extra, *, name: str) -> None:
    """A bar for each row of the table; without a verifier there is nothing but the vote."""
    tallies = tallies_by_row(runs, extra)
    rows = [row for row in tallies if name == "weighted_sc" or selection_of(row) == "weighted_sc"]
    for i, row in enumerate(rows):
        figure = summarise(tallies[row])[selection_of(row) if name == "weighted_sc" else name]
        value, low, high = figure["value"], figure["low"], figure["high"]
        has_verifier = selection_of(row) == "weighted_sc"
        ax.bar(i, 100 * value, color=series_style(0)["color"] if has_verifier else "0.6")
        if low is not None:
            lengths = np.maximum([[100 * (value - low)], [100 * (high - value)]], 0)
            ax.errorbar(i, 100 * value, lengths, color="black", capsize=2)
    name_ticks(ax, rows)


def judge(runs: Runs, extra: Extra) -> list[Claim]:
    if not runs:
        return []
    noted = noted_of_runs(runs, extra)

    def gain_in(name: str, reference: str | None = None, factor: float = 1.0) -> np.ndarray:
        """[seeds, problems] a score after training minus `factor` times it, or the reference, before."""
        return problem_values(noted, "after", name) - factor * problem_values(noted, "before", reference or name)

    halved = "and leaves less than half of its invalid verdicts (after − half of before)"
    return [
        above("training makes the verifier more accurate", crossed_interval(gain_in("right"))),
        more_balanced(noted),
        more_balanced_where_readable(noted),
        below(halved, crossed_interval(gain_in("unparsable", factor=0.5))),
        above("weighted self-consistency gains by the training", crossed_interval(gain_in("weighted_sc"))),
        above("and beats the vote without a verifier", crossed_interval(gain_in("weighted_sc", "maj"))),
    ]


def more_balanced(noted: list[Noted]) -> Claim:
    """It also gains where each verdict counts half: most solutions are wrong, and 'wrong' is easily said."""
    base_levels = [balanced_accuracy(run["before"]) for run in noted]
    final_levels = [balanced_accuracy(run["after"]) for run in noted]
    gains = [last - first for first, last in zip(base_levels, final_levels, strict=True)]
    text = "and in balanced accuracy (the mean over correct and over incorrect solutions)"
    claim = above(text, over_seeds(gains))
    levels = " to ".join(" ".join(f"{100 * value:.1f}" for value in values) for values in (base_levels, final_levels))
    return replace(claim, evidence=f"{claim.evidence}; {levels}")


def more_balanced_where_readable(noted: list[Noted]) -> Claim:
    """Not by writing readable verdicts alone."""
    first, last = readable_levels(noted, "before"), readable_levels(noted, "after")
    gains = [last_level - first_level for first_level, last_level in zip(first, last, strict=True)]
    text = "and over readable verdicts (the balanced accuracy over their share)"
    claim = above(text, over_seeds(gains))
    levels = " to ".join(" ".join(f"{100 * level:.1f}" for level in values) for values in (first, last))
    return replace(claim, evidence=f"{claim.evidence}; {levels}")


def readable_levels(noted: list[Noted], stage: str) -> list[float]:
    """The balanced accuracy of each seed over the share of verdicts that can be read, taken as equal for all."""
    levels = []
    for run in noted:
        tally = run[stage]
        readable = 1 - sum(tally["unparsable"]) / sum(tally["verified"])
        levels.append(balanced_accuracy(tally) / readable)
    return levels


FIGURE = Figure(
    name="table2",
    title="Table 2",
    claim="Trained with TOPR, a generative verifier becomes far more accurate, hardly ever leaves its verdict "
    "unreadable, and weighs the votes of solutions so that more answers are right.",
    experiments=("table2",),
    draw=grid(panels, width=3.0),
    judge=decide(judge),
    wider=(ALL_SEEDS,),
    own_model=True,
    compute_extra=compute_tallies,
    columns=("pass@1", "invalid"),
    note="In the table of numbers pass@1 is the verifier's accuracy, the mean over a problem's solutions; in the "
    "picture the intervals are bootstraps over problems. Most solutions are wrong, so that a verifier which always "
    "says so is right more often than half of the time: see the balanced accuracy.",
)
