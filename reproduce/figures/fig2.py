"""TOPR, Figure 2: the objective of one response as a function of its ratio, by TOPR and by PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.claims import Claim, Extra, decide
from reproduce.figure import RATIO_QUANTILES, Figure, FinishedRuns
from reproduce.groups import algorithms, group_by, models, name_of
from reproduce.panels import empty_grid
from reproduce.selection import Runs
from topr_exp import Batch, loss
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

EPSILON = 0.2
RATIOS = [i / 100 for i in range(1, 301)]
LARGEST_SHOWN_RATIO = 3.0
REWARDS = {"positive": 1.0, "negative": -1.0}
TITLES = {"positive": "R = +1", "negative": "R = −1"}
LIMITS_OF_Y = {"positive": (-2, 3), "negative": (-3, 0.2)}


def objectives(finished: FinishedRuns = ()) -> Extra:
    """Compute the objective of a response of one token by its ratio, for R = +1 and R = −1.

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
        numbers[sign] = {name: function(batch).metrics["objective"].tolist() for name, function in losses.items()}
        numbers[sign]["importance_sampling"] = (delta.exp() * reward).tolist()
    return numbers


def draw(runs: Runs, extra: Extra) -> Drawing:
    """Draw the objectives, and on them the ratios of the runs' last batches."""
    drawing, axes = empty_grid(2)
    groups = group_by(runs, models, algorithms, separator=": ratios, ")
    for ax, sign in zip(axes[0], REWARDS, strict=True):
        for i, name in enumerate(("topr", "ppo", "importance_sampling")):
            label = "importance sampling" if name == "importance_sampling" else name_of(name)
            ax.plot(extra["ratio"], extra[sign][name], label=label, **series_style(i))
        ax.axvspan(1 - extra["eps"], 1 + extra["eps"], color="0.92", zorder=0)
        ax.set(xlim=(0, LARGEST_SHOWN_RATIO), ylim=LIMITS_OF_Y[sign], xlabel="ratio π(y|x) / μ(y|x)")
        ax.set(title=TITLES[sign])
    axes[0][0].set_ylabel("objective")
    axes[0][0].legend(fontsize=7)
    for ax, sign in zip(axes[0], REWARDS, strict=True):
        for i, (label, members) in enumerate(groups.items()):
            draw_ratios(ax, members, sign, label=label, index=i)
    return drawing


def draw_ratios(ax: Axes, runs: Runs, sign: str, *, label: str, index: int) -> None:
    """A bar from the 5 to the 95 % quantile of the ratios, with a mark at the median."""
    bottom, top = ax.get_ylim()
    low, median, high = map(float, np.exp(log_ratio_quantiles(runs, sign)))
    y = bottom + (0.05 + 0.07 * index) * (top - bottom)
    color = series_style(("topr", "ppo").index(runs[0]["settings"]["algo.name"]))["color"]
    ax.plot([low, high], [y, y], color=color, lw=3, alpha=0.5)
    marker = "o" if median <= LARGEST_SHOWN_RATIO else ">"
    ax.plot([min(median, LARGEST_SHOWN_RATIO)], [y], marker, color=color, ms=4, clip_on=False)
    if high > LARGEST_SHOWN_RATIO:
        label = f"{label}, to {high:.1f}"
    if sign == "positive":
        ax.text(low, y + 0.015 * (top - bottom), label, fontsize=6, va="bottom")
    else:
        ax.text(high + 0.05, y, label, fontsize=6, va="center")


def log_ratio_quantiles(runs: Runs, sign: str) -> list[float]:
    """5, 50 and 95 % quantiles of Δ in the last twentieth of the updates, averaged over runs."""
    names = [f"log_ratio_{quantile}_{sign[:3]}" for quantile in ("q05", "q50", "q95")]
    return [float(np.mean([record["metrics"][name][-1] for record in runs])) for name in names]


def judge(runs: Runs, extra: Extra) -> list[Claim]:
    """Near ratio 1 both objectives are equal; beyond, PPO's is flat and TOPR's rises towards what is rewarded."""
    ratio, epsilon = np.array(extra["ratio"]), extra["eps"]
    near = {"positive": (ratio >= 1) & (ratio <= 1 + epsilon), "negative": (ratio >= 1 - epsilon) & (ratio <= 1)}
    beyond = {"positive": ratio > 1 + epsilon, "negative": ratio < 1 - epsilon}
    claims = []
    for sign, reward in REWARDS.items():
        topr, ppo = np.array(extra[sign]["topr"]), np.array(extra[sign]["ppo"])
        gap = float(np.abs(topr - ppo)[near[sign]].max())
        text = f"{sign}: TOPR equals PPO next to ratio 1"
        claims.append(Claim(text, gap < 1e-9, f"largest difference {gap:.1g}"))
        steps = np.diff(ratio[beyond[sign]])
        flattest = float(np.abs(np.diff(ppo[beyond[sign]]) / steps).max())
        slope = float((reward * np.diff(topr[beyond[sign]]) / steps).min())
        evidence = f"largest slope of PPO {flattest:.1g}, least of TOPR {slope:.1g}"
        claims.append(Claim(f"{sign}: beyond, PPO is flat and TOPR goes on", flattest < 1e-9 < slope, evidence))
    return claims


FIGURE = Figure(
    name="fig2",
    title="Figure 2",
    claim="Next to ratio 1 TOPR's objective is PPO's; farther off PPO is flat, so that it stops learning, and TOPR is "
    "not.",
    experiments=("fig2",),
    draw=draw,
    judge=decide(judge),
    metrics=RATIO_QUANTILES,
    compute_extra=objectives,
    note="The curves are computed from the losses that train, TOPR's with b⁺ = 1 + ε as in the paper's figure (the "
    "runs have b⁺ = 1); the bars below are measured: where 90 % of the ratios of the last updates' batches lie.",
)
