"""Figures over the effective proportion of positives: TOPR's Figures 5 and 6, and the map over the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, between
from reproduce.figure import Extra
from reproduce.training import algorithms, by_model
from topr_exp.report.selection import Runs, contrast, difference, gain, group_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EFFECTIVE = "effective_positive"
BEST = (0.1, 0.2)  # the paper's best effective proportions


def draw_figure_5(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(len(models))
    for ax, (model, members) in zip(grid[0], models.items(), strict=True):
        draw.against(ax, shares(members), EFFECTIVE)
        draw.base_line(ax, members)
        ax.set(xlabel="effective proportion of positives p̃", title=model)
        ax.legend(fontsize=7)
    return figure


def told(effective: float) -> str:
    return f"p̃ = {100 * effective:g} %"


def shares(runs: Runs) -> dict[str, Runs]:
    """The runs by the share of positives in their training set."""
    return {f"p = {100 * p:g} %": each for p, each in runs.split("compose.positive_share").items()}


def best(runs: Runs, among: tuple[float, ...] | None = None) -> tuple[float, float] | None:
    """The effective proportion with the highest mean pass@1, and that mean."""
    means = {p: float(each.values().mean()) for p, each in runs.split(EFFECTIVE).items() if not among or p in among}
    return max(((p, value) for p, value in means.items()), key=lambda pair: pair[1]) if means else None


def at(runs: Runs, p: float, effective: float) -> Runs:
    return runs.where(compose__positive_share=p, effective_positive=effective)


def judge_figure_5(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    peaks = {}
    for label, group in shares(runs).items():
        peak = best(group)
        ours, others = best(group, BEST), best(group, tuple(p for p in group.split(EFFECTIVE) if p not in BEST))
        if peak is None or ours is None or others is None:
            continue
        peaks[label] = peak[0]
        lead = difference(group.where(effective_positive=others[0]), group.where(effective_positive=ours[0]))
        text = f"{label}: the better of 10 and 20 % ends above the best other effective proportion"
        claim = above(text, lead)
        found.append(Claim(text, claim.holds, f"{100 * ours[0]:g} % against {100 * others[0]:g} %: {claim.evidence}"))
    text = "the best effective proportion hardly depends on p (highest means the same, or neighbours on the grid)"
    grid = sorted(runs.split(EFFECTIVE))
    if len(peaks) == 2:
        one, other = (grid.index(value) for value in peaks.values())
        found.append(Claim(text, abs(one - other) <= 1, " and ".join(f"{100 * value:g} %" for value in peaks.values())))
    return [
        *found,
        above("10 % by sampling beats 10 % by a baseline", difference(at(runs, 0.5, 0.1), at(runs, 0.1, 0.1))),
        above("50 % by sampling beats 50 % by a baseline", difference(at(runs, 0.1, 0.5), at(runs, 0.5, 0.5))),
    ]


def table_5(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (shares, str), (EFFECTIVE, told))


# ---- Figure 6


def draw_figure_6(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, data in zip(row, ("gsm8k", "math"), strict=True):
            group = members.where(data__name=data)
            draw.against(ax, algorithms(group), EFFECTIVE)
            draw.base_line(ax, group)
            ax.set(xlabel="effective proportion of positives p̃", title=f"{model}, {draw.name_of(data)}")
            ax.legend(fontsize=7)
    return figure


def judge_figure_6(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for data in ("gsm8k", "math"):
        group, name = runs.where(data__name=data), draw.name_of(data)
        algos = algorithms(group)
        if {"topr", "tis"} - set(algos):
            continue
        tis, topr = algos["tis"], algos["topr"]
        few = [p for p in group.split(EFFECTIVE) if p <= 0.1]
        for p in few:
            lead = difference(tis.where(effective_positive=p), topr.where(effective_positive=p))
            found.append(above(f"{name}: TIS below TOPR at {told(p)}", lead))
        found += [above(f"{name}: TOPR does not fail at {told(p)}: it ends above the base",
                        gain(topr.where(effective_positive=p))) for p in few]  # fmt: skip
        high = [p for p in group.split(EFFECTIVE) if p >= 0.5]
        even = [difference(topr.where(effective_positive=p), tis.where(effective_positive=p)) for p in high]
        text = f"{name}: no difference of more than 3 points from p̃ = 50 % on"
        found.append(between(text, list(zip(map(told, high), even, strict=True)), 0.03))
        peaks = best(tis), best(topr)
        if peaks[0] and peaks[1]:
            one, other = tis.where(effective_positive=peaks[0][0]), topr.where(effective_positive=peaks[1][0])
            found.append(above(f"{name}: TIS peaks higher than TOPR", difference(other, one)))
    return found


def table_6(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, ("data.name", draw.name_of), (algorithms, draw.name_of), (EFFECTIVE, told))


# ---- the map


def draw_map(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (algo, group) in zip(row, algorithms(members).items(), strict=False):
            effective, rates = sorted(group.split(EFFECTIVE)), sorted(group.split("optim.lr"))
            table = np.full((len(rates), len(effective)), np.nan)
            for (i, rate), (j, p) in ((a, b) for a in enumerate(rates) for b in enumerate(effective)):
                cell = group.where(optim__lr=rate, effective_positive=p)
                if len(cell):
                    table[i, j] = 100 * cell.values().mean()
                    ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", color="white", fontsize=8)
            ax.imshow(table, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=100)
            ax.set_xticks(range(len(effective)), [f"{100 * p:g} %" for p in effective])
            ax.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            ax.set(xlabel="p̃", ylabel="learning rate", title=f"{model}, {draw.name_of(algo)}: pass@1 (%)")
            ax.grid(visible=False)
    return figure


def judge_map(runs: Runs, extra: Extra) -> list[Claim]:
    """Which of the two holds what it has where the learning rate or p̃ is not the best one."""
    algos = algorithms(runs)
    if {"topr", "tis"} - set(algos):
        return []
    cells = [
        (rate, p) for rate in runs.split("optim.lr") for p in runs.split(EFFECTIVE)
    ]  # the same cells for both, paired by seed
    pairs = [tuple(algos[name].where(optim__lr=rate, effective_positive=p) for name in ("tis", "topr"))
             for rate, p in cells]  # fmt: skip
    pairs = [pair for pair in pairs if all(len(each) for each in pair)]
    count = len(pairs)
    if not count:
        return []
    flat = [runs_ for pair in pairs for runs_ in pair]
    mean = contrast(lambda *m: sum(b - a for a, b in zip(m[::2], m[1::2], strict=True)) / count, *flat)
    tis, topr = (min((pair[i] for pair in pairs), key=lambda cell: float(cell.values().mean())) for i in (0, 1))
    return [
        above("averaged over the map TOPR is above TIS", mean),
        above("the worst cell of TOPR is above the worst of TIS", difference(tis, topr)),
    ]


def table_map(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (algorithms, draw.name_of), ("optim.lr", "lr {:g}".format), (EFFECTIVE, told))
