"""Intervals of what groups of runs scored: over seeds and problems at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.intervals import Interval, crossed_interval
from topr_exp.report.results import unpacked
from topr_exp.runs.records import Record

Matrix = NDArray[np.float64]  # [seeds, problems]


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


def contrast(combine: Callable[..., Matrix], *groups: Runs, name: str = "pass@1") -> Interval | None:
    """An interval of a combination of several groups' values, problem by problem, over the seeds that all have.

    combine: what is made of their [S, P] matrices, in order. None where they share no seed.
    """
    shared = sorted(set.intersection(*({*group.seeds} for group in groups))) if groups else []
    if not shared:
        return None
    paired = (Runs([group[group.seeds.index(seed)] for seed in shared]) for group in groups)
    return crossed_interval(combine(*(group.values(name) for group in paired)))


def difference(first: Runs, second: Runs, name: str = "pass@1") -> Interval | None:
    """second − first, paired by seed (which decides the training completions) and by problem."""
    return contrast(lambda a, b: b - a, first, second, name=name)


def gain(runs: Runs, name: str = "pass@1") -> Interval | None:
    """final − base."""
    return crossed_interval(runs.values(name) - runs.values(name, "base")) if len(runs) else None
