"""Groups of runs and what they are called: by a setting, by what a figure compares, or by loss. See groups.yaml."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from reproduce.selection import Runs, pick
from topr_exp.runs.records import Record

Groups = Mapping[Any, Runs]
Split = Callable[[Runs], dict[Any, Runs]]

TABLE = yaml.safe_load(Path(__file__).with_name("groups.yaml").read_text(encoding="utf-8"))
ORDER, WAYS = TABLE["papers"], TABLE["ways"]
EFFECTIVE, RATE, BETA, TURNS = "effective_positive", "optim.lr", "algo.beta", "data.turns"


def name_of(key: Any) -> str:
    return str(TABLE["names"].get(str(key), key))


def grouping(what: Any) -> Split:
    """A grouping of groups.yaml, by its name or as it stands there."""
    if isinstance(what, str):
        return OF_LOSSES[what] if what in OF_LOSSES else grouping(TABLE["groups"][what])
    if isinstance(what, list):
        return lambda runs: group_by(runs, *map(grouping, what))
    if "by" in what:
        return partial(by_setting, **what)
    if "of" in what:
        wider, is_one = grouping(what["of"]), re.compile(what["named"]).fullmatch
        return lambda runs: {name: group for name, group in wider(runs).items() if is_one(name)}
    return partial(by_choice, choices=what)


def everything(runs: Runs) -> dict[Any, Runs]:
    return {"": runs}


def by_setting(
    runs: Runs,
    by: str,
    written: str = "{}",
    words: Mapping[Any, str] | None = None,
    first: Sequence[Any] = (),
    only: Sequence[Any] = (),
) -> dict[str, Runs]:
    found, known = runs.split(by), words or {}
    keys = [key for key in only or dict.fromkeys([*first, *found]) if key in found]
    return {known.get(key, written.format(key).replace("%", " %")): found[key] for key in keys}


def by_choice(runs: Runs, choices: Mapping[str, Sequence[str]]) -> dict[str, Runs]:
    found = {name: [pick(runs, choice) for choice in each] for name, each in choices.items()}
    return {name: Runs([one for part in parts for one in part]) for name, parts in found.items() if len(parts[0])}


def group_by(runs: Runs, *splits: Split, between: str = ", ") -> dict[str, Runs]:
    """The groups of runs by several things at once, as in {"TOPR, β = 0.1": ...}, in order."""
    found = {"": runs}
    for split in splits:
        found = {
            between.join(filter(None, (label, name_of(value)))): each
            for label, group in found.items()
            for value, each in split(group).items()
        }
    return found


# ---- losses: an algorithm, and what of its settings is unusual


def loss_of(record: Record) -> str:
    """The name of a run's loss, as conf/learning_rates.yaml has it but for the signs: "gspo, eps_low 0.03"."""
    settings = record["settings"]
    ratio = [f"{settings['algo.ratio']} ratio"] if settings.get("algo.ratio") in ("token", "geometric") else []
    widths = [f"{key} {settings[f'algo.{key}']:g}" for key in TABLE["widths"] if f"algo.{key}" in settings]
    return ", ".join([settings["algo.name"], *ratio, *widths])


def title_of(record: Record) -> str:
    name, *unusual = loss_of(record).split(", ")
    return ", ".join([name_of(name), *unusual])


def way_of(record: Record) -> str:
    settings = record["settings"]
    if settings["algo.name"] != "topr":
        return title_of(record)
    by_group, undivided = settings.get("algo.advantage") == "group", not settings.get("algo.length_normalize", True)
    return str(WAYS[2 * by_group + undivided])


def by_loss(runs: Runs, name: Callable[[Record], str]) -> dict[str, Runs]:
    """Group by what `name` calls a run's loss, TOPR's ways first."""
    return {
        loss: Runs([record for record in group if name(record) == loss])
        for group in algorithms(runs).values()
        for loss in sorted({*map(name, group)}, key=lambda loss: ([*WAYS, loss].index(loss), loss))
    }


losses, titled, ways = (partial(by_loss, name=name) for name in (loss_of, title_of, way_of))
OF_LOSSES: dict[str, Split] = {"losses": losses, "titled": titled, "ways": ways, "everything": everything}
algorithms, by_model = grouping("algorithms"), grouping("models")
