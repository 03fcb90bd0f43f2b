"""Logged numbers against their updates, and the mean of such curves over repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from topr_exp.evaluation.intervals import Values, t_half_width
from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import number

POINTS = 160  # of a curve that is drawn, at most; more updates are averaged in bins
NOT_CURVES = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "problems", "subset", "round")


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Tabulate the numbers of records by optimizer step, without standard errors; NaN where one has no value."""
    steps = pd.Index([record["optimizer_step"] for record in records], name="step")
    frame = pd.DataFrame(list(records), index=steps).drop(columns=[*NOT_CURVES], errors="ignore")
    names = sorted(name for name in frame if not name.endswith("_se"))
    numbers = {name: frame[name] if frame[name].dtype.kind in "if" else frame[name].map(number) for name in names}
    found = pd.DataFrame(numbers, index=steps, dtype=np.float64)
    return found.where(np.isfinite(found)).dropna(axis="columns", how="all")


def thin(curves: pd.DataFrame, points: int = POINTS) -> pd.DataFrame:
    """Average bins of consecutive updates, at the end of each bin.

    A bin has a power of two of them, so that bins of runs of other lengths end at the same places.
    """
    width = 1
    while width * points < len(curves):
        width *= 2
    bins = np.arange(len(curves)) // width
    return curves.groupby(bins).mean().set_index(curves.index.to_series().groupby(bins).last())


@dataclass(frozen=True)
class Band:
    """The mean of some curves with its 95 % t interval; of two curves their range, of a single one nothing (NaN)."""

    x: Values
    mean: Values
    low: Values
    high: Values
    curves: int


def band(curves: Sequence[tuple[Values, Values]], *, share: bool = False, between: bool = False) -> Band | None:
    """Average repetitions at the places that all have been measured at.

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
