"""Runs by their settings and as a choice names them, and seeds that collapsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from topr_exp.evaluation.intervals import Interval, clopper_pearson, t_interval
from topr_exp.report.repetitions import Repetitions


class Runs(Repetitions):
    """Records, by seed, that are chosen and split by their settings."""

    def where(self, settings: Mapping[str, Any]) -> Runs:
        """Those with these settings; None: the record has no such key."""
        return Runs([each for each in self if all(each["settings"].get(k) == v for k, v in settings.items())])

    def split(self, key: str) -> dict[Any, Runs]:
        """The runs by the value of a setting, in order."""
        values = {record["settings"].get(key) for record in self}
        found = sorted((value for value in values if value is not None), key=lambda v: (isinstance(v, str), v))
        return {value: self.where({key: value}) for value in found}

    def each(self, name: str = "pass@1", stage: str = "final") -> list[float]:
        """The mean of each seed."""
        return [float(row.mean()) for row in self.values(name, stage)]


def pick(runs: Runs, choice: str) -> Runs:
    """The runs that a choice names: an algorithm and KEY=VALUE, in any number; of values with commas all must be there.

    "best KEY ...", "largest KEY ...", "smallest KEY ...": among these the ones with one value of a setting: that with
    the highest mean pass@1, or an end.
    """
    first, *words = choice.split()
    if first in ("best", "largest", "smallest"):
        groups = pick(runs, " ".join(words[1:]) or "all").split(words[0])
        key = (lambda value: mean_of(groups[value])) if first == "best" else None
        return groups[(min if first == "smallest" else max)(groups, key=key)] if groups else Runs([])
    for word in () if choice == "all" else (first, *words):
        name, _, values = word.rpartition("=")
        parts = [runs.where({name or "algo.name": yaml.safe_load(one)}) for one in values.split(",")]
        runs = Runs([record for part in parts for record in part] if all(map(len, parts)) else [])
    return runs


def mean_of(runs: Runs) -> float:
    return float(runs.values().mean())


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of a number for each seed, with its interval; None for fewer than two."""
    return t_interval(values) if len(values) > 1 else None


def fell(runs: Runs) -> list[bool]:
    """Of each seed: did it collapse, its final pass@1 below half of the base's?"""
    if not len(runs):
        return []
    return [final < base / 2 for final, base in zip(runs.each(), runs.each(stage="base"), strict=True)]


def collapsed(runs: Runs) -> Interval | None:
    """The share of seeds that collapsed; None without runs."""
    return clopper_pearson(sum(fell(runs)), len(runs)) if len(runs) else None
