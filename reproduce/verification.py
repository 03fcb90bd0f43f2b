"""A verifier's verifications before and after training, problem by problem (TOPR, Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.claims import Extra
from reproduce.figure import FinishedRuns, key_of
from reproduce.files import read_json
from reproduce.records import rounded
from reproduce.selection import Runs
from topr_exp.report import Tally

# Counts of each problem and the counts that they are shares of; selections are scores already.
TOTALS = {"right": "verified", "unparsable": "verified", "weighted_sc": None, "maj": None}
VerifierScores = Mapping[str, Any]  # of a run: columns by problem "before" and "after" training, beside their sizes


def compute_tallies(finished: FinishedRuns) -> Extra:
    """`read_scores` of each run, by its settings."""
    return {key_of(record): read_scores(folder) for record, folder in finished}


def read_scores(folder: Path) -> VerifierScores:
    """Read a run's counts and scores of each test problem before and after training, from its verification.json."""
    stored = read_json(folder / "verification.json")
    columns_by_iteration = stored["iterations"]
    last = max(map(int, columns_by_iteration))
    return {
        "before": rounded_columns(columns_by_iteration["0"]),
        "after": rounded_columns(columns_by_iteration[str(last)]),
        "problems": stored["problems"],
        "solutions": stored["solutions"],
        "verifications": stored["verifications"],
    }


def rounded_columns(columns: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    rounded_by_name = {}
    for name, column in columns.items():
        rounded_by_name[name] = [rounded(float(value)) for value in column]
    return rounded_by_name


def scores_of_runs(runs: Runs, extra: Extra) -> list[VerifierScores]:
    return [extra[key_of(record)] for record in runs]


def tallies_by_row(runs: Runs, extra: Extra) -> dict[str, Tally]:
    """The rows of the table: none and oracle (which read the base's tally), the base, and each algorithm, TOPR last."""
    base = mean_tally(scores_of_runs(runs, extra), "before")
    tallies = {"none": base, "base": base}
    groups = runs.split("algo.name")
    for name in sorted(groups, key=lambda name: (name == "topr", name)):
        run_scores = scores_of_runs(groups[name], extra)
        tallies[name] = mean_tally(run_scores, "after")
    tallies["oracle"] = base
    return tallies


def mean_tally(runs: Sequence[VerifierScores], stage: str) -> Tally:
    """The mean tally of some runs, problem by problem."""
    first = runs[0]
    assert all(run["problems"] == first["problems"] for run in runs)
    means = {}
    for name in first[stage]:
        means[name] = columns_of_runs(runs, stage, name).mean(axis=0)
    return Tally(means, first["solutions"], first["verifications"])


def selection_of(row: str) -> str:
    """The way in which a row of the table selects answers."""
    return {"none": "maj", "oracle": "oracle"}.get(row, "weighted_sc")


def problem_values(run_scores: Sequence[VerifierScores], stage: str, name: str) -> NDArray[np.float64]:
    """[seeds, problems] of the original problems: a share of their verifications, or the score of a selection."""
    values = columns_of_runs(run_scores, stage, name)
    total = TOTALS[name]
    if total is None:
        return values
    return values / columns_of_runs(run_scores, stage, total)


def columns_of_runs(run_scores: Sequence[VerifierScores], stage: str, name: str) -> NDArray[np.float64]:
    return np.array([run[stage][name] for run in run_scores], dtype=np.float64)


def balanced_accuracy(tally: Mapping[str, Sequence[float]]) -> float:
    """The mean of the accuracies on correct and on incorrect solutions."""
    on_correct = sum(tally["right_on_correct"]) / sum(tally["verified_correct"])
    on_incorrect = sum(tally["right_on_incorrect"]) / sum(tally["verified_incorrect"])
    return float(np.mean([on_correct, on_incorrect]))
