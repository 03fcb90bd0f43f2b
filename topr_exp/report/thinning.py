"""The training metrics of a run, thinned for drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.tracking.records import Record

POINTS = 160  # of a curve that is drawn; more updates are averaged in bins
NOT_CURVES = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "problems", "subset", "round")

Values = NDArray[np.float64]


def number(value: Any) -> float | None:
    """A value as a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < float("inf") else None  # also false for nan


@dataclass(frozen=True)
class Thinned:
    """The training metrics of a run at no more than POINTS places; NaN where a metric has no value."""

    steps: Values
    samples: Values
    metrics: dict[str, Values]


def thin(updates: Sequence[Record], points: int = POINTS) -> Thinned:
    """Means over bins of consecutive updates."""
    names = sorted({name for record in updates for name in record if name not in NOT_CURVES})
    if not updates:
        return Thinned(np.zeros(0), np.zeros(0), {})
    try:
        table = np.array([[record.get(name, math.nan) for name in names] for record in updates], dtype=np.float64)
    except (TypeError, ValueError):  # something is no number: look at each
        rows = [
            [math.nan if (one := number(record.get(name))) is None else one for name in names] for record in updates
        ]
        table = np.array(rows, dtype=np.float64)
    places = np.array([[record["optimizer_step"], record["samples"]] for record in updates], dtype=np.float64)
    bins = np.minimum(np.arange(len(updates)) * points // max(len(updates), points), points - 1)
    last = np.flatnonzero(np.diff(bins, append=points))
    starts = np.concatenate([[0], last[:-1] + 1])
    present = np.isfinite(table)
    counts = np.add.reduceat(present, starts, axis=0, dtype=np.int64)
    totals = np.add.reduceat(np.where(present, table, 0.0), starts, axis=0)
    with np.errstate(invalid="ignore"):
        means = totals / np.where(counts, counts, math.nan)
    filled = {name: means[:, i] for i, name in enumerate(names) if counts[:, i].any()}
    return Thinned(places[last, 0], places[last, 1], filled)
