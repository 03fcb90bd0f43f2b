"""Tried learning rates: the grid, the best of it, and cliffs beside it, where a finer grid might hold a better one."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduce import records
from reproduce.groups import RATE
from reproduce.selection import Runs

GRID = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
HALF_STEPS = (5.5e-6, 1.7e-5, 5.5e-5, 1.7e-4, 5.5e-4, 1.7e-3)  # between two neighbours of GRID, about 1.8 times one
CLIFF = 15.0  # points of pass@1
SEEDS = (100, 101)  # that choose rates
SEARCH_KEYS = ("seed", "sampler.seed", "data.test_split", RATE)  # settings in which the runs of one cell differ
Tried = dict[float, list[float]]  # pass@1 in percent by rate: of the first seed, or of both


def neighbourhood(rate: float, reach: int = 1) -> tuple[float, ...]:
    """A rate of the grid and its neighbours, `reach` on each side."""
    index = GRID.index(rate)
    return GRID[max(index - reach, 0) : index + reach + 1]


def best_rate(tried: Tried) -> float:
    """The rate with the highest mean over both seeds; of several, the lowest."""
    means = {}
    for rate, scores in sorted(tried.items()):
        if len(scores) == len(SEEDS):
            means[rate] = float(np.mean(scores))
    return max(means, key=means.__getitem__)


def cliffs_beside(tried: Mapping[float, Sequence[float]], rate: float) -> list[float]:
    """The neighbours of a rate, of all that were tried, that end more than CLIFF points below it, seed by seed."""
    tried_rates = sorted(tried)
    index = tried_rates.index(rate)
    cliffs = []
    for neighbour in tried_rates[max(index - 1, 0) : index + 2]:
        scores = tried[neighbour]
        rate_scores = tried[rate][: len(scores)]
        if np.mean(rate_scores) - np.mean(scores) > CLIFF:
            cliffs.append(neighbour)
    return cliffs


def half_steps(tried: Mapping[float, Sequence[float]], rate: float) -> set[float]:
    """The rates half-way from a rate of the grid to its neighbours there beside which it stands far above."""
    on_grid = {candidate: tried[candidate] for candidate in GRID if candidate in tried}
    halves = set()
    for cliff in cliffs_beside(on_grid, rate):
        low, high = sorted((rate, cliff))
        for half in HALF_STEPS:
            if low < half < high:
                halves.add(half)
    return halves


def best_stands_beside_cliff(group: Runs, runs: Runs) -> bool:
    """Return True where a group's rate has no better one and a neighbour that is far worse.

    The other rates are those of `runs`, or where these have no other, those from which the rate was chosen.
    """
    settings = group[0]["settings"]
    rate = settings.get(RATE)
    cell = cell_identity(settings)
    tried = {}
    for other_rate, members in runs.split(RATE).items():
        siblings = Runs(record for record in members if cell_identity(record["settings"]) == cell)
        if len(siblings):
            tried[other_rate] = [100 * mean for mean in siblings.seed_means()]
    if len(tried) < 2:
        tried = tried_by_cell().get(cell, {})
    if rate not in tried:
        return False
    means = {candidate: float(np.mean(scores)) for candidate, scores in tried.items()}
    return means[rate] == max(means.values()) and bool(cliffs_beside(tried, rate))


def cell_identity(settings: Mapping[str, Any]) -> str:
    """The settings that runs at several rates and seeds have in common, as one text."""
    common = {}
    for key, value in settings.items():
        if key not in SEARCH_KEYS and not key.startswith("evaluation."):
            common[key] = value
    return records.identity_text(common)


@functools.cache
def tried_by_cell() -> dict[str, Tried]:
    """What the recorded rates were chosen from, by cell; a rate's scores by seed."""
    stored = records.read(records.TRIED_RATES.with_suffix(".json"))
    trials = records.records_by_identity(stored).values()
    tried: dict[str, Tried] = {}
    for trial in sorted(trials, key=lambda record: int(record["settings"]["seed"])):
        settings = trial["settings"]
        tried_of_cell = tried.setdefault(cell_identity(settings), {})
        scores = tried_of_cell.setdefault(settings[RATE], [])
        scores.append(100 * float(trial["final"]["pass@1"]))
    return tried
