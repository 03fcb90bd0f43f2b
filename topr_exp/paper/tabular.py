"""TOPR's Figure 2 and AGRO's Figure 1: what is computed without a language model, and runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.claims import Claim, below
from topr_exp.paper.figure import Extra
from topr_exp.paper.records import Record, rounded
from topr_exp.paper.selection import Runs, difference
from topr_exp.paper.training import algorithms, by_model
from topr_exp.tabular import KL_FLOOR, agro_convergence, objectives

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 3.0  # ratio that Figure 2 shows
NEAR, FAR = 1e-3, 1e-2  # KL to the optimum: below it a policy counts as there, above it as elsewhere


def objective_curves(finished: Sequence[tuple[Record, Path]]) -> Extra:
    return objectives()


def draw_figure_2(runs: Runs, extra: Extra) -> Figure:
    """The objectives; below each sign of the reward where the ratios of the runs' batches lay at the end."""
    figure, grid = draw.panels(2)
    for ax, sign, reward, limits in zip(
        grid[0], ("positive", "negative"), ("+1", "−1"), ((-2, 3), (-3, 0.2)), strict=True
    ):
        for i, name in enumerate(("topr", "ppo", "importance_sampling")):
            label = "importance sampling" if name == "importance_sampling" else draw.name_of(name)
            ax.plot(extra["ratio"], extra[sign][name], label=label, **draw.look(i))
        ax.axvspan(1 - extra["eps"], 1 + extra["eps"], color="0.92", zorder=0)
        for i, (name, members) in enumerate(algorithms(runs).items()):
            low, middle, high = ratios(members, sign)
            y = limits[0] + (0.06 + 0.08 * i) * (limits[1] - limits[0])
            color = draw.look(i)["color"]
            ax.plot([low, high], [y, y], color=color, lw=3, alpha=0.5)
            ax.plot([min(middle, WIDEST)], [y], "o" if middle <= WIDEST else ">", color=color, ms=4, clip_on=False)
            more = f", to {high:.1f}" if high > WIDEST else ""
            ax.text(0.02 if sign == "positive" else high + 0.05, y, f"ratios, {draw.name_of(name)}{more}", fontsize=6,
                    va="bottom" if sign == "positive" else "center")  # fmt: skip
        ax.set(xlim=(0, WIDEST), ylim=limits, xlabel="ratio π(y|x) / μ(y|x)", title=f"R = {reward}")
    grid[0][0].set_ylabel("objective")
    grid[0][0].legend(fontsize=7)
    return figure


def ratios(runs: Runs, sign: str) -> tuple[float, float, float]:
    """5, 50 and 95 % quantiles of the ratio in the last twentieth of the updates, averaged over runs."""
    names = [f"log_ratio_q{q}_{sign[:3]}" for q in ("05", "50", "95")]
    low, middle, high = (float(np.exp(np.mean([each["metrics"][name][-1] for each in runs]))) for name in names)
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
        beyond = ratio > 1 + extra["eps"] if sign == "positive" else ratio < 1 - extra["eps"]
        flat = float(np.abs(np.diff(ppo[beyond])).max())
        slope = float(np.abs(np.diff(topr[beyond])).min())
        text = f"{sign}: beyond, PPO is flat and TOPR goes on"
        found.append(Claim(text, flat < 1e-9 < slope, f"largest slope of PPO {flat:.1g}, least of TOPR {slope:.1g}"))
    return found


# ---- AGRO's Figure 1


def convergence(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """The tabular check, its curves thinned."""
    data = agro_convergence()
    step = max(1, data["updates"] // 100)
    curves = {
        name: [[rounded(value) for value in line[::step]] for line in lines]
        for name, lines in data["kl_to_optimum"].items()
    }
    final = {name: [rounded(value) for value in values] for name, values in data["final_kl"].items()}
    return {"step": step, "curves": curves, "final": final, "beta": data["beta"], "actions": data["actions"]}


def draw_agro_figure_1(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(1 + len(models))
    ax = grid[0][0]
    for i, (name, lines) in enumerate(extra["curves"].items()):
        values = np.maximum(np.array(lines), KL_FLOOR)
        x = extra["step"] * np.arange(values.shape[1])
        for line in values:
            ax.plot(x, line, color=draw.look(i)["color"], lw=0.5, alpha=0.5)
        ax.plot(x, np.median(values, axis=0), label=draw.name_of(name), **draw.look(i))
    draw.log_axis(ax, "y")
    ax.set(xlabel="updates", ylabel="KL(π ‖ π*)", title=f"softmax bandit, {extra['actions']} actions")
    ax.legend(fontsize=7)
    for ax, (model, members) in zip(grid[0][1:], models.items(), strict=True):
        draw.bars(ax, algorithms(members))
        ax.set_title(f"{model}, off-policy, β = 0.05")
    return figure


def judge_agro_figure_1(runs: Runs, extra: Extra) -> list[Claim]:
    def told(name: str) -> str:
        return "final KL " + " ".join(f"{value:.1g}" for value in extra["final"][name])

    agro, other = extra["final"]["agro"], extra["final"]["kl_pg"]
    algos = algorithms(runs)
    lead = difference(algos.get("agro", Runs([])), algos.get("kl_pg", Runs([])))
    return [
        Claim(f"bandit: AGRO reaches the optimum off-policy (KL below {NEAR:g} in every seed)",
              max(agro) < NEAR, told("agro")),
        Claim(f"bandit: the KL-regularised policy gradient does not (above {FAR:g} in every seed)",
              min(other) > FAR, told("kl_pg")),
        below("language model: the KL-regularised policy gradient ends below AGRO", lead),
    ]  # fmt: skip
