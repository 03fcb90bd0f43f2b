"""TOPR's Figure 2 and AGRO's Figure 1: what is computed without a language model, and runs beside it.

The losses are those that train language models; here a softmax bandit stands for the model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce import draw
from reproduce.figure import Claim, Extra
from reproduce.groups import algorithms, by_model, group_by, name_of
from reproduce.records import rounded
from reproduce.selection import Runs
from topr_exp.algorithms.agro import AGRO, KLPG
from topr_exp.algorithms.base import clipped_objective
from topr_exp.algorithms.topr import taper
from topr_exp.runs.records import Record
from topr_exp.types import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

EPS = 0.2
RATIOS = [i / 100 for i in range(1, 301)]
WIDEST = 3.0  # ratio that Figure 2 shows

# The bandit of AGRO's Figure 1: all of this is ours, the paper gives no numbers.
ACTIONS, GROUPS, GROUP_SIZE = 10, 128, 4
BETA, LEARNING_RATE, UPDATES, SEEDS = 0.5, 4.0, 1000, 5
KL_FLOOR = 1e-12  # float64 can't tell a smaller KL from 0
NEAR, FAR = 1e-3, 1e-2  # KL to the optimum: below it a policy counts as there, above it as elsewhere


# ---- TOPR's Figure 2


def objectives(finished: Sequence[tuple[Record, Path]] = ()) -> Extra:
    """The objective of one response as a function of its ratio, for R = +1 and R = −1: TOPR (Eq. 11) and PPO (Eq. 6).

    TOPR (arXiv 2503.14286), Figure 2: a⁺ = 1, b⁺ = 1 + ε, a⁻ = 0, b⁻ = 1, ε = 0.2.
    """
    import torch

    delta = torch.tensor(RATIOS, dtype=torch.float64).log()
    curves: dict[str, Any] = {"eps": EPS, "ratio": RATIOS}
    for sign, (a, b), reward in (("positive", (1.0, 1 + EPS), 1.0), ("negative", (0.0, 1.0), -1.0)):
        log_a, log_b = (delta.new_tensor(math.log(x) if x > 0 else -math.inf) for x in (a, b))
        advantage = delta.new_tensor(reward)
        curves[sign] = {
            "topr": (taper(delta, log_a, log_b) * reward).tolist(),
            "ppo": clipped_objective(delta, advantage, EPS, EPS)[0].tolist(),
            "importance_sampling": (delta.exp() * reward).tolist(),
        }
    return curves


def draw_objectives(panels: Sequence[Axes], extra: Extra) -> None:
    """The objectives against the ratio, a panel for each sign of the reward."""
    for ax, sign, reward, limits in zip(
        panels, ("positive", "negative"), ("+1", "−1"), ((-2, 3), (-3, 0.2)), strict=True
    ):
        for i, name in enumerate(("topr", "ppo", "importance_sampling")):
            label = "importance sampling" if name == "importance_sampling" else name_of(name)
            ax.plot(extra["ratio"], extra[sign][name], label=label, **draw.series_style(i))
        ax.axvspan(1 - extra["eps"], 1 + extra["eps"], color="0.92", zorder=0)
        ax.set(xlim=(0, WIDEST), ylim=limits, xlabel="ratio π(y|x) / μ(y|x)", title=f"R = {reward}")
    panels[0].set_ylabel("objective")
    panels[0].legend(fontsize=7)


def draw_figure_2(runs: Runs, extra: Extra) -> Figure:
    """The objectives; below each sign of the reward where the ratios of the runs' batches lay at the end."""
    figure, grid = draw.empty(2)
    draw_objectives(grid[0], extra)
    groups = group_by(runs, by_model, algorithms, between=": ratios, ")
    for ax, sign in zip(grid[0], ("positive", "negative"), strict=True):
        bottom, top = ax.get_ylim()
        for i, (told, members) in enumerate(groups.items()):
            low, middle, high = map(float, np.exp(log_ratios(members, sign)))
            y = bottom + (0.05 + 0.07 * i) * (top - bottom)
            color = draw.series_style(("topr", "ppo").index(members[0]["settings"]["algo.name"]))["color"]
            ax.plot([low, high], [y, y], color=color, lw=3, alpha=0.5)
            ax.plot([min(middle, WIDEST)], [y], "o" if middle <= WIDEST else ">", color=color, ms=4, clip_on=False)
            told += f", to {high:.1f}" if high > WIDEST else ""
            if sign == "positive":
                ax.text(low, y + 0.015 * (top - bottom), told, fontsize=6, va="bottom")
            else:
                ax.text(high + 0.05, y, told, fontsize=6, va="center")
    return figure


