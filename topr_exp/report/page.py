"""`report.html`: one file with its numbers, style and script inside; it opens from disk and asks the network nothing.

Texts of models and runs go in as JSON with every `<` escaped, and the script puts them into the document as text. The
policy in the page's head forbids everything but the page's own script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from topr_exp.evaluation.intervals import Values
from topr_exp.report.curves import number
from topr_exp.report.estimates import as_printed, estimate, majority_name, pass_at_1, reward_name
from topr_exp.report.facts import facts
from topr_exp.report.groups import Comparison, axes, bases, text
from topr_exp.report.plots import KINDS, Groups, Line, Plot, curve_names, curve_plot, kinds_plot, sweep_plot
from topr_exp.report.ranking import ranking
from topr_exp.report.runs import Run
from topr_exp.report.tables import OF_SUMMARY, measures
from topr_exp.runs.records import Record
from topr_exp.types import VERDICTS

HERE = Path(__file__).parent
COMPLETIONS_BYTES = 8_000_000  # of all runs' completions together
LONGEST_TEXT = 4000
SHOWN_OF_COMPLETION = (
    "set", "iteration", "verdict", "level", "subject", "question", "gold", "completion", "answer", "truncated",
    "trained_on", "logp",
)  # fmt: skip
MEASURES = ("pass@1", *VERDICTS)


def render_page(title: str, runs: Sequence[Run], comparison: Comparison, notes: Sequence[str]) -> str:
    """The whole page."""
    style, parts, sections = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "parts.js", "page.js"))
    script = parts + sections
    data = json.dumps(payload(title, runs, comparison, notes), separators=(",", ":"), allow_nan=False)
    template = string.Template((HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(title),
        style=style,
        style_hash=fingerprint(style),
        script=script,
        script_hash=fingerprint(script),
        data=data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
    )


def fingerprint(code: str) -> str:
    """What a content security policy knows an inline script or style by."""
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


class Arrays:
    """The arrays of the plots: equal ones, such as the steps of all runs, are stored once and known by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def add(self, values: Values) -> int | None:
        """The number of an array; None for one that holds nothing."""
        if not np.isfinite(values).any():
            return None
        return self.numbers.setdefault(json.dumps(compact(values)), len(self.numbers))

    def lists(self) -> list[Any]:
        return [json.loads(values) for values in self.numbers]


