"""TOPR, Figure 4: positives only against positives and negatives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.claims import Claim, Extra, above, below, combined_interval, ends_above, judge_by
from reproduce.figure import Figure
from reproduce.groups import Groups, algorithms, data_sets, name_of
from reproduce.panels import PERCENT, Panel, bars, curves, grid, legend_below, style_of
from reproduce.selection import Runs, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOPR, SFT = "topr data.name=gsm8k", "sft data.name=gsm8k"
HARD = 0.25  # pass@1 of a problem, at most


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    gsm8k = algorithms(pick(runs, "data.name=gsm8k"))
    math = algorithms(pick(runs, "data.name=math"))
    k = ""
    if runs:
        k = runs[0]["final"]["k"]
    return [
        Panel(partial(curves, groups=gsm8k), f"{model}, GSM8K-like", legend={}),
        Panel(partial(bars, groups=gsm8k, name="maj"), labels={"ylabel": f"maj@{k} (%)"}),
        Panel(partial(correct_histogram, groups=gsm8k), legend=legend_below(3)),
        Panel(partial(bars, groups=math), labels={"ylabel": "MATH-like pass@1 (%)"}),
    ]


def correct_histogram(ax: Axes, groups: Groups) -> None:
    """The share of problems by their number of correct completions, the base's dotted."""
    has_base = False
    for name, runs in groups.items():
        if not len(runs):
            continue
        if not has_base:
            draw_histogram(ax, runs, "base", label="base", style={"color": "0.5", "ls": ":"})
            has_base = True
        draw_histogram(ax, runs, "final", label=name_of(name), style=style_of(name, groups))
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")


def draw_histogram(ax: Axes, runs: Runs, stage: str, *, label: str, style: dict[str, Any]) -> None:
    """The mean over seeds."""
    n = runs[0][stage]["n"]
    shares = []
    for scores in runs.values("pass@1", stage):
        correct = np.rint(scores * n).astype(int)
        counts = np.bincount(correct, minlength=n + 1)
        shares.append(counts / counts.sum())
    means = PERCENT * np.mean(shares, axis=0)
    ax.plot(range(n + 1), means, marker=".", label=label, **style)


def fewer_hard_problems(runs: Runs, extra: Extra) -> Claim:
    def more_hard_problems(sft: np.ndarray, topr: np.ndarray, base: np.ndarray) -> np.ndarray:
        is_hard_for_topr = topr <= HARD
        is_hard_for_sft = sft <= HARD
        return is_hard_for_topr.astype(float) - is_hard_for_sft

    text = "fewer problems with at most a quarter of the completions correct"
    return below(text, combined_interval(runs, more_hard_problems, SFT, TOPR))


def almost_doubles(runs: Runs, extra: Extra) -> Claim:
    def gain_beyond(topr: np.ndarray, base: np.ndarray) -> np.ndarray:
        return topr - 1.8 * base

    interval = combined_interval(runs, gain_beyond, "topr data.name=math")
    return above("MATH-like: pass@1 almost doubled (more than 1.8 times the base's)", interval)


FIGURE = Figure(
    name="fig4",
    title="Figure 4",
    claim="Training on negatives as well as positives gives a higher pass@1 and maj@n, leaves fewer problems with few "
    "correct completions, and almost doubles pass@1 on MATH.",
    experiments=("fig4",),
    draw=grid(panels, width=3.0, height=2.7),
    judge=judge_by(
        ends_above("negatives help: TOPR above positives only, pass@1", TOPR, SFT),
        ends_above("and in maj@n", TOPR, SFT, metric="maj"),
        fewer_hard_problems,
        almost_doubles,
        ends_above("MATH-like: TOPR above positives only", "topr data.name=math", "sft data.name=math"),
    ),
    levels=(data_sets, algorithms),
)
