"""AGRO's comparisons: pass@1 against the KL to the reference, over β, on- and off-policy, and with replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.claims import Claim, above, below
from topr_exp.paper.figure import Extra
from topr_exp.paper.records import Record, rounded
from topr_exp.paper.selection import Runs, crossed, difference, over_seeds
from topr_exp.paper.training import algorithms, by_model
from topr_exp.report.figures import MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETA, REPLAY = "algo.beta", "schedule.replay"


def distances(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """KL(π ‖ π_ref) of each run's final model, by its settings: the mean over its test completions of Δ to π_ref."""
    return {json.dumps(record["settings"], sort_keys=True): rounded(distance(folder)) for record, folder in finished}


def distance(folder: Path) -> float:
    """KL(π ‖ π_ref) in nats a completion, estimated on completions that π itself sampled for the test problems."""
    from topr_exp.data.problems import load_problems
    from topr_exp.models.policy import load_policy
    from topr_exp.paper import finished

    config = finished.settings(folder)
    place = Path(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["final"]["rollouts"])
    policy = load_policy(config.model, config.cluster.device.name, folder / "model")
    rollouts = finished.completions(config, policy, load_problems(config.data).test, place)
    policies = (policy, load_policy(config.reference, config.cluster.device.name))
    size = config.optim.score_batch_size
    totals = [np.array(finished.log_likelihoods(each, rollouts, range(rollouts.rows), size)) for each in policies]
    return float(np.mean(totals[0] - totals[1]))


def kl(runs: Runs, extra: Extra) -> list[float]:
    return [extra[json.dumps(each["settings"], sort_keys=True)] for each in runs]


def draw_agro_kl(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        efficiency(row[0], plain(members), extra)
        row[0].set_title(model)
        for i, (name, group) in enumerate(plain(members).items()):
            points = group.split(BETA)
            found = [each.interval() for each in points.values()]
            errors = [[100 * (one.value - one.low) for one in found], [100 * (one.high - one.value) for one in found]]
            row[1].errorbar([*points], [100 * one.value for one in found], np.maximum(errors, 0), capsize=2,
                            marker=MARKERS[i], ms=4, color=draw.look(i)["color"], label=draw.name_of(name))  # fmt: skip
        draw.log_axis(row[1], "x")
        row[1].set(xlabel="β", ylabel="pass@1 (%)")
        row[1].legend(fontsize=7)
    return figure


def plain(runs: Runs) -> dict[str, Runs]:
    """The runs by algorithm, those that replay left out: AGRO itself off-policy."""
    return algorithms(Runs([each for each in runs if not each["settings"].get(REPLAY) and not replays(each)]))


def replays(record: Record) -> bool:
    """Whether a run belongs to the comparison of replay: AGRO's off-policy loss in rounds."""
    return record["settings"]["algo.name"] == "agro" and "schedule.prompts" in record["settings"]


def efficiency(ax: Axes, groups: Mapping[str, Runs], extra: Extra) -> None:
    """pass@1 against KL: the mean over seeds for each β, every seed a dot."""
    for i, (name, group) in enumerate(groups.items()):
        points = [(float(np.mean(kl(each, extra))), float(each.values().mean())) for each in group.split(BETA).values()]
        points.sort()
        style = draw.look(i)
        ax.plot([x for x, _ in points], [100 * y for _, y in points], marker=MARKERS[i], ms=4,
                label=draw.name_of(name), **style)  # fmt: skip
        ax.plot(kl(group, extra), 100 * np.array(group.each()), ".", ms=3, color=style["color"], alpha=0.6)
    ax.set(xlabel="KL(π ‖ π_ref), nats a completion", ylabel="pass@1 (%)")


def judge_agro_kl(runs: Runs, extra: Extra) -> list[Claim]:
    groups = plain(runs)
    none = Runs([])
    agro, other, on = (groups.get(name, none) for name in ("agro", "kl_pg", "agro_on_policy"))
    found = []
    for beta in sorted(agro.split(BETA)):
        pair = other.where(algo__beta=beta), agro.where(algo__beta=beta)
        if len(pair[0]) and len(pair[1]):
            distances_ = ", ".join(f"{draw.name_of(n)} {np.mean(kl(g, extra)):.2f}"
                                   for n, g in zip(("kl_pg", "agro"), pair, strict=True))  # fmt: skip
            claim = above(
                f"off-policy, β = {beta:g}: AGRO above the KL-regularised policy gradient", difference(pair[0], pair[1])
            )
            found.append(Claim(claim.text, claim.holds, f"{claim.evidence}; KL {distances_}"))
    if len(on) and len(agro):
        found.append(as_efficient(best_ratios(agro, extra), best_ratios(on, extra)))
    for name, group in (("agro", agro), ("agro_on_policy", on)):
        betas = group.split(BETA)
        if len(betas) > 1:
            strong, weak = betas[max(betas)], betas[min(betas)]
            text = f"{draw.name_of(name)}: a strong β slows learning (pass@1 at the largest below the smallest)"
            found.append(below(text, difference(weak, strong)))
    return found


def best_ratios(runs: Runs, extra: Extra) -> dict[int, float]:
    """By seed: the gain in pass@1 by KL at the β where it is largest; β whose KL is below 0.01 nats are left out."""
    found = []
    for each in runs.split(BETA).values():
        if min(kl(each, extra)) > 0.01:
            gains = (each.values() - each.values(part="base")).mean(axis=1)
            found.append(dict(zip(each.seeds, (gains / np.array(kl(each, extra))).tolist(), strict=True)))
    return max(found, key=lambda ratios: float(np.mean([*ratios.values()])), default={})


def as_efficient(off: Mapping[int, float], on: Mapping[int, float]) -> Claim:
    """Whether off-policy AGRO gains as much a nat as on-policy, by the interval over the seeds that both have."""
    text = "off-policy AGRO is as KL-efficient as on-policy (gain a nat at its best β at least 0.8 of the other's)"
    shared = sorted(off.keys() & on.keys())
    shown = "; ".join(
        f"{name} {' '.join(f'{100 * ratios[seed]:.1f}' for seed in shared)} points a nat"
        for name, ratios in (("off-policy", off), ("on-policy", on))
    )
    if not shared or float(np.mean([on[seed] for seed in shared])) <= 0:
        return Claim(text, None, shown if shared else "no runs")
    found = over_seeds([off[seed] - 0.8 * on[seed] for seed in shared])
    holds = None if found is None else True if found.low > 0 else False if found.high < 0 else None
    return Claim(text, holds, shown)


def table_agro_kl(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (plain, draw.name_of), (BETA, "β = {:g}".format))


# ---- replay


def draw_agro_replay(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        groups = table_agro_replay(members)
        draw.metric(row[0], groups, "sampled_correct")
        row[0].set(title=model, ylabel="correct among the new samples")
        row[0].legend(fontsize=7)
        draw.bars(row[1], groups)
    return figure


def table_agro_replay(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (REPLAY, "replay {:g}".format))


def judge_agro_replay(runs: Runs, extra: Extra) -> list[Claim]:
    groups = runs.split(REPLAY)
    fresh = groups.get(0.0, Runs([]))
    return [
        above(f"with replay {q:g} AGRO ends at most 3 points below the run without", difference(fresh, group), -0.03)
        for q, group in groups.items()
        if q > 0
    ]
