"""TOPR, Figure 1: pass@1 while training on completions of the base alone."""

from functools import partial

import numpy as np

from reproduce.claims import (
    NO_RUNS,
    Claim,
    Extra,
    above,
    combined_interval,
    describe_share,
    ends_above,
    ends_above_others,
    judge_by,
    open_if_collapsed,
    side_of,
)
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_setting
from reproduce.panels import Panel, curves, grid, legend_below
from reproduce.selection import Runs, collapsed_share, pick

topr_and_others = by_setting("algo.name", only=("topr", "ppo", "sft", "tis", "is"))


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    return [Panel(partial(curves, groups=algorithms(runs)), model, legend=legend_below(4))]


def naive_collapses(runs: Runs, extra: Extra) -> Claim:
    text = "naive REINFORCE collapses: most of its seeds end below half of the base's pass@1"
    share = collapsed_share(pick(runs, "naive"))
    if share is None:
        return Claim(text, None, NO_RUNS)
    collapsed_count = round(share.value * share.seeds)
    return Claim(text, side_of(share, 0.5), describe_share(share), p_of_half(collapsed_count, share.seeds))


def p_of_half(count: int, total: int) -> float:
    """Two-sided p of the binomial test of a share of one half."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(count, total - count), total, 0.5)))


def ppo_stalls(runs: Runs, extra: Extra) -> Claim:
    def missing_gain(ppo: np.ndarray, topr: np.ndarray, base: np.ndarray) -> np.ndarray:
        return (topr - base) / 2 - (ppo - base)

    interval = combined_interval(runs, missing_gain, "ppo", "topr")
    claim = above("PPO stalls: it gains less than half of what TOPR gains", interval)
    lead = 0.0
    if interval is not None:
        lead = interval.value
    return open_if_collapsed(claim, pick(runs, "topr"), pick(runs, "ppo"), lead=lead)


FIGURE = Figure(
    name="fig1",
    title="Figure 1",
    claim="Trained on completions of the base alone, naive REINFORCE collapses, PPO stalls, DPO does better, and TOPR "
    "ends far above all of them.",
    experiments=("fig1",),
    draw=grid(panels, columns=0),
    judge=judge_by(
        naive_collapses,
        ppo_stalls,
        ends_above("DPO ends above PPO", "dpo", "ppo"),
        ends_above("TOPR ends above DPO", "topr", "dpo"),
        ends_above("TOPR ends above the best of the other three", "topr", "best algo.name naive,ppo,dpo"),
        ends_above_others(lambda name: f"TOPR ends above {name}", topr_and_others, "topr"),
    ),
)
