"""Runs by their settings, and intervals of what they scored: over seeds and problems at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.paper.records import Record, unpacked
from topr_exp.report.series import t_95

Matrix = NDArray[np.float64]  # [seeds, problems]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int

    def percent(self, *, sign: bool = False) -> str:
        """As it is printed: 12.3 [10.1, 14.2]."""
        mark = "+" if sign else ""
        return f"{100 * self.value:{mark}.1f} [{100 * self.low:{mark}.1f}, {100 * self.high:{mark}.1f}]"


def interval(values: Matrix) -> Interval:
    """The mean over seeds and problems with its 95 % t interval, both being samples of more.

    x_sp = m + seed_s + problem_p + rest_sp, crossed random effects: the mean's variance is
    (MS_seed + MS_problem − MS_rest) / (S P) with no component below 0, its degrees of freedom Satterthwaite's (1946).
    values: [S, P]. With a single seed it holds over problems alone; with two, which say little of how seeds
    differ, it covers less than 95 % (about 88 % where they differ most). Of shares it stays within 0 and 1, of their
    differences within -1 and 1.
    """
    seeds, problems = values.shape
    mean, by_seed, by_problem = float(values.mean()), values.mean(axis=1), values.mean(axis=0)
    rest, freedom = 0.0, 1
    if seeds > 1 and problems > 1:
        freedom = (seeds - 1) * (problems - 1)
        rest = float(((values - by_seed[:, None] - by_problem + mean) ** 2).sum()) / freedom
    of_seeds = problems * float(by_seed.var(ddof=1)) if seeds > 1 else 0.0
    of_problems = seeds * float(by_problem.var(ddof=1)) if problems > 1 else 0.0
    variance = max(of_seeds, rest) + max(of_problems, rest) - rest
    parts = [(square, n - 1) for square, n in ((of_seeds, seeds), (of_problems, problems)) if square > rest]
    if len(parts) != 1:
        parts.append((rest, freedom))
    half = 0.0
    if variance > 0:
        half = t_95(variance**2 / sum(square**2 / count for square, count in parts))
        half *= math.sqrt(variance / values.size)
    low, high = mean - half, mean + half
    if values.min() >= -1 and values.max() <= 1:  # shares or differences of shares: the interval holds no others
        low, high = max(low, 0.0 if values.min() >= 0 else -1.0), min(high, 1.0)
    return Interval(mean, low, high, seeds)


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The mean of a number for each seed, with its interval; None for fewer than two."""
    return interval(np.array(values, dtype=np.float64)[:, None]) if len(values) > 1 else None


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
    """A share of each problem's completions; of a verifier's, which reads several solutions to it, their mean."""
    kinds = results["of_problems"]
    if name == "maj":
        return unpacked(kinds["maj"]) / 1000
    shares = unpacked(kinds[{"pass@1": "correct"}.get(name, name)]) / results["n"]
    return np.asarray(shares.reshape(-1, results.get("solutions", 1)).mean(axis=1))


def of_model(runs: Runs, extra: Mapping[str, Any]) -> list[Any]:
    """What extra numbers by "MODEL SEED" say of each model and seed of these runs."""
    keys = dict.fromkeys(f"{each['settings']['model.name']} {each['settings']['seed']}" for each in runs)
    return [extra[key] for key in keys if key in extra]


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
