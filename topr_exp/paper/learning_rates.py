"""The choice of learning rates: one grid for every algorithm, by validation problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.claims import Claim
from topr_exp.paper.figure import Extra
from topr_exp.paper.training import algorithms, by_model
from topr_exp.report.selection import Runs, group_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = "optim.lr"


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
            draw.legend_below(ax, 4)
    return figure


def judge_learning_rates(runs: Runs, extra: Extra) -> list[Claim]:
    from topr_exp.config.resolvers import learning_rate

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
    return group_by(runs, (algorithms, draw.name_of), (RATE, "{:g}".format))
