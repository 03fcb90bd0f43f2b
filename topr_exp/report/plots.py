"""Every plot of the report as numbers, which the page and the figures only draw.

A line is a group of runs that differ in nothing but their seeds (or, of a sweep, a row of such groups).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topr_exp.evaluation.intervals import Interval, Values
from topr_exp.report.curves import Band, Curves, band, number
from topr_exp.report.estimates import estimate
from topr_exp.report.groups import Comparison, tell
from topr_exp.report.runs import Run

Groups = Mapping[str, Sequence[Run]]

BASE = -1  # the style of a base's line
SHARE = re.compile(r"^(?!length).*(pass@|maj@|correct|invalid|share|clipped)")
KINDS = {  # what is shown of the completions of a problem -> title, x axis, y axis
    "pass@k": ("pass@K: any of K correct", "K", "pass@K (%)"),
    "maj@k": ("maj@K: the most frequent answer of K correct", "K", "maj@K (%)"),
    "correct_histogram": (
        "problems by number of correct completions", "correct completions of a problem", "share of problems (%)"
    ),
    "levels": ("pass@1 by difficulty", "difficulty", "pass@1 (%)"),
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A line of a plot; style: the number of its colour and dashes."""

    name: str
    style: int
    band: Band
    samples: Values | None = None  # seen so far, at the places of the band


@dataclass(frozen=True)
class Plot:
    """Lines with the titles of their axes; share: between 0 and 1, and shown in percent."""

    lines: list[Line]
    x_title: str
    y_title: str
    share: bool = True
    log_x: bool = False
    whiskers: bool = False  # intervals at points, not along lines


def is_share(name: str) -> bool:
    """Whether a number lies between 0 and 1, by its name."""
    return bool(SHARE.search(name)) and "reward" not in name


# ---- curves


def curve_names(runs: Sequence[Run], kind: str) -> list[str]:
    return sorted({name for run in runs for name in curves_of(run, kind).values})


def curves_of(run: Run, kind: str) -> Curves:
    return run.test_curves if kind == "test" else run.training_curves


def curve_plot(groups: Groups, kind: str, name: str) -> Plot:
    """A number against the updates, a line for each group; of tests those on as many problems as its first run's."""
    lines = []
    for i, (label, members) in enumerate(groups.items()):
        having = [run for run in members if name in curves_of(run, kind).values]
        asked = [run.curve[0].get("problems") if kind == "test" else None for run in having]
        known = [curves_of(run, kind) for run, problems in zip(having, asked, strict=True) if problems == asked[0]]
        found = band([(one.steps, one.values[name]) for one in known], share=is_share(name))
        if found is not None and found.x.size:  # places that all have
            title = f"{label} ({found.curves} runs)" if found.curves > 1 else label
            first = next(one for one in known if np.isfinite(one.values[name]).any())
            lines.append(Line(title, i, found, first.samples[np.isin(first.steps, found.x)]))
    title = f"{name} (%)" if is_share(name) else name
    return Plot(lines, "optimizer steps", title, share=is_share(name))


# ---- several completions of a problem


def kinds_plot(groups: Groups, of_bases: Groups, kind: str) -> Plot:
    """What KINDS holds under `kind`, of the bases and of every group after training."""
    parts = [*((label, BASE, runs, "base") for label, runs in of_bases.items()),
             *((label, i, runs, "final") for i, (label, runs) in enumerate(groups.items()))]  # fmt: skip
    lines = []
    for label, style, members, part in parts:
        known = [one for run in members if (one := of_problems(run.summary.get(part), kind)) is not None]
        if known:
            same = all(np.array_equal(one.mean, known[0].mean) for one in known)  # as a base is for all seeds
            found = known[0] if same else band([(one.x, one.mean) for one in known], share=True)
            assert found is not None
            lines += [Line(label, style, found)] if found.x.size else []
    _, x_title, y_title = KINDS[kind]
    return Plot(lines, x_title, y_title, log_x=x_title == "K")


def of_problems(figures: Any, kind: str) -> Band | None:
    """pass@K, maj@K, the histogram of correct completions or pass@1 by difficulty of an evaluation."""
    found = figures.get(kind) if isinstance(figures, dict) else None
    points: list[tuple[float | None, ...]] = []
    if isinstance(found, list) and sum(found):
        points = [(x, count / sum(found), None, None) for x, count in enumerate(found)]
    elif isinstance(found, dict):
        names = ("pass@1" if kind == "levels" else "value", "low", "high")
        known = {int(k): point for k, point in found.items() if k.isdigit() and isinstance(point, dict)}
        points = [(x, *(number(known[x].get(name)) for name in names)) for x in sorted(known)]
    points = [point for point in points if point[1] is not None]
    return band_of(points) if points else None


def band_of(points: Sequence[tuple[float | None, ...]]) -> Band:
    """Points (place, value, low, high) as one curve."""
    x, mean, low, high = np.array(points, dtype=np.float64).T
    return Band(x, mean, low, high, 1)


# ---- sweeps


def sweep_plot(
    runs: Sequence[Run], comparison: Comparison, axis: str, places: Sequence[float | None], name: str
) -> Plot:
    """A final share of every group against a number; groups that differ in it alone are one line.

    places: of the runs on the axis. What follows from the drawn training set differs a little between seeds: the mean.
    """
    own = {"effective_positive", "baseline"} if axis in ("effective_positive", "baseline") else {axis}
    rows: dict[str, list[tuple[float, Interval]]] = {}
    for members in comparison.groups.values():
        known = [place for i in members if (place := places[i]) is not None]
        found = estimate([runs[i] for i in members], name)
        if known and found is not None:
            settings = comparison.settings[members[0]]
            label = ", ".join(tell(key, settings) for key in comparison.keys if key not in own)
            rows.setdefault(label or "all runs", []).append((float(np.mean(known)), found))
    lines = []
    for i, (label, points) in enumerate(rows.items()):
        points.sort(key=lambda point: point[0])
        lines.append(Line(label, i, band_of([(x, found.value, found.low, found.high) for x, found in points])))
    lines.sort(key=lambda line: -len(line.band.x))  # those with most points are shown at first
    title = {"effective_positive": "effective proportion of positives p~"}.get(axis, axis)
    return Plot(lines, title, f"final {name} (%)", whiskers=True)