def log_ratios(runs: Runs, sign: str) -> tuple[float, float, float]:
    """5, 50 and 95 % quantiles of Δ in the last twentieth of the updates, averaged over runs."""
    names = [f"log_ratio_q{q}_{sign[:3]}" for q in ("05", "50", "95")]
    low, middle, high = (float(np.mean([each["metrics"][name][-1] for each in runs])) for name in names)
    return low, middle, high


def judge_figure_2(runs: Runs, extra: Extra) -> list[Claim]:
    ratio = np.array(extra["ratio"])
    inside = {"positive": (ratio >= 1) & (ratio <= 1 + extra["eps"]),
              "negative": (ratio >= 1 - extra["eps"]) & (ratio <= 1)}  # fmt: skip
    found = []
    for sign, chosen in inside.items():
        topr, ppo = (np.array(extra[sign][name]) for name in ("topr", "ppo"))
        gap = float(np.abs(topr - ppo)[chosen].max())
        found.append(Claim(f"{sign}: TOPR equals PPO next to ratio 1", gap < 1e-9, f"largest difference {gap:.1g}"))
        # Beyond are larger ratios where R = +1, smaller ones where R = -1: the objective rises on the way there.
        beyond, way = (ratio > 1 + extra["eps"], 1) if sign == "positive" else (ratio < 1 - extra["eps"], -1)
        of_topr, of_ppo = (np.diff(curve[beyond]) / np.diff(ratio[beyond]) for curve in (topr, ppo))
        flat, slope = float(np.abs(of_ppo).max()), float((way * of_topr).min())
        text = f"{sign}: beyond, PPO is flat and TOPR goes on"
        found.append(Claim(text, flat < 1e-9 < slope, f"largest slope of PPO {flat:.1g}, least of TOPR {slope:.1g}"))
    return found


# ---- AGRO's Figure 1


def agro_convergence(updates: int = UPDATES, seeds: int = SEEDS) -> dict[str, list[list[float]]]:
    """KL(π ‖ π*) after each update of AGRO and of the KL-regularised policy gradient on fixed off-policy samples.

    A softmax bandit with rewards in [0, 1], random π_ref and, unrelated to it, random μ; 128 groups of 4 actions drawn
    from μ once; π starts at π_ref and follows the full gradient. π* ∝ π_ref exp(r/β) is the optimum of
    E_π[r] − β KL(π ‖ π_ref). AGRO (arXiv 2503.19612), Figure 1 and Theorem 2.
    """
    losses: list[AGRO | KLPG] = [
        AGRO(name="agro", beta=BETA, estimator="vanilla", length_normalize=False),
        KLPG(name="kl_pg", beta=BETA, length_normalize=False),
    ]
    return {loss.name: [train_bandit(loss, seed, updates) for seed in range(seeds)] for loss in losses}


