"""Runs by their settings, and intervals of what they scored: over seeds and problems at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.intervals import Interval, crossed_interval, t_interval, wilson_interval
from topr_exp.report.results import unpacked
from topr_exp.runs.records import Record

Matrix = NDArray[np.float64]  # [seeds, problems]


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of a number for each seed, with its interval; None for fewer than two."""
    return t_interval(values) if len(values) > 1 else None


class Runs(Sequence[Record]):
    """Records, by seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = sorted(records, key=lambda record: int(record["settings"]["seed"]))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def where(self, **settings: Any) -> Runs:
        """Those with these settings; a dot in a key is written as two underscores, None: the record has no such key."""
        wanted = {name.replace("__", "."): value for name, value in settings.items()}
        return Runs([each for each in self if all(each["settings"].get(k) == v for k, v in wanted.items())])

    def split(self, key: str) -> dict[Any, Runs]:
        """The runs by the value of a setting, in order."""
        values = {record["settings"].get(key) for record in self}
        found = sorted((value for value in values if value is not None), key=lambda v: (isinstance(v, str), v))
        return {value: self.where(**{key.replace(".", "__"): value}) for value in found}

    @property
    def seeds(self) -> list[int]:
        return [int(record["settings"]["seed"]) for record in self]

    def values(self, name: str = "pass@1", part: str = "final") -> Matrix:
        """[seeds, problems] a share of each problem's completions: pass@1, invalid, or maj (the headline maj@K)."""
        return np.stack([of_problems(record[part], name) for record in self])

    def interval(self, name: str = "pass@1", part: str = "final") -> Interval:
        """Over seeds and problems; of a single run the one over problems that it noted, where it did."""
        noted: Interval | None = self[0][part].get("intervals", {}).get(name) if len(self) == 1 else None
        return noted if noted and not math.isnan(noted.low) else crossed_interval(self.values(name, part))

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


def of_problems(results: Record, name: str) -> NDArray[np.float64]:
    """A share of each problem's completions; of a verifier's, which reads several solutions to it, their mean.

    A verifier is asked of the first solutions to all problems, then of the second ones, and so on.
    """
    kinds = results["of_problems"]
    if name == "maj":
        return unpacked(kinds["maj"]) / 1000
    if name == "incorrect":
        counts = results["n"] - unpacked(kinds["correct"]) - unpacked(kinds["invalid"])
    else:
        counts = unpacked(kinds[{"pass@1": "correct"}.get(name, name)])
    shares = counts / results["n"]
    return np.asarray(shares.reshape(results.get("solutions", 1), -1).mean(axis=0))


def contrast(combine: Callable[..., Matrix], *groups: Matrix | Runs, name: str = "pass@1") -> Interval | None:
    """An interval of a combination of several groups' values, problem by problem, over the seeds that all have.

    combine: what is made of their [S, P] matrices, in order. None where they share no seed.
    """
    runs = [group for group in groups if isinstance(group, Runs)]
    assert len(runs) == len(groups)
    shared = sorted(set.intersection(*({*group.seeds} for group in runs))) if runs else []
    if not shared:
        return None
    paired = (Runs([group[group.seeds.index(seed)] for seed in shared]) for group in runs)
    return crossed_interval(combine(*(group.values(name) for group in paired)))


def difference(first: Runs, second: Runs, name: str = "pass@1") -> Interval | None:
    """second − first, paired by seed (which decides the training completions) and by problem."""
    return contrast(lambda a, b: b - a, first, second, name=name)


def collapsed(runs: Runs) -> Interval | None:
    """The share of seeds whose final pass@1 is below half of the base's; None without runs."""
    pairs = zip(runs.each(), runs.each(part="base"), strict=True) if len(runs) else ()
    return wilson_interval(sum(final < base / 2 for final, base in pairs), len(runs)) if len(runs) else None


def gain(runs: Runs, name: str = "pass@1") -> Interval | None:
    """final − base."""
    return crossed_interval(runs.values(name) - runs.values(name, "base")) if len(runs) else None
