"""TOPR, Figure 4: positives only against positives and negatives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.claims import Claim, Extra, above, below, combined, decide, ends_above
from reproduce.figure import Figure
from reproduce.groups import Groups, algorithms, data_sets, name_of
from reproduce.panels import Panel, bars, curves, grid, legend_below, style_of
from reproduce.selection import Runs, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOPR, SFT = "topr data.name=gsm8k", "sft data.name=gsm8k"


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    gsm8k, math = pick(runs, "data.name=gsm8k"), pick(runs, "data.name=math")
    k = gsm8k[0]["final"]["k"] if gsm8k else ""
    return [
        Panel(partial(curves, groups=algorithms(gsm8k)), f"{model}, GSM8K-like", legend={}),
        Panel(partial(bars, groups=algorithms(gsm8k), name="maj"), labels={"ylabel": f"maj@{k} (%)"}),
        Panel(partial(correct_histogram, groups=algorithms(gsm8k)), legend=legend_below(3)),
        Panel(partial(bars, groups=algorithms(math)), labels={"ylabel": "MATH-like pass@1 (%)"}),
    ]


def correct_histogram(ax: Axes, groups: Groups) -> None:
    """The share of problems by their number of correct completions."""
    rows: list[tuple[Any, Runs, str]] = [(name, runs, "final") for name, runs in groups.items() if len(runs)]
    if rows:
        rows.insert(0, ("base", rows[0][1], "base"))
    for name, runs, stage in rows:
        n = runs[0][stage]["n"]
        shares = []
        for correct in np.rint(runs.values("pass@1", stage) * n).astype(int):
            counts = np.bincount(correct, minlength=n + 1)
            shares.append(counts / counts.sum())
        style = style_of(name, groups) if stage == "final" else {"color": "0.5", "ls": ":"}
        ax.plot(range(n + 1), 100 * np.mean(shares, axis=0), marker=".", label=name_of(name), **style)
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")


def fewer_hard_problems(runs: Runs, extra: Extra) -> Claim:
    def lead(sft: np.ndarray, topr: np.ndarray, base: np.ndarray) -> np.ndarray:
        return (topr <= 0.25).astype(float) - (sft <= 0.25)

    return below("fewer problems with at most a quarter of the completions correct", combined(runs, lead, SFT, TOPR))


def almost_doubles(runs: Runs, extra: Extra) -> Claim:
    interval = combined(runs, lambda topr, base: topr - 1.8 * base, "topr data.name=math")
    return above("MATH-like: pass@1 almost doubled (more than 1.8 times the base's)", interval)


FIGURE = Figure(
    name="fig4",
    title="Figure 4",
    claim="Training on negatives as well as positives gives a higher pass@1 and maj@n, leaves fewer problems with few "
    "correct answers, and almost doubles pass@1 on MATH.",
    experiments=("fig4",),
    draw=grid(panels, width=3.0, height=2.7),
    judge=decide(
        ends_above("negatives help: TOPR above positives only, pass@1", TOPR, SFT),
        ends_above("and in maj@n", TOPR, SFT, metric="maj"),
        fewer_hard_problems,
        almost_doubles,
        ends_above("MATH-like: TOPR above positives only", "topr data.name=math", "sft data.name=math"),
    ),
    levels=(data_sets, algorithms),
)
