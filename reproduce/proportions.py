"""Figures over the effective proportion of positives: TOPR's Figures 5 and 6, and the map over the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Claim, Row, above, between, judged, where
from reproduce.draw import INSIDE, Panel, against, grid, panel
from reproduce.figure import Extra, algorithms, name_of
from topr_exp.report.selection import Runs, contrast, difference, gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EFFECTIVE, AXIS = "effective_positive", "effective proportion of positives p̃"
BEST = (0.1, 0.2)  # the paper's best effective proportions


def told(effective: float) -> str:
    return f"p̃ = {100 * effective:g} %"


def shares(runs: Runs) -> dict[str, Runs]:
    """The runs by the share of positives in their training set."""
    return {f"p = {100 * p:g} %": each for p, each in runs.split("compose.positive_share").items()}


BY_SHARE, BY_EFFECTIVE, BY_RATE = (shares, str), (EFFECTIVE, told), ("optim.lr", "lr {:g}".format)
draw_figure_5 = grid(panel(against, shares, EFFECTIVE, base=True, legend=INSIDE, xlabel=AXIS), columns=0)


def best(runs: Runs, among: tuple[float, ...] | None = None) -> tuple[float, float] | None:
    """The effective proportion with the highest mean pass@1, and that mean."""
    means = {p: float(each.values().mean()) for p, each in runs.split(EFFECTIVE).items() if not among or p in among}
    return max(((p, value) for p, value in means.items()), key=lambda pair: pair[1]) if means else None


def best_proportions(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    peaks = {}
    for label, group in shares(runs).items():
        peak = best(group)
        ours, others = best(group, BEST), best(group, tuple(p for p in group.split(EFFECTIVE) if p not in BEST))
        if peak is None or ours is None or others is None:
            continue
        peaks[label] = peak[0]
        lead = difference(group.where(effective_positive=others[0]), group.where(effective_positive=ours[0]))
        claim = above(f"{label}: the better of 10 and 20 % ends above the best other effective proportion", lead)
        pair = f"{100 * ours[0]:g} % against {100 * others[0]:g} %"
        found.append(Claim(claim.text, claim.holds, f"{pair}: {claim.evidence}"))
    text = "the best effective proportion hardly depends on p (highest means the same, or neighbours on the grid)"
    order = sorted(runs.split(EFFECTIVE))
    if len(peaks) == 2:
        one, other = (order.index(value) for value in peaks.values())
        found.append(Claim(text, abs(one - other) <= 1, " and ".join(f"{100 * value:g} %" for value in peaks.values())))
    return found


judge_figure_5 = judged(
    best_proportions,
    *(
        Row(
            f"{100 * p:g} % by sampling beats {100 * p:g} % by a baseline",
            where(compose__positive_share=p, effective_positive=p),
            where(compose__positive_share=other, effective_positive=p),
        )
        for p, other in ((0.1, 0.5), (0.5, 0.1))
    ),
)


# ---- Figure 6

draw_figure_6 = grid(
    *(
        panel(
            against,
            algorithms,
            EFFECTIVE,
            within=where(data__name=data),
            base=True,
            legend=INSIDE,
            xlabel=AXIS,
            title=f"{{model}}, {name_of(data)}",
        )
        for data in ("gsm8k", "math")
    )
)


def judge_figure_6(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for data in ("gsm8k", "math"):
        group, name = runs.where(data__name=data), name_of(data)
        if {"topr", "tis"} - {*algorithms(group)}:
            continue
        tis, topr = group.where(algo__name="tis"), group.where(algo__name="topr")
        at = {p: (tis.where(effective_positive=p), topr.where(effective_positive=p)) for p in group.split(EFFECTIVE)}
        few, high = [p for p in at if p <= 0.1], [p for p in at if p >= 0.5]
        found += [above(f"{name}: TIS below TOPR at {told(p)}", difference(*at[p])) for p in few]
        found += [
            above(f"{name}: TOPR does not fail at {told(p)}: it ends above the base", gain(at[p][1])) for p in few
        ]
        even = [(told(p), difference(*at[p][::-1])) for p in high]
        found.append(between(f"{name}: no difference of more than 3 points from p̃ = 50 % on", even, 0.03))
        if (peak := best(tis)) and (other := best(topr)):
            lead = difference(at[other[0]][1], at[peak[0]][0])
            found.append(above(f"{name}: TIS peaks higher than TOPR", lead))
    return found


# ---- the map


def cells(ax: Axes, runs: Runs) -> None:
    """Mean pass@1 by learning rate and effective proportion."""
    effective, rates = sorted(runs.split(EFFECTIVE)), sorted(runs.split("optim.lr"))
    table = np.full((len(rates), len(effective)), np.nan)
    for (i, rate), (j, p) in ((a, b) for a in enumerate(rates) for b in enumerate(effective)):
        cell = runs.where(optim__lr=rate, effective_positive=p)
        if len(cell):
            table[i, j] = 100 * cell.values().mean()
            ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", color="white", fontsize=8)
    ax.imshow(table, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=100)
    ax.set_xticks(range(len(effective)), [f"{100 * p:g} %" for p in effective])
    ax.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    ax.set(xlabel="p̃", ylabel="learning rate")
    ax.grid(visible=False)


def panels_of_map(runs: Runs) -> list[Panel]:
    title = "{{model}}, {}: pass@1 (%)".format
    return [panel(cells, where(name), title=title(name_of(name))) for name in algorithms(runs)]


draw_map = grid(panels_of=panels_of_map)


def judge_map(runs: Runs, extra: Extra) -> list[Claim]:
    """Which of the two holds what it has where the learning rate or p̃ is not the best one."""
    places = [(rate, p) for rate in runs.split("optim.lr") for p in runs.split(EFFECTIVE)]  # the same for both
    pairs = [
        tuple(runs.where(algo__name=name, optim__lr=rate, effective_positive=p) for name in ("tis", "topr"))
        for rate, p in places
    ]
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