def train_bandit(loss: AGRO | KLPG, seed: int, updates: int) -> list[float]:
    """KL(π ‖ π*) before the first and after each update."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    reward = torch.rand(ACTIONS, generator=generator, dtype=torch.float64)
    ref, mu = torch.randn(2, ACTIONS, generator=generator, dtype=torch.float64).log_softmax(1)
    optimum = (ref + reward / BETA).log_softmax(0)
    actions = torch.multinomial(mu.exp(), GROUPS * GROUP_SIZE, replacement=True, generator=generator)
    logits = ref.clone().requires_grad_()
    history = []
    for update in range(updates + 1):
        logp = logits.log_softmax(0)
        history.append(max(kl(logp.detach(), optimum).item(), 0.0))
        if update < updates:
            batch = bandit_batch(actions, logp, mu, ref, reward)
            if isinstance(loss, AGRO):
                batch = dataclasses.replace(batch, signals=loss.signals(batch))
            (gradient,) = torch.autograd.grad(loss(batch).loss.mean(), logits)
            logits = (logits - LEARNING_RATE * gradient).detach().requires_grad_()
    return history


def kl(logp: Tensor, logq: Tensor) -> Tensor:
    return (logp.exp() * (logp - logq)).sum()


def bandit_batch(actions: Tensor, logp: Tensor, mu: Tensor, ref: Tensor, reward: Tensor) -> Batch:
    """The fixed samples as responses of one token."""
    count = len(actions)
    rewards = reward[actions]
    group = actions.new_tensor(range(GROUPS)).repeat_interleave(GROUP_SIZE)
    column = actions[:, None]
    return Batch(
        logp=logp[column],
        mu_logp=mu[column],
        mask=column >= 0,
        reward=rewards,
        positive=rewards > 0.5,
        group=group,
        group_mean=rewards.view(GROUPS, GROUP_SIZE).mean(1)[group],
        group_size=actions.new_full((count,), GROUP_SIZE),
        ref_logp=ref[column],
        vocab_kl=kl(logp, ref).expand(count, 1),
    )


def convergence(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """The curves at every hundredth of the updates, and where they end."""
    found, step = agro_convergence(), max(1, UPDATES // 100)
    curves = {name: [[rounded(value) for value in line[::step]] for line in lines] for name, lines in found.items()}
    final = {name: [rounded(line[-1]) for line in lines] for name, lines in found.items()}
    return {"step": step, "curves": curves, "final": final, "beta": BETA, "actions": ACTIONS}


def draw_bandit(ax: Axes, extra: Extra) -> None:
    """KL to the optimal policy over updates: the median over seeds, every seed thin."""
    for i, (name, lines) in enumerate(extra["curves"].items()):
        values = np.maximum(np.array(lines), KL_FLOOR)
        x = extra["step"] * np.arange(values.shape[1])
        for line in values:
            ax.plot(x, line, color=draw.series_style(i)["color"], lw=0.5, alpha=0.5)
        ax.plot(x, np.median(values, axis=0), label=name_of(name), **draw.series_style(i))
    draw.log_axis(ax, "y")
    ax.set(xlabel="updates", ylabel="KL(π ‖ π*)", title=f"softmax bandit, {extra['actions']} actions")
    ax.legend(fontsize=7)


def draw_agro_figure_1(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.empty(1 + len(models))
    draw_bandit(grid[0][0], extra)
    for ax, (model, members) in zip(grid[0][1:], models.items(), strict=True):
        draw.bars(ax, algorithms(members))
        ax.set_title(f"{model}, off-policy, β = 0.05")
    return figure


def reaches_the_optimum(runs: Runs, extra: Extra) -> list[Claim]:
    def told(name: str) -> str:
        return "final KL " + " ".join(f"{value:.1g}" for value in extra["final"][name])

    agro, other = extra["final"]["agro"], extra["final"]["kl_pg"]
    return [
        Claim(f"bandit: AGRO reaches the optimum off-policy (KL below {NEAR:g} in every seed)",
              max(agro) < NEAR, told("agro")),
        Claim(f"bandit: the KL-regularised policy gradient does not (above {FAR:g} in every seed)",
              min(other) > FAR, told("kl_pg")),
    ]  # fmt: skip
