"""AGRO's comparisons: pass@1 against the KL to the reference, over β, on- and off-policy, and with replay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, below, by_seeds
from reproduce.draw import INSIDE, against, bars, grid, metric, panel
from reproduce.figure import Extra, algorithms, name_of
from topr_exp.report.figures import MARKERS
from topr_exp.report.selection import Runs, difference, gain, group_by
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BETA, REPLAY = "algo.beta", "schedule.replay"
BY_BETA, BY_REPLAY = (BETA, "β = {:g}".format), (REPLAY, "replay {:g}".format)
APART = "KL(π ‖ π_ref), nats a completion"


def kl(runs: Runs, extra: Extra) -> list[float]:
    return [extra[json.dumps(each["settings"], sort_keys=True)] for each in runs]


def plain(runs: Runs) -> dict[str, Runs]:
    """The runs by algorithm, those that replay left out: AGRO itself off-policy."""
    return algorithms(Runs([each for each in runs if not each["settings"].get(REPLAY) and not replays(each)]))


def replays(record: Record) -> bool:
    """Whether a run belongs to the comparison of replay: AGRO's off-policy loss in rounds."""
    return record["settings"]["algo.name"] == "agro" and "schedule.prompts" in record["settings"]


def efficiency(ax: Axes, groups: Mapping[str, Runs], extra: Extra) -> None:
    """pass@1 against KL: the mean over seeds for each β, every seed a dot."""
    for i, (name, group) in enumerate(groups.items()):
        points = sorted(
            (float(np.mean(kl(each, extra))), 100 * float(each.values().mean()), beta)
            for beta, each in group.split(BETA).items()
        )
        style = draw.series_style(draw.place(name, [*groups]))
        ax.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], marker=MARKERS[i], ms=4, label=name_of(name), **style
        )
        for x, y, beta in points:
            ax.plot(x, y, MARKERS[i], ms=4 + 3 * [*group.split(BETA)].index(beta), color=style["color"], alpha=0.7)
        ax.plot(kl(group, extra), 100 * np.array(group.each()), ".", ms=3, color=style["color"], alpha=0.6)
    ax.set(xlabel=f"{APART} (larger marks: larger β)", ylabel="pass@1 (%)")


draw_agro_kl = grid(
    panel(efficiency, plain, extra=True, legend=INSIDE),
    panel(against, plain, BETA, "pass@1", 0.06, title="", legend=INSIDE, xlabel="β"),
)


def judge_agro_kl(runs: Runs, extra: Extra) -> list[Claim]:
    groups = plain(runs)
    none = Runs([])
    agro, other, on = (groups.get(name, none) for name in ("agro", "kl_pg", "agro_on_policy"))
    found = []
    for beta in sorted(agro.split(BETA)):
        pair = other.where(algo__beta=beta), agro.where(algo__beta=beta)
        if len(pair[0]) and len(pair[1]):
            distances_ = ", ".join(
                f"{name_of(n)} {np.mean(kl(g, extra)):.2f}" for n, g in zip(("kl_pg", "agro"), pair, strict=True)
            )
            claim = above(
                f"off-policy, β = {beta:g}: AGRO above the KL-regularised policy gradient", difference(pair[0], pair[1])
            )
            found.append(Claim(claim.text, claim.holds, f"{claim.evidence}; KL {distances_}"))
    best_on, best_rloo = best(on), best(groups.get("rloo", none))
    found.append(above("on-policy, each at its best β: AGRO above RLOO", difference(best_rloo, best_on)))
    for name, group in (("agro", agro), ("agro_on_policy", on)):
        betas = group.split(BETA)
        if len(betas) > 1:
            strong, weak = betas[max(betas)], betas[min(betas)]
            text = f"{name_of(name)}: a strong β slows learning (pass@1 at the largest below the smallest)"
            found.append(below(text, difference(weak, strong)))
            text = f"{name_of(name)}: the largest β gains more a nat of KL than the smallest"
            found.append(as_efficient(text, "strong", a_nat(strong, extra), "weak", a_nat(weak, extra), 1.0))
    return found


def best(runs: Runs) -> Runs:
    """The runs at the β whose mean pass@1 is highest."""
    return max(runs.split(BETA).values(), key=lambda each: float(each.values().mean()), default=Runs([]))


def a_nat(runs: Runs, extra: Extra) -> dict[int, float]:
    """By seed: what a run gained in pass@1, divided by its KL to the reference."""
    gains = (each_gain(record) for record in runs)
    return {seed: gain / distance for seed, gain, distance in zip(runs.seeds, gains, kl(runs, extra), strict=True)}


def each_gain(record: Record) -> float:
    one = Runs([record])
    return float((one.values() - one.values(part="base")).mean())


def as_efficient(
    text: str, name: str, first: Mapping[int, float], other_name: str, other: Mapping[int, float], least: float
) -> Claim:
    """Whether the first gains at least `least` times as much a nat as the other, by the interval over shared seeds."""
    shared = sorted(first.keys() & other.keys())
    shown = "; ".join(
        f"{label} {' '.join(f'{100 * ratios[seed]:.1f}' for seed in shared)} points a nat"
        for label, ratios in ((name, first), (other_name, other))
    )
    return by_seeds(text, [first[seed] - least * other[seed] for seed in shared], shown)


# ---- replay


def by_replay(runs: Runs) -> dict[str, Runs]:
    return group_by(runs, BY_REPLAY)


def apart(ax: Axes, groups: Mapping[str, Runs], extra: Extra) -> None:
    """pass@1 of each seed against its KL."""
    for i, (label, group) in enumerate(groups.items()):
        values = 100 * np.array(group.each())
        ax.plot(kl(group, extra), values, MARKERS[i], color=draw.series_style(i)["color"], ms=4, label=label)
    ax.set(xlabel=APART, ylabel="pass@1 (%)", xlim=(0, None))


draw_agro_replay = grid(
    panel(metric, by_replay, "sampled_correct", legend=INSIDE, ylabel="correct among the new samples"),
    panel(bars, by_replay, title=""),
    panel(apart, by_replay, extra=True, title="", legend=INSIDE),
)


def judge_agro_replay(runs: Runs, extra: Extra) -> list[Claim]:
    groups = runs.split(REPLAY)
    fresh = groups.get(0.0, Runs([]))
    found = []
    for q, group in groups.items():
        if q > 0:
            where = f"replay {q:g}"
            text = f"{where}: as KL-efficient as without (gain a nat at least 0.8 of the other's)"
            found += [
                above(f"{where}: AGRO ends above the base", gain(group)),
                above(f"{where}: at most 3 points below the run without", difference(fresh, group), -0.03),
                as_efficient(text, where, a_nat(group, extra), "without", a_nat(fresh, extra), 0.8),
            ]
    return found
