"""The choice of learning rates: one grid for every algorithm, by validation problems."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from reproduce.claims import Claim
from reproduce.draw import Panel, against, grid, panel
from reproduce.figure import ORDER, Extra, algorithms, by_model, name_of
from topr_exp.config.load import CONF
from topr_exp.report.selection import Runs

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


def rates_panel(i: int, groups: Callable[[Runs], Mapping[str, Runs]], columns: int) -> Panel:
    """The i-th panel of a row: groups of runs against the learning rate; columns: of the legend."""
    label = "" if i else "pass@1 on validation problems (%)"
    return panel(against, groups, RATE, base=True, xlabel="learning rate", ylabel=label, legend=columns)


def of_papers(runs: Runs) -> dict[str, Runs]:
    return {name: group for name, group in algorithms(runs).items() if name in ORDER}


def of_others(runs: Runs) -> dict[str, Runs]:
    return {name: group for name, group in algorithms(runs).items() if name not in ORDER}


draw_learning_rates = grid(rates_panel(0, of_papers, 4), rates_panel(1, of_others, 4), width=4.6)


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
    evidence = ", ".join(f"{name_of(name)} {count} of {total}" for name, (count, total) in bears.items())
    whole = {name for name, (count, total) in bears.items() if count == total}
    others = {"naive", "ppo", "dpo", "is"}
    if not others | {"topr"} <= set(bears):
        return Claim(text, None, evidence)
    return Claim(text, "topr" in whole and not others & whole, evidence)
