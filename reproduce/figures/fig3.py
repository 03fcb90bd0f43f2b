"""TOPR, Figure 3: correct, incorrect and invalid completions while training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import NO_RUNS, Claim, Decision, Extra, below, contrary, judge_by
from reproduce.figure import Figure
from reproduce.groups import name_of
from reproduce.panels import PERCENT, Panel, grid
from reproduce.selection import Runs, pick
from topr_exp.report import crossed_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

ALGORITHMS = ("naive", "ppo", "dpo", "topr")
VERDICTS = {"correct": "#009E73", "incorrect": "0.8", "invalid": "#D55E00"}  # with their colours


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    drawn_panels = []
    for name in ALGORITHMS:
        draw_shares = partial(verdict_shares, runs=pick(runs, name))
        drawn_panels.append(Panel(draw_shares, f"{name_of(name)}, {model}"))
    return drawn_panels


def verdict_shares(ax: Axes, runs: Runs) -> None:
    """Stacked shares of the three verdicts while training, the mean over seeds; each seed's invalid share as a line."""
    curves = [record["curve"] for record in runs if "curve" in record]
    if not curves:
        return
    steps = curves[0]["step"]
    means = []
    for verdict in VERDICTS:
        shares = [curve[verdict] for curve in curves]
        means.append(PERCENT * np.mean(shares, axis=0))
    ax.stackplot(steps, *means, labels=list(VERDICTS), colors=list(VERDICTS.values()))
    for curve in curves:
        valid_share = 1 - np.array(curve["invalid"])
        ax.plot(steps, PERCENT * valid_share, color="black", lw=0.5)
    ax.set(xlabel="updates", ylabel="share (%)", ylim=(0, PERCENT))


def draw(runs: Runs, extra: Extra) -> Drawing:
    drawing = grid(panels, width=2.7, height=2.6)(runs, extra)
    drawing.axes[0].legend(fontsize=7, frameon=True, facecolor="white", framealpha=1.0)
    return drawing


def halves_invalid_completions(text: str, name: str) -> Callable[[Runs, Extra], Claim]:
    """That the share of invalid completions goes below half of the base's."""

    def judge(runs: Runs, extra: Extra) -> Claim:
        group = pick(runs, name)
        if not len(group):
            return Claim(text, None, NO_RUNS)
        final_shares, base_shares = group.values("invalid"), group.values("invalid", "base")
        claim = below(text, crossed_interval(final_shares - base_shares / 2))
        base, final = group.interval("invalid", "base"), group.interval("invalid")
        return replace(claim, evidence=f"{base.percent()} → {final.percent()}")

    return judge


def halves_no_invalid_completions(name: str) -> Decision:
    def judge(runs: Runs, extra: Extra) -> Claim:
        claim = halves_invalid_completions("", name)(runs, extra)
        return contrary(f"{name_of(name)} does not", claim)

    return judge


FIGURE = Figure(
    name="fig3",
    title="Figure 3",
    claim="Of naive REINFORCE, PPO, DPO and TOPR, only TOPR makes invalid completions much rarer.",
    experiments=("fig3",),
    draw=draw,
    judge=judge_by(
        halves_invalid_completions("TOPR leaves less than half of the base's invalid completions", "topr"),
        halves_no_invalid_completions("naive"),
        halves_no_invalid_completions("ppo"),
        halves_no_invalid_completions("dpo"),
    ),
    note="The black lines are the seeds. 'Much rarer' is less than half of the base's share.",
)
