"""Groups of runs and what they are called: by a setting, or by what a figure compares. See groups.yaml."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from reproduce.selection import Runs, pick

Groups = Mapping[Any, Runs]
Split = Callable[[Runs], dict[Any, Runs]]

TABLE = yaml.safe_load(Path(__file__).with_name("groups.yaml").read_text(encoding="utf-8"))
ORDER = TABLE["papers"]
EFFECTIVE, RATE, BETA, TURNS = "effective_positive", "optim.lr", "algo.beta", "data.turns"


def name_of(key: Any) -> str:
    return str(TABLE["names"].get(str(key), key))


def grouping(what: Any) -> Split:
    """A grouping of groups.yaml, by its name or as it stands there."""
    if isinstance(what, str):
        return everything if what == "everything" else grouping(TABLE["groups"][what])
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


algorithms, by_model = grouping("algorithms"), grouping("models")
