"""TOPR, Figure 2: the objective of one completion as a function of its ratio, by TOPR and by PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.claims import Claim, Extra, judge_by
from reproduce.figure import RATIO_QUANTILES, Figure, FinishedRuns
from reproduce.groups import algorithms, group_by, models
from reproduce.numbers import last_metric
from reproduce.panels import empty_grid
from reproduce.selection import Runs
from topr_exp import Batch, loss
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

EPSILON = 0.2
RATIOS = [percent / 100 for percent in range(1, 301)]
LARGEST_SHOWN_RATIO = 3.0
ROUNDING = 1e-9  # differences below it are 0
REWARDS = {"positive": 1.0, "negative": -1.0}
NAMES = {"topr": "TOPR", "ppo": "PPO", "importance_sampling": "importance sampling"}
TITLES = {"positive": "R = +1", "negative": "R = −1"}
LIMITS_OF_Y = {"positive": (-2, 3), "negative": (-3, 0.2)}


def objectives(finished: FinishedRuns = ()) -> Extra:
    """Compute the objective of a completion of one token by its ratio, for R = +1 and R = −1.

    TOPR (Eq. 11) with a⁺ = 1, b⁺ = 1 + ε, a⁻ = 0, b⁻ = 1, and PPO (Eq. 6), ε = 0.2.
    """
    import torch

    losses = {
        "topr": loss("topr", b_pos=1 + EPSILON),
        "ppo": loss("ppo", eps_low=EPSILON, eps_high=EPSILON),
    }
    delta = torch.tensor(RATIOS, dtype=torch.float64).log()
    numbers: dict[str, Any] = {"eps": EPSILON, "ratio": RATIOS}
    for sign, reward in REWARDS.items():
        rewards = torch.full_like(delta, reward)
        batch = Batch(
            logp=delta[:, None],
            mu_logp=torch.zeros_like(delta)[:, None],
            mask=torch.ones(len(delta), 1, dtype=torch.bool),
            reward=rewards,
            positive=rewards > 0,
        )
        objective_of = {}
        for name, function in losses.items():
            objective_of[name] = function(batch).metrics["objective"].tolist()
        objective_of["importance_sampling"] = (delta.exp() * reward).tolist()
        numbers[sign] = objective_of
    return numbers


def draw(runs: Runs, extra: Extra) -> Drawing:
    """Draw the objectives, and on them the ratios of the runs' last batches."""
    drawing, axes = empty_grid(2)
    for ax, sign in zip(axes[0], REWARDS, strict=True):
        draw_objectives(ax, extra, sign)
    axes[0][0].set_ylabel("objective")
    axes[0][0].legend(fontsize=7)
    groups = group_by(runs, models, algorithms, separator=": ratios, ")
    for ax, sign in zip(axes[0], REWARDS, strict=True):
        for i, (label, members) in enumerate(groups.items()):
            draw_ratios(ax, members, sign, label=label, index=i)
    return drawing


def draw_objectives(ax: Axes, extra: Extra, sign: str) -> None:
    """The objectives of a sign of the reward by ratio, with PPO's limits in grey."""
    ratio, epsilon = extra["ratio"], extra["eps"]
    for i, (name, label) in enumerate(NAMES.items()):
        objective = extra[sign][name]
        ax.plot(ratio, objective, label=label, **series_style(i))
    ax.axvspan(1 - epsilon, 1 + epsilon, color="0.92", zorder=0)
    ax.set(
        xlim=(0, LARGEST_SHOWN_RATIO),
        ylim=LIMITS_OF_Y[sign],
        xlabel="ratio π(y|x) / μ(y|x)",
        title=TITLES[sign],
    )


def draw_ratios(ax: Axes, runs: Runs, sign: str, *, label: str, index: int) -> None:
    """A bar from the 5 to the 95 % quantile of the ratios, with a mark at the median."""
    low, median, high = map(float, np.exp(log_ratio_quantiles(runs, sign)))
    bottom, top = ax.get_ylim()
    height = top - bottom
    y = bottom + (0.05 + 0.07 * index) * height
    algorithm = runs[0]["settings"]["algo.name"]
    color = series_style(list(NAMES).index(algorithm))["color"]
    ax.plot([low, high], [y, y], color=color, lw=3, alpha=0.5)
    shown_median, marker = median, "o"
    if median > LARGEST_SHOWN_RATIO:
        shown_median, marker = LARGEST_SHOWN_RATIO, ">"
    ax.plot([shown_median], [y], marker, color=color, ms=4, clip_on=False)
    if high > LARGEST_SHOWN_RATIO:
        label = f"{label}, to {high:.1f}"
    if sign == "positive":
        ax.text(low, y + 0.015 * height, label, fontsize=6, va="bottom")
    else:
        ax.text(high + 0.05, y, label, fontsize=6, va="center")


def log_ratio_quantiles(runs: Runs, sign: str) -> list[float]:
    """5, 50 and 95 % quantiles of Δ in the last twentieth of the updates, averaged over runs."""
    means = []
    for quantile in ("q05", "q50", "q95"):
        name = f"log_ratio_{quantile}_{sign[:3]}"
        last_values = [last_metric(record, name) for record in runs]
        means.append(float(np.mean(last_values)))
    return means


def judge(runs: Runs, extra: Extra) -> list[Claim]:
    """Near ratio 1 both objectives are equal; beyond, PPO's is flat and TOPR's rises towards what is rewarded."""
    ratio, epsilon = np.array(extra["ratio"]), extra["eps"]
    is_near = {
        "positive": (ratio >= 1) & (ratio <= 1 + epsilon),
        "negative": (ratio >= 1 - epsilon) & (ratio <= 1),
    }
    is_beyond = {
        "positive": ratio > 1 + epsilon,
        "negative": ratio < 1 - epsilon,
    }
    claims = []
    for sign, reward in REWARDS.items():
        topr, ppo = np.array(extra[sign]["topr"]), np.array(extra[sign]["ppo"])
        gap = float(np.abs(topr - ppo)[is_near[sign]].max())
        text = f"{sign}: TOPR equals PPO next to ratio 1"
        claims.append(Claim(text, gap < ROUNDING, f"largest difference {gap:.1g}"))
        beyond = is_beyond[sign]
        steps = np.diff(ratio[beyond])
        slopes_of_ppo = np.diff(ppo[beyond]) / steps
        slopes_of_topr = reward * np.diff(topr[beyond]) / steps
        largest_of_ppo = float(np.abs(slopes_of_ppo).max())
        smallest_of_topr = float(slopes_of_topr.min())
        text = f"{sign}: beyond, PPO is flat and TOPR goes on"
        evidence = f"largest slope of PPO {largest_of_ppo:.1g}, least of TOPR {smallest_of_topr:.1g}"
        claims.append(Claim(text, largest_of_ppo < ROUNDING < smallest_of_topr, evidence))
    return claims


FIGURE = Figure(
    name="fig2",
    title="Figure 2",
    claim="Next to ratio 1 TOPR's objective is PPO's; farther off PPO is flat, so that it stops learning, and TOPR is "
    "not.",
    experiments=("fig2",),
    draw=draw,
    judge=judge_by(judge),
    metrics=RATIO_QUANTILES,
    compute_extra=objectives,
    note="The curves are computed from the losses that train, TOPR's with b⁺ = 1 + ε as in the paper's figure (the "
    "runs have b⁺ = 1); the bars below are measured: where 90 % of the ratios of the last updates' batches lie.",
)
