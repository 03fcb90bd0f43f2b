"""The choice of learning rates: one grid for every algorithm, by validation problems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import yaml

from reproduce import draw
from reproduce.claims import Claim
from reproduce.figure import Extra
from reproduce.training import algorithms, by_model
from topr_exp.config.resolvers import CONF
from topr_exp.report.selection import Runs, group_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = "optim.lr"
LEARNING_RATES = CONF / "learning_rates.yaml"
HEAD = """# Learning rates that validation problems chose, by place (a model, of stories with their turns) and loss.
# `python -m reproduce.rates` writes them; experiment/paper.yaml interpolates optim.lr from them.
"""


def read_rates(path: Path = LEARNING_RATES) -> dict[str, Any]:
    """Read conf/learning_rates.yaml."""
    return cast(dict[str, Any], yaml.safe_load(path.read_text(encoding="utf-8")))


def key_of(name: str) -> str:
    """Return the key of a place or loss in conf/learning_rates.yaml: "gspo, eps_low 0.03" is gspo_eps_low_0_03."""
    return re.sub(r"[^a-z0-9]+", "_", name)


def choose(tried: Mapping[str, Mapping[str, Runs]]) -> dict[str, dict[str, float]]:
    """The learning rate with the highest mean pass@1 on validation problems, by place and loss; of two, the lower.

    tried: runs by where (a model, say) and loss. Raises ValueError unless at each place every loss was tried with the
    same rates and seeds.
    """
    chosen: dict[str, dict[str, float]] = {}
    for place, groups in tried.items():
        grids = set()
        for name, group in groups.items():
            rates = group.split(RATE)
            grids.add(json.dumps(sorted((rate, seed) for rate, each in rates.items() for seed in each.seeds)))
            means = {rate: float(each.values().mean()) for rate, each in rates.items()}
            chosen.setdefault(place, {})[name] = min(rates, key=lambda rate: (-means[rate], rate))
        if len(grids) > 1:
            uneven = ", ".join(f"{name} {len(group)}" for name, group in groups.items())
            raise ValueError(
                f"{place}: the algorithms were not tried with the same learning rates and seeds ({uneven} runs)"
            )
    return chosen


def tried_on_models(runs: Runs) -> dict[str, dict[str, Runs]]:
    """The runs of the grid by model and algorithm."""
    return {model: algorithms(members) for model, members in by_model(runs).items()}


def draw_learning_rates(runs: Runs, extra: Extra) -> Figure:
    def papers_and_others(members: Runs) -> list[dict[str, Runs]]:
        groups = algorithms(members)
        papers = {name: group for name, group in groups.items() if name in draw.ORDER}
        return [papers, {name: group for name, group in groups.items() if name not in papers}]

    return draw_rates({model: (members, papers_and_others(members)) for model, members in by_model(runs).items()})


def draw_rates(places: Mapping[str, tuple[Runs, list[dict[str, Runs]]]], columns: int = 4) -> Figure:
    """A row for each place where the grid was tried: its runs, and the groups of them that share a panel.

    columns: of the legends.
    """
    wide = max((len(shares) for _, shares in places.values()), default=1)
    figure, grid = draw.panels(wide, max(len(places), 1), width=4.6 if wide < 3 else 3.5)
    for row, (place, (members, shares)) in zip(grid, places.items(), strict=False):
        for ax, groups in zip(row, shares, strict=True):
            draw.against(ax, groups, RATE)
            draw.base_line(ax, members)
            ax.set(xlabel="learning rate", ylabel="", title=place)
            draw.legend_below(ax, columns)
        row[0].set_ylabel("pass@1 on validation problems (%)")
    return figure


def judge_learning_rates(runs: Runs, extra: Extra) -> list[Claim]:
    text = "the other figures use the best of the grid (conf/learning_rates.yaml)"
    return [*best_are_used(tried_on_models(runs), text), *map(holding, by_model(runs).values())]


def best_are_used(tried: Mapping[str, Mapping[str, Runs]], text: str) -> list[Claim]:
    """For each place whether conf/learning_rates.yaml has the best rates; one claim where they can't be compared."""
    try:
        chosen = choose(tried)
    except ValueError as error:
        return [Claim("every algorithm was tried with the same learning rates and seeds", False, str(error))]
    found = []
    conf = read_rates()
    for place, rates in chosen.items():
        known = conf.get(key_of(place), {})  # of one that was never chosen: nothing
        used = {name: known[key_of(name)] for name in rates if key_of(name) in known}
        other = [
            f"{name} {rate:g} (used {used.get(name, 'none')})"
            for name, rate in rates.items()
            if not np.isclose(rate, used.get(name, np.nan))
        ]
        grid = sorted({float(rate) for group in tried[place].values() for rate in group.split(RATE)})
        edge = [f"{name} {rate:g}" for name, rate in rates.items() if rate in (grid[0], grid[-1])]
        evidence = "; ".join(other) or "all algorithms"
        if edge:
            evidence += f"; best at the grid's edge, so that a better one may lie beyond: {', '.join(edge)}"
        found.append(Claim(text, not other, evidence))
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
