"""Runs by their settings, and intervals of what they scored: over seeds and problems at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.paper.records import Record, unpacked

RESAMPLES = 4000
Matrix = NDArray[np.float64]  # [seeds, problems]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int

    @property
    def above(self) -> bool:
        return self.low > 0

    @property
    def below(self) -> bool:
        return self.high < 0

    def percent(self, *, sign: bool = False) -> str:
        """As it is printed: 12.3 [10.1, 14.2]."""
        mark = "+" if sign else ""
        return f"{100 * self.value:{mark}.1f} [{100 * self.low:{mark}.1f}, {100 * self.high:{mark}.1f}]"


def interval(values: Matrix) -> Interval:
    """The mean over seeds and problems, both resampled, each on its own (the pigeonhole bootstrap; Owen 2007).

    values: [S, P]. With a single seed only problems are resampled. With few seeds the part of the seeds is too small
    by about a factor (S − 1) / S; figures show every seed.
    """
    seeds, problems = values.shape
    rng = np.random.default_rng(0)
    by_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES).astype(np.float64)
    by_problem = rng.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES).astype(np.float64)
    means = ((by_seed @ values) * by_problem).sum(axis=1) / (seeds * problems)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high), seeds)


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
        return interval(self.values(name, part))

    def each(self, name: str = "pass@1", part: str = "final") -> list[float]:
        """The mean of each seed."""
        return [float(row.mean()) for row in self.values(name, part)]


Level = tuple[str | Callable[["Runs"], Mapping[Any, "Runs"]], Callable[[Any], str]]


def crossed(runs: Runs, *levels: Level, between: str = ", ") -> dict[str, Runs]:
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
    """A share of each problem's completions."""
    kinds = results["of_problems"]
    if name == "maj":
        return unpacked(kinds["maj"]) / 1000
    return unpacked(kinds[{"pass@1": "correct"}.get(name, name)]) / results["n"]


def contrast(combine: Callable[..., Matrix], *groups: Matrix | Runs, name: str = "pass@1") -> Interval | None:
    """An interval of a combination of several groups' values, problem by problem, over the seeds that all have.

    combine: what is made of their [S, P] matrices, in order. None where they share no seed.
    """
    runs = [group for group in groups if isinstance(group, Runs)]
    assert len(runs) == len(groups)
    shared = sorted(set.intersection(*({*group.seeds} for group in runs))) if runs else []
    if not shared:
        return None
    return interval(combine(*(Runs([group[group.seeds.index(s)] for s in shared]).values(name) for group in runs)))


def difference(first: Runs, second: Runs, name: str = "pass@1") -> Interval | None:
    """second − first, paired by seed (which decides the training completions) and by problem."""
    return contrast(lambda a, b: b - a, first, second, name=name)


def gain(runs: Runs, name: str = "pass@1") -> Interval | None:
    """final − base."""
    return interval(runs.values(name) - runs.values(name, "base")) if len(runs) else None
