"""AGRO: pass@1 against the KL to the reference, by β, off-policy and on-policy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reproduce.claims import Claim, Decision, Extra, ends_above, ends_below, for_each, judge_by, number_above
from reproduce.distance import KL_TITLE, compute_distances, gain_per_nat, recorded_distances
from reproduce.figure import ALL_SEEDS, BOTH_BASES, Figure
from reproduce.groups import BETA, Groups, algorithms, betas, by_setting, name_of
from reproduce.panels import PERCENT, Panel, against, grid, style_of
from reproduce.selection import Runs, pick
from topr_exp.report import MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

bare_betas = by_setting(BETA, "{:g}")
with_betas = by_setting("algo.name", only=("agro", "agro_on_policy"))
LARGEST, SMALLEST = f"largest {BETA}", f"smallest {BETA}"


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    groups = algorithms(runs)
    draw_efficiency = partial(efficiency, groups=groups, extra=extra)
    draw_betas = partial(against, groups=groups, key=BETA, shift=0.06)
    return [
        Panel(draw_efficiency, model, legend={}),
        Panel(draw_betas, legend={}, labels={"xlabel": "β"}),
    ]


def efficiency(ax: Axes, groups: Groups, extra: Extra) -> None:
    """pass@1 against KL: the mean over seeds for each β, every seed a dot."""
    for i, (name, group) in enumerate(groups.items()):
        style = style_of(name, groups)
        marker = MARKERS[i]
        color = style["color"]
        points = []
        for rank, members in enumerate(group.split(BETA).values()):
            kl = float(np.mean(recorded_distances(members, extra)))
            points.append(Point(kl, PERCENT * members.mean(), size=4 + 3 * rank))
        points.sort()
        kls, scores = [], []
        for point in points:
            kls.append(point.kl)
            scores.append(point.score)
        ax.plot(kls, scores, marker=marker, ms=4, label=name_of(name), **style)
        for point in points:
            ax.plot(point.kl, point.score, marker, ms=point.size, color=color, alpha=0.7)
        seed_scores = PERCENT * np.array(group.seed_means())
        ax.plot(recorded_distances(group, extra), seed_scores, ".", ms=3, color=color, alpha=0.6)
    ax.set(xlabel=f"{KL_TITLE} (larger marks: larger β)", ylabel="pass@1 (%)")


class Point(NamedTuple):
    """The runs of a β."""

    kl: float
    score: float  # pass@1, percent
    size: int  # of its mark


def agro_above_at(beta: str) -> Decision:
    text = f"off-policy, β = {beta}: AGRO above the KL-regularised policy gradient"

    def judge(runs: Runs, extra: Extra) -> Claim:
        claim = ends_above(text, "agro", "kl_pg")(runs, extra)
        assert isinstance(claim, Claim)
        kls = []
        for name in ("kl_pg", "agro"):
            group = pick(runs, name)
            if group:
                kls.append(f"{name_of(name)} {np.mean(recorded_distances(group, extra)):.2f}")
        return replace(claim, evidence=f"{claim.evidence}; KL {', '.join(kls)}")

    return judge


def strong_beta(algorithm: str) -> list[Decision]:
    return [
        ends_below(
            f"{algorithm}: a strong β slows learning (pass@1 at the largest below the smallest)", LARGEST, SMALLEST
        ),
        number_above(
            f"{algorithm}: the largest β gains more a nat of KL than the smallest",
            ("strong", LARGEST),
            ("weak", SMALLEST),
            gain_per_nat,
            form="{:.1f} points a nat",
        ),
    ]


FIGURE = Figure(
    name="agro_kl",
    title="AGRO, KL-efficiency and β",
    claim="Off-policy AGRO ends above the KL-regularised policy gradient, on-policy AGRO above RLOO; a strong β slows "
    "learning and makes it more KL-efficient.",
    experiments=("agro_kl", "agro_on_policy"),
    draw=grid(panels),
    judge=judge_by(
        for_each(bare_betas, lambda beta: [agro_above_at(beta)]),
        ends_above(
            "on-policy, each at its best β: AGRO above RLOO", f"best {BETA} agro_on_policy", f"best {BETA} rloo"
        ),
        for_each(with_betas, strong_beta),
    ),
    levels=(algorithms, betas),
    full_words=(ALL_SEEDS, BOTH_BASES, f"{BETA}=0.05,0.2,0.5,1.0"),
    compute_extra=compute_distances,
    note="The paper's model had a supervised warm-up and its task was MATH; here it is the GSM8K-like one. Where β is "
    "below 1/2 − p (p: the base's accuracy) on-policy AGRO moves towards incorrect completions, the other way to have "
    "no variance (conf/algo/agro_on_policy.yaml): its smallest β is expected to fail. A best β is chosen by the test "
    "problems that it is judged by, which flatters all alike.",
)
