"""`python -m reproduce.rates [FOLDER]`: write the learning rates that validation problems chose into conf.

One grid for every algorithm, recorded in FOLDER (default: docs/results) by `python -m reproduce learning_rates
length_rates --full`; those that were not tried keep what they have. Two figures compare conf with the choice.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from reproduce import records
from reproduce.figure import Claim, Extra
from reproduce.groups import RATE, algorithms, by_model, grouping, losses, name_of
from reproduce.selection import Runs, mean_of
from topr_exp.config.load import CONF
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.files import write_text
from topr_exp.types import TOPRError

LEARNING_RATES = CONF / "learning_rates.yaml"
HEAD = """# Learning rates that validation problems chose, by place (a model, of stories with their turns) and loss.
# `python -m reproduce.rates` writes them; experiment/paper.yaml interpolates optim.lr from them.
"""
Tried = dict[str, dict[str, Runs]]  # the runs of a grid by place and loss


def tried_on_models(runs: Runs) -> Tried:
    return {model: algorithms(members) for model, members in by_model(runs).items()}


def tried_at_lengths(runs: Runs) -> Tried:
    return {place: losses(group) for place, group in grouping("places")(runs).items()}


TRIED = {"learning_rates": tried_on_models, "length_rates": tried_at_lengths}  # by the figure that tries them


def main(given: list[str] | None = None) -> int:
    """The command; exit status 1, with one line, where nothing is recorded or the algorithms were tried unevenly."""
    parser = argparse.ArgumentParser(prog="python -m reproduce.rates", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"), metavar="FOLDER")
    return exit_status(partial(write_rates, parser.parse_args(given).folder))


def write_rates(folder: Path) -> int:
    tried: Tried = {}
    for name, by_place in TRIED.items():
        tried |= by_place(records.runs_of(records.read(folder / f"{name}.json")))
    if not tried:
        figures = " ".join(TRIED)
        raise TOPRError(f"{folder} records no runs; python -m reproduce {figures} --full makes them")
    rates = read_rates(LEARNING_RATES)
    for place, by_loss in choose(tried).items():
        known = rates.setdefault(key_of(place), {})
        for name, rate in by_loss.items():
            print(f"{place:20} {name:21} {known.get(key_of(name), 'none')} -> {rate:g}")
            known[key_of(name)] = rate
    write_text(LEARNING_RATES, HEAD + yaml.safe_dump(rates, sort_keys=False, default_flow_style=None, width=110))
    return 0


def read_rates(path: Path = LEARNING_RATES) -> dict[str, Any]:
    return cast(dict[str, Any], yaml.safe_load(path.read_text(encoding="utf-8")))


def key_of(name: str) -> str:
    """The key of a place or loss in conf/learning_rates.yaml: "gspo, eps_low 0.03" is gspo_eps_low_0_03."""
    return re.sub(r"[^a-z0-9]+", "_", name)


def choose(tried: Mapping[str, Mapping[str, Runs]]) -> dict[str, dict[str, float]]:
    """The learning rate with the highest mean pass@1 on validation problems, by place and loss; of two, the lower.

    TOPRError unless at each place every loss was tried with the same rates and seeds.
    """
    chosen: dict[str, dict[str, float]] = {}
    for place, groups in tried.items():
        grids = set()
        for name, group in groups.items():
            rates = group.split(RATE)
            grids.add(json.dumps(sorted((rate, seed) for rate, each in rates.items() for seed in each.seeds)))
            means = {rate: mean_of(each) for rate, each in rates.items()}
            chosen.setdefault(place, {})[name] = min(rates, key=lambda rate: (-means[rate], rate))
        if len(grids) > 1:
            uneven = ", ".join(f"{name} {len(group)}" for name, group in groups.items())
            raise TOPRError(
                f"{place}: the algorithms were not tried with the same learning rates and seeds ({uneven} runs)"
            )
    return chosen


# ---- claims


def judge_learning_rates(runs: Runs, extra: Extra) -> list[Claim]:
    text = "the other figures use the best of the grid (conf/learning_rates.yaml)"
    return [*best_are_used(tried_on_models(runs), text), *map(holding, by_model(runs).values())]


def judge_length_rates(runs: Runs, extra: Extra) -> list[Claim]:
    """One claim for each length."""
    text = "{}: the best of the grid is used (conf/learning_rates.yaml)"
    tried = tried_at_lengths(runs).items()
    return [one for at, groups in tried for one in best_are_used({at: groups}, text.format(at.split(", ")[1]))]


def best_are_used(tried: Tried, text: str) -> list[Claim]:
    """Compare conf/learning_rates.yaml with the best rates of each place; one claim where they can't be compared."""
    try:
        chosen = choose(tried)
    except TOPRError as error:
        return [Claim("every algorithm was tried with the same learning rates and seeds", False, str(error))]
    found, conf = [], read_rates()
    for place, rates in chosen.items():
        used = {name: conf.get(key_of(place), {}).get(key_of(name)) for name in rates}
        other = [f"{name} {rates[name]:g} (used {used[name] or 'none'})" for name in rates if used[name] != rates[name]]
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
    whole, others = {name for name, (count, total) in bears.items() if count == total}, {"naive", "ppo", "dpo", "is"}
    known = others | {"topr"} <= bears.keys()
    return Claim(text, "topr" in whole and not others & whole if known else None, evidence)


if __name__ == "__main__":
    sys.exit(main())
