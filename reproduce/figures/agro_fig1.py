"""AGRO, Figure 1: off-policy convergence of AGRO and of the KL-regularised policy gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reproduce.bandit import KL_FLOOR, compute_convergence
from reproduce.claims import Claim, Extra, ends_below, judge_by
from reproduce.figure import Figure
from reproduce.groups import algorithms, models, name_of
from reproduce.panels import SEED_LINE, bars, empty_grid, make_log_axis
from reproduce.selection import Runs
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NEAR, FAR = 1e-3, 1e-2  # KL to the optimum: below it a policy counts as there, above it as elsewhere


def draw(runs: Runs, extra: Extra) -> Drawing:
    runs_by_model = models(runs)
    drawing, axes = empty_grid(1 + len(runs_by_model))
    draw_bandit(axes[0][0], extra)
    for ax, (model, members) in zip(axes[0][1:], runs_by_model.items(), strict=True):
        bars(ax, algorithms(members))
        ax.set_title(f"{model}, off-policy, β = 0.05")
    return drawing


def draw_bandit(ax: Axes, extra: Extra) -> None:
    """KL to the optimal policy over updates: the median over seeds, every seed thin."""
    for i, (name, curves_of_seeds) in enumerate(extra["curves"].items()):
        style = series_style(i)
        curves = np.maximum(np.array(curves_of_seeds), KL_FLOOR)  # [seeds, points]
        updates = extra["step"] * np.arange(curves.shape[1])
        for curve in curves:
            ax.plot(updates, curve, color=style["color"], **SEED_LINE)
        ax.plot(updates, np.median(curves, axis=0), label=name_of(name), **style)
    make_log_axis(ax, "y")
    ax.set(xlabel="updates", ylabel="KL(π ‖ π*)")
    ax.set_title(f"softmax bandit, {extra['actions']} actions")
    ax.legend(fontsize=7)


def reaches_the_optimum(runs: Runs, extra: Extra) -> list[Claim]:
    agro, kl_pg = extra["final"]["agro"], extra["final"]["kl_pg"]
    return [
        Claim(
            f"bandit: AGRO reaches the optimum off-policy (KL below {NEAR:g} in every seed)",
            max(agro) < NEAR,
            final_distances(agro),
        ),
        Claim(
            f"bandit: the KL-regularised policy gradient does not (above {FAR:g} in every seed)",
            min(kl_pg) > FAR,
            final_distances(kl_pg),
        ),
    ]


def final_distances(distances: Sequence[float]) -> str:
    texts = [f"{distance:.1g}" for distance in distances]
    return f"final KL {' '.join(texts)}"


FIGURE = Figure(
    name="agro_fig1",
    title="AGRO, Figure 1",
    claim="On fixed off-policy data AGRO finds the optimum of the KL-regularised reward; the KL-regularised policy "
    "gradient ends elsewhere.",
    experiments=("agro_fig1",),
    draw=draw,
    judge=judge_by(
        reaches_the_optimum,
        ends_below("language model: the KL-regularised policy gradient ends below AGRO", "kl_pg", "agro"),
    ),
    compute_extra=compute_convergence,
)
