"""Runs chosen by their settings, and seeds that collapsed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from topr_exp.report import Interval, Repetitions, clopper_pearson, t_interval

Record = dict[str, Any]  # of a run, as `records.extract` makes it


class Runs(Repetitions):
    """Records of runs, by seed, chosen and split by their settings."""

    def where(self, settings: Mapping[str, Any]) -> Runs:
        """The runs with these settings; None: the record has no such key."""
        matching = []
        for record in self:
            if all(record["settings"].get(key) == value for key, value in settings.items()):
                matching.append(record)
        return Runs(matching)

    def split(self, key: str) -> dict[Any, Runs]:
        """The runs by the value of a setting, numbers by size and before texts."""
        records_by_value: dict[Any, list[Record]] = {}
        for record in self:
            value = record["settings"].get(key)
            if value is not None:
                records_by_value.setdefault(value, []).append(record)
        values = sorted(records_by_value, key=lambda value: (isinstance(value, str), value))
        return {value: Runs(records_by_value[value]) for value in values}

    def seed_means(self, name: str = "pass@1", stage: str = "final") -> list[float]:
        """The mean of a share over problems, one number a seed."""
        return [float(scores.mean()) for scores in self.values(name, stage)]

    def mean(self, name: str = "pass@1", stage: str = "final") -> float:
        """The mean of a share over seeds and problems."""
        return float(self.values(name, stage).mean())


def join(groups: Sequence[Runs]) -> Runs:
    """The runs of several groups."""
    return Runs(itertools.chain.from_iterable(groups))


def pick(runs: Runs, choice: str) -> Runs:
    """The runs that a choice names: an algorithm and KEY=VALUE, in any number; "all": every run.

    VALUE with commas: the runs of each, none where one of them has none. "best KEY CHOICE", "largest KEY CHOICE",
    "smallest KEY CHOICE": of these runs the ones with one value of a setting: with the highest mean pass@1, or an end.
    """
    words = choice.split()
    if words[0] in ("best", "largest", "smallest"):
        which, key, *inner_words = words
        inner_choice = " ".join(inner_words) or "all"
        return pick_value(pick(runs, inner_choice), key, which)
    if choice == "all":
        return runs
    for word in words:
        key, _, values = word.rpartition("=")
        groups = []
        for value in values.split(","):
            group = runs.where({key or "algo.name": yaml.safe_load(value)})
            if not len(group):
                return Runs([])
            groups.append(group)
        runs = join(groups)
    return runs


def pick_value(runs: Runs, key: str, which: str) -> Runs:
    """The runs with the best, largest or smallest value of a setting."""
    groups = runs.split(key)
    if not groups:
        return Runs([])
    if which == "best":
        return max(groups.values(), key=Runs.mean)
    if which == "largest":
        return groups[max(groups)]
    return groups[min(groups)]


# ---- seeds


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of one number a seed, with its interval; None for fewer than two."""
    if len(values) < 2:
        return None
    return t_interval(values)


def collapsed_seeds(runs: Runs) -> list[bool]:
    """True for each seed that ended below half of the base's pass@1."""
    if not len(runs):
        return []
    pairs = zip(runs.seed_means(), runs.seed_means(stage="base"), strict=True)
    return [final < base / 2 for final, base in pairs]


def collapsed_share(runs: Runs) -> Interval | None:
    """The share of seeds that collapsed; None without runs."""
    if not len(runs):
        return None
    return clopper_pearson(sum(collapsed_seeds(runs)), len(runs))
