"""Curves of runs, thinned for drawing, and their mean over repetitions with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topr_exp.report.runs import Run
from topr_exp.report.thinning import Values, number

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond them see `t_95`.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def eval_values(run: Run, name: str) -> tuple[Values, Values]:
    """The steps and values of a figure (pass@1, invalid) in the evaluations of a run."""
    points = [
        (record["optimizer_step"], value) for record in run.curve if (value := number(record.get(name))) is not None
    ]
    array = np.array(points, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


@dataclass(frozen=True)
class Band:
    """The mean of some curves with a 95 % interval; of two curves their range, of a single one itself."""

    x: Values
    mean: Values
    low: Values
    high: Values
    curves: int


def band(curves: Sequence[tuple[Values, Values]], *, share: bool = False) -> Band | None:
    """The mean over repetitions at the places of the first one, up to where the shortest ends.

    share: the values lie between 0 and 1, and so does their interval.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    known = [(x, y) for x, y in known if len(x)]
    if not known:
        return None
    end = min(x[-1] for x, _ in known)
    places = known[0][0][known[0][0] <= end]
    values = np.stack([np.interp(places, x, y) for x, y in known])
    mean, half = values.mean(axis=0), half_width(values)
    if len(known) == 2:  # a t interval over two is wider than any plot; their range is what there is to see
        return Band(places, mean, values.min(axis=0), values.max(axis=0), 2)
    low, high = mean - half, mean + half
    return Band(places, mean, np.maximum(low, 0) if share else low, np.minimum(high, 1) if share else high, len(known))


def half_width(values: Values) -> Values:
    """Half of the t interval over the first axis; 0 for a single value."""
    count = len(values)
    if count < 2:
        return np.zeros(values.shape[1:])
    return np.asarray(t_95(count - 1) * values.std(axis=0, ddof=1) / math.sqrt(count))


def t_95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; between what T_95 has linear in the inverse (a little large)."""
    known = np.arange(len(T_95), 0, -1)
    return float(np.interp(1 / freedom, [0.0, *(1 / known)], [1.96, *T_95[::-1]]))


@dataclass(frozen=True)
class Estimate:
    """A final figure of a group of runs."""

    value: float
    low: float | None
    high: float | None
    over: str  # what the interval is over: seeds, problems, or nothing


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Estimate | None:
    """The mean of a share over repetitions with a t interval; a single run has its interval over test problems."""
    values = [value for run in runs if (value := run.figure(part, name)) is not None]
    if not values:
        return None
    if len(set(values)) > 1:
        mean, half = float(np.mean(values)), float(half_width(np.array(values)))
        return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half), "seeds")
    # One run, or the same completions in all of them, as the base's are.
    run = next(run for run in runs if run.figure(part, name) is not None)
    curve, _, k = name.partition("@")
    ends = [run.figure(part, f"{curve}@k", k, end) for end in ("low", "high")]
    if None not in ends:
        return Estimate(values[0], ends[0], ends[1], "problems")
    error = run.figure(part, f"{name}_se")
    if error is not None:
        return Estimate(values[0], values[0] - 1.96 * error, values[0] + 1.96 * error, "problems")
    return Estimate(values[0], None, None, "nothing")


def drawn(runs: Sequence[Run], name: str) -> Estimate | None:
    """A final figure as plots show it: of two runs with their range, as curves are."""
    found = estimate(runs, name)
    values = [value for run in runs if (value := run.figure("final", name)) is not None]
    if found is not None and len(values) == 2 and found.over == "seeds":
        return Estimate(found.value, min(values), max(values), "two runs")
    return found


def majority_name(runs: Sequence[Run]) -> str | None:
    """The headline maj@K of these runs: the one with the largest K up to 8."""
    names = {
        name
        for run in runs
        for name in run.summary.get("final", run.summary.get("base", {}))
        if name.startswith("maj@")
    }
    ks = sorted(int(name[4:]) for name in names if name[4:].isdigit())
    return f"maj@{ks[-1]}" if ks else None