def payload(title: str, runs: Sequence[Run], comparison: Comparison, notes: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows."""
    majority, reward = majority_name(runs), reward_name(runs)
    names = measures(runs)
    shown, left_out = completions(runs)
    arrays = Arrays()
    groups = best_first(runs, comparison)
    return {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "ranking": ranking(groups, runs, comparison),
        "headlines": ["pass@1", *([reward] if reward else []), *([majority] if majority else []), "invalid"],
        "notes": list(notes),
        "facts": facts(runs, comparison),
        "fixed": {key: text(value) for key, value in comparison.fixed.items()},
        "keys": comparison.keys,
        "differing": comparison.differing,
        "runs": [of_run(run, i, comparison, names) for i, run in enumerate(runs)],
        "groups": [{"label": label, "runs": len(members)} | ends(members, names) for label, members in groups.items()],
        "curves": curves(arrays, groups, runs),
        "sweeps": sweeps(arrays, runs, comparison),
        "kinds": kinds(arrays, groups, bases(list(runs), comparison)),
        "subjects": subjects(groups, bases(list(runs), comparison)),
        "arrays": arrays.lists(),
        "completions": shown,
        "left_out": left_out,
    }


def best_first(runs: Sequence[Run], comparison: Comparison) -> Groups:
    """The groups by their final pass@1."""
    groups = {label: [runs[i] for i in members] for label, members in comparison.groups.items()}
    return dict(sorted(groups.items(), key=lambda group: -pass_at_1(group[1])))


def of_run(run: Run, i: int, comparison: Comparison, names: Sequence[str]) -> dict[str, Any]:
    """What the table of runs shows of one."""
    seconds = run.summary.get("seconds")
    spent = (
        [value for one in seconds.values() if (value := number(one)) is not None] if isinstance(seconds, dict) else []
    )
    settings = comparison.settings[i]
    return {
        "name": run.name,
        "status": run.status,
        "notes": run.notes,
        "label": comparison.labels[i],
        "settings": {key: text(settings.get(key)) for key in [*comparison.differing, "seed"] if key in settings},
        "values": {name: run.figure(name) for name in OF_SUMMARY}
        | {"seed": number(settings.get("seed")), "updates": len(run.updates), "seconds": sum(spent) if spent else None},
        **ends([run], names),
    }


def ends(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, tuple[float, str]]]:
    """The figures of base and final: name -> value, and as it is printed."""
    found: dict[str, dict[str, tuple[float, str]]] = {}
    for part in ("base", "final"):
        estimates = {name: estimate(runs, name, part) for name in names}
        found[part] = {name: (one.value, as_printed(one, name)) for name, one in estimates.items() if one is not None}
    return found


# ---- plots


def curves(arrays: Arrays, groups: Groups, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Every number that was logged while training, by title: its plot with a line for each group, and for each run."""
    found = {}
    for kind in ("test", "training"):
        for name in curve_names(runs, kind):
            plot = curve_plot(groups, kind, name)
            single = curve_plot({run.name: [run] for members in groups.values() for run in members}, kind, name)
            styles = [i for i, members in enumerate(groups.values()) for _ in members]
            lines = [replace(line, style=styles[line.style]) for line in single.lines]
            found[f"{kind}: {name}"] = of_plot(arrays, plot) | {"runs": [of_line(arrays, line) for line in lines]}
    return found


def sweeps(arrays: Arrays, runs: Sequence[Run], comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Plots of the final figures by axis and figure."""
    return {
        axis: {f"final {name}": of_plot(arrays, sweep_plot(runs, comparison, axis, places, name)) for name in MEASURES}
        for axis, places in axes(list(runs), comparison).items()
    }


def kinds(arrays: Arrays, groups: Groups, of_bases: Groups) -> dict[str, dict[str, Any]]:
    """Plots over the completions of a problem, by title."""
    return {title: of_plot(arrays, kinds_plot(groups, of_bases, kind)) for kind, (title, _, _) in KINDS.items()}


def of_plot(arrays: Arrays, plot: Plot) -> dict[str, Any]:
    titles = {"x_title": plot.x_title, "y_title": plot.y_title}
    ways = {"share": plot.share, "log_x": plot.log_x, "whiskers": plot.whiskers}
    return titles | ways | {"lines": [of_line(arrays, line) for line in plot.lines]}


def of_line(arrays: Arrays, line: Line) -> dict[str, Any]:
    values = {"x": line.band.x, "y": line.band.mean, "low": line.band.low, "high": line.band.high}
    if line.samples is not None:
        values["samples"] = line.samples
    return {"name": line.name, "style": line.style} | {name: arrays.add(each) for name, each in values.items()}


def subjects(groups: Groups, of_bases: Groups) -> dict[str, dict[str, float]]:
    """The mean pass@1 by subject of every base and every group: title -> subject -> value."""
    parts = [*((label, runs, "base") for label, runs in of_bases.items()),
             *((label, runs, "final") for label, runs in groups.items())]  # fmt: skip
    found = {}
    for label, runs, part in parts:
        names = {name for run in runs for name in (run.summary.get(part) or {}).get("subjects") or {}}
        known = {name: [one for run in runs if (one := run.figure(part, "subjects", name, "pass@1")) is not None]
                 for name in names}  # fmt: skip
        found[label] = {name: float(np.mean(values)) for name, values in known.items() if values}
    return {label: values for label, values in found.items() if values}


def compact(values: Values) -> list[float | int | None]:
    """Numbers to four significant digits (whole ones as they are), None for those that are not finite."""
    return [
        None
        if value != value or abs(value) == float("inf")
        else int(value)
        if value == int(value)
        else float(f"{value:.4g}")
        for value in values.tolist()
    ]


def completions(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], int]:
    """Completions of all runs in turn, within the page's size, and how many are left out."""
    shown: list[dict[str, Any]] = []
    size = 0
    for i, entry in in_turn(runs):
        if size < COMPLETIONS_BYTES:
            made = {"run": i} | {name: cut(entry.get(name)) for name in SHOWN_OF_COMPLETION if name in entry}
            logp = entry.get("logp", {})
            made["logp"] = {k: round(v, 4) for k, v in logp.items() if k.isdigit() and number(v) is not None}
            size += len(json.dumps(made))
            shown.append(made)
    return sorted(shown, key=lambda one: one["run"]), sum(len(run.completions) for run in runs) - len(shown)


def in_turn(runs: Sequence[Run]) -> Iterator[tuple[int, Record]]:
    """The completions of the runs, one of each run in turn; within a run its kinds (set, verdict) in turn too."""
    queues = []
    for i, run in enumerate(runs):
        by_kind: dict[tuple[Any, ...], list[Record]] = {}
        for entry in run.completions:
            by_kind.setdefault((entry["set"], entry["iteration"], entry["verdict"]), []).append(entry)
        mixed = itertools.chain.from_iterable(itertools.zip_longest(*by_kind.values()))
        queues.append([(i, entry) for entry in mixed if entry is not None])
    for row in itertools.zip_longest(*queues):
        yield from (pair for pair in row if pair is not None)


def cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]} … ({len(value) - LONGEST_TEXT} more characters)"
    return value
