"""Questions beyond the papers: which ratio, whose log μ, how stale completions may be; the choice of learning rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.claims import Claim, above
from topr_exp.paper.figure import Extra
from topr_exp.paper.selection import Runs, crossed, difference
from topr_exp.paper.training import algorithms, by_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE, RATIO, UPDATES, TOP_K = "optim.lr", "algo.ratio", "schedule.updates", "sampler.top_k"


# ---- which ratio


def draw_ratio(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    columns = max(len(algorithms(members)) for members in models.values())
    figure, grid = draw.panels(columns, len(models), width=3.2)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (name, group) in zip(row, algorithms(members).items(), strict=False):
            draw.against(ax, group.split(RATIO), RATE)
            draw.base_line(ax, group)
            ax.set(xlabel="learning rate", title=f"{model}, {draw.name_of(name)}")
            ax.legend(fontsize=7)
    return figure


def best_rate(runs: Runs) -> Runs:
    """The runs with the learning rate whose mean pass@1 is highest."""
    return max(runs.split(RATE).values(), key=lambda each: float(each.values().mean()), default=Runs([]))


def judge_ratio(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        by_ratio = {ratio: best_rate(each) for ratio, each in group.split(RATIO).items()}
        for other in ("token", "geometric"):
            if {"sequence", other} <= set(by_ratio):
                text = f"{draw.name_of(name)}, each at its best rate: the sequence's ratio ends above the {other} one"
                found.append(above(text, difference(by_ratio[other], by_ratio["sequence"])))
    return found


def table_ratio(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (algorithms, draw.name_of), (RATIO, str), (RATE, "lr {:g}".format))


# ---- whose log μ


def settings_mu(runs: Runs) -> dict[str, Runs]:
    return {
        f"{mu}, {f'top-k {k}' if k else 'no top-k'}": each
        for k, group in runs.split(TOP_K).items()
        for mu, each in group.split("mu").items()
    }


def table_mu(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (algorithms, draw.name_of), (settings_mu, str))


def draw_mu(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    columns = max(len(algorithms(members)) for members in models.values())
    figure, grid = draw.panels(columns, len(models), width=3.2)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (name, group) in zip(row, algorithms(members).items(), strict=False):
            draw.bars(ax, settings_mu(group), base=False)
            ax.set_title(f"{model}, {draw.name_of(name)}")
    return figure


def judge_mu(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        for k, some in group.split(TOP_K).items():
            sources = some.split("mu")
            if {"scored", "sampler"} <= set(sources):
                where = f"top-k {k}" if k else "no top-k"
                text = f"{draw.name_of(name)}, {where}: recomputing log μ ends above taking the sampler's"
                found.append(above(text, difference(sources["sampler"], sources["scored"])))
    return found


# ---- how stale


def draw_staleness(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, name in zip(row, ("pass@1", "invalid"), strict=True):
            draw.against(ax, algorithms(members), UPDATES, name, shift=0.04)
            ax.set(xlabel="updates before sampling again", title=model)
        draw.base_line(row[0], members)
        row[0].legend(fontsize=7, ncols=2)
    return figure


def judge_staleness(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        points = group.split(UPDATES)
        if len(points) > 1:
            fresh, stale = points[min(points)], points[max(points)]
            text = f"{draw.name_of(name)}: sampling after every update ends above one epoch on old completions"
            found.append(above(text, difference(stale, fresh)))
    return found


def table_staleness(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (algorithms, draw.name_of), (UPDATES, "{} updates".format))


# ---- learning rates


def choose(runs: Runs) -> dict[str, dict[str, float]]:
    """The learning rate with the highest mean pass@1 on validation problems, by model and algorithm; of two, the lower.

    Raises ValueError unless on each model every algorithm was tried with the same rates and seeds.
    """
    chosen: dict[str, dict[str, float]] = {}
    for model, members in by_model(runs).items():
        tried: dict[str, set[tuple[Any, ...]]] = {}
        for name, group in algorithms(members).items():
            rates = group.split(RATE)
            tried[name] = {(rate, seed) for rate, each in rates.items() for seed in each.seeds}
            means = {rate: float(each.values().mean()) for rate, each in rates.items()}
            chosen.setdefault(model, {})[name] = min(rates, key=lambda rate: (-means[rate], rate))
        if len({json.dumps(sorted(each)) for each in tried.values()}) > 1:
            uneven = ", ".join(f"{name} {len(each)}" for name, each in tried.items())
            raise ValueError(
                f"{model}: the algorithms were not tried with the same learning rates and seeds ({uneven} runs)"
            )
    return chosen


def draw_learning_rates(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models), width=4.6)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        groups = algorithms(members)
        papers = {name: group for name, group in groups.items() if name in draw.ORDER}
        others = {name: group for name, group in groups.items() if name not in draw.ORDER}
        for ax, some in zip(row, (papers, others), strict=True):
            draw.against(ax, some, RATE)
            draw.base_line(ax, members)
            ax.set(xlabel="learning rate", ylabel="pass@1 on validation problems (%)", title=model)
            ax.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def judge_learning_rates(runs: Runs, extra: Extra) -> list[Claim]:
    from topr_exp.resolvers import learning_rate

    try:
        chosen = choose(runs)
    except ValueError as error:
        return [Claim("every algorithm was tried with the same learning rates and seeds", False, str(error))]
    found = []
    for model, rates in chosen.items():
        used = {name: learning_rate(model, name) for name in rates}
        other = [
            f"{name} {rates[name]:g} (used {used[name]:g})" for name in rates if not np.isclose(rates[name], used[name])
        ]
        grid = sorted(float(rate) for rate in runs.where(model__name=model).split(RATE))
        edge = [f"{name} {rate:g}" for name, rate in rates.items() if rate in (grid[0], grid[-1])]
        text = "the other figures use the best of the grid (conf/learning_rates.json)"
        evidence = "; ".join(other) or "all algorithms"
        if edge:
            evidence += f"; best at the grid's edge, so that a better one may lie beyond: {', '.join(edge)}"
        found += [Claim(text, not other, evidence), holding(runs.where(model__name=model))]
    return found


def holding(runs: Runs) -> Claim:
    """How much of the grid each algorithm bears: at how many rates its mean is above the base's."""
    text = "TOPR ends above the base at every rate of the grid, naive REINFORCE, PPO, DPO and IS do not (means)"
    bears = {}
    for name, group in algorithms(runs).items():
        gains = [float((each.values() - each.values(part="base")).mean()) for each in group.split(RATE).values()]
        bears[name] = (sum(gain > 0 for gain in gains), len(gains))
    evidence = ", ".join(f"{draw.name_of(name)} {count} of {total}" for name, (count, total) in bears.items())
    whole = {name for name, (count, total) in bears.items() if count == total}
    others = {"naive", "ppo", "dpo", "is"}
    if not others | {"topr"} <= set(bears):
        return Claim(text, None, evidence)
    return Claim(text, "topr" in whole and not others & whole, evidence)


def table_learning_rates(runs: Runs) -> Mapping[str, Runs]:
    return crossed(runs, (algorithms, draw.name_of), (RATE, "{:g}".format))
