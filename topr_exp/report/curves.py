"""What a run logged against its updates, as arrays, and the mean of such curves over repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topr_exp.evaluation.intervals import Values, t_half_width
from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import number

POINTS = 160  # of a curve that is drawn, at most; more updates are averaged in bins
NOT_CURVES = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "problems", "subset", "round")


@dataclass(frozen=True)
class Curves:
    """Numbers by name, at the same places of a run; NaN where one has no value."""

    steps: Values
    samples: Values
    values: dict[str, Values]


def read_curves(records: Sequence[Record], samples: str) -> Curves:
    """The numbers of some records, but for standard errors; samples: the key that counts the samples seen so far."""
    names = sorted({name for record in records for name in record if name not in NOT_CURVES})
    try:
        table = np.array([[record.get(name, math.nan) for name in names] for record in records], dtype=np.float64)
    except (TypeError, ValueError):  # something is no number: look at each
        rows = [
            [math.nan if (one := number(record.get(name))) is None else one for name in names] for record in records
        ]
        table = np.array(rows, dtype=np.float64)
    table = np.where(np.isfinite(table), table, math.nan).reshape(len(records), len(names))
    steps, seen = (
        np.array([record[key] for record in records], dtype=np.float64) for key in ("optimizer_step", samples)
    )
    known = [i for i, name in enumerate(names) if np.isfinite(table[:, i]).any() and not name.endswith("_se")]
    return Curves(steps, seen, {names[i]: table[:, i] for i in known})


def thin(curves: Curves, points: int = POINTS) -> Curves:
    """The means over bins of consecutive updates, at the end of each bin.

    A bin has a power of two of them, so that of runs of other lengths bins end at the same places.
    """
    count = len(curves.steps)
    if not count:
        return curves
    width = 1
    while width * points < count:
        width *= 2
    starts = np.arange(0, count, width)
    last = np.append(starts[1:], count) - 1

    def means(values: Values) -> Values:
        known = np.isfinite(values)
        counts = np.add.reduceat(known, starts, dtype=np.int64)
        totals = np.add.reduceat(np.where(known, values, 0.0), starts)
        return np.divide(totals, counts, out=np.full(len(starts), math.nan), where=counts > 0)

    return Curves(curves.steps[last], curves.samples[last], {name: means(each) for name, each in curves.values.items()})


@dataclass(frozen=True)
class Band:
    """The mean of some curves with its 95 % t interval; of two curves their range, of a single one nothing (NaN)."""

    x: Values
    mean: Values
    low: Values
    high: Values
    curves: int


def band(curves: Sequence[tuple[Values, Values]], *, share: bool = False, between: bool = False) -> Band | None:
    """The mean over repetitions at the places that all have been measured at.

    between: at the places of the first one that all reach, between their own places linear.
    share: the values lie between 0 and 1, and so does their interval.
    """
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    known = [(x, y) for x, y in known if len(x)]
    if not known:
        return None
    places = known[0][0]
    values = np.stack([np.interp(places, x, y, left=math.nan, right=math.nan) for x, y in known])
    reached = np.isfinite(values).all(axis=0)
    if not between:
        reached &= np.all([np.isin(places, x) for x, _ in known], axis=0)
    if not reached.any():
        return None
    places, values = places[reached], values[:, reached]
    mean, half = values.mean(axis=0), t_half_width(values)
    if len(known) == 2:  # a t interval over two is wider than any plot; their range is what there is to see
        return Band(places, mean, values.min(axis=0), values.max(axis=0), 2)
    low, high = mean - half, mean + half
    return Band(places, mean, np.maximum(low, 0) if share else low, np.minimum(high, 1) if share else high, len(known))
