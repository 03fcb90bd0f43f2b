"""Runs by their settings, seeds that collapsed, and Wilson's interval of their share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topr_exp.evaluation.intervals import Interval, t_interval
from topr_exp.report import results


class Runs(results.Runs):
    """Records, by seed, that are chosen and split by their settings."""

    def where(self, **settings: Any) -> Runs:
        """Those with these settings; a dot in a key is written as two underscores, None: the record has no such key."""
        wanted = {name.replace("__", "."): value for name, value in settings.items()}
        return Runs([each for each in self if all(each["settings"].get(k) == v for k, v in wanted.items())])

    def split(self, key: str) -> dict[Any, Runs]:
        """The runs by the value of a setting, in order."""
        values = {record["settings"].get(key) for record in self}
        found = sorted((value for value in values if value is not None), key=lambda v: (isinstance(v, str), v))
        return {value: self.where(**{key.replace(".", "__"): value}) for value in found}

    def each(self, name: str = "pass@1", part: str = "final") -> list[float]:
        """The mean of each seed."""
        return [float(row.mean()) for row in self.values(name, part)]


Level = tuple[str | Callable[["Runs"], Mapping[Any, "Runs"]], Callable[[Any], str]]


def group_by(runs: Runs, *levels: Level, between: str = ", ") -> dict[str, Runs]:
    """The groups of runs by several things at once, as in {"TOPR, β = 0.1": ...}, in order.

    levels: of each a setting, or a function that splits runs, and how one of its values is written.
    """
    found = {"": runs}
    for what, text in levels:
        split = (lambda group, key=what: group.split(key)) if isinstance(what, str) else what
        found = {
            between.join(filter(None, (label, text(value)))): each
            for label, group in found.items()
            for value, each in split(group).items()
        }
    return found


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of a number for each seed, with its interval; None for fewer than two."""
    return t_interval(values) if len(values) > 1 else None


def collapsed(runs: Runs) -> Interval | None:
    """The share of seeds whose final pass@1 is below half of the base's; None without runs."""
    pairs = zip(runs.each(), runs.each(part="base"), strict=True) if len(runs) else ()
    return wilson_interval(sum(final < base / 2 for final, base in pairs), len(runs)) if len(runs) else None


def wilson_interval(count: int, total: int) -> Interval:
    """The share p = count / total of independent cases, with Wilson's score interval (1927).

    (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n), z = 1.96: it has a width where none or all are counted.
    """
    share, z2 = count / total, 1.96**2
    middle, scale = share + z2 / (2 * total), 1 + z2 / total
    half = math.sqrt(z2 * (share * (1 - share) / total + z2 / (4 * total**2)))
    return Interval(share, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale), total)
