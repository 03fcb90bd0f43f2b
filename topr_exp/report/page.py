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
from pathlib import Path
from typing import Any

import numpy as np

from topr_exp.report.compare import Comparison, axes, text
from topr_exp.report.runs import Run
from topr_exp.report.series import estimate, eval_values, majority_name
from topr_exp.report.thinning import Values, number
from topr_exp.tracking.records import Record
from topr_exp.types import VERDICTS

HERE = Path(__file__).parent
COMPLETIONS_BYTES = 8_000_000  # of all runs' completions together
LONGEST_TEXT = 4000
SHOWN_OF_COMPLETION = (
    "set", "iteration", "verdict", "level", "subject", "question", "gold", "completion", "answer", "truncated",
    "trained_on", "logp",
)  # fmt: skip
OF_SUMMARY = ("baseline", "effective_positive", "positive_share", "n_train")
MEASURES = ("pass@1", *VERDICTS)


def page(title: str, runs: Sequence[Run], comparison: Comparison, notes: Sequence[str]) -> str:
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


def payload(title: str, runs: Sequence[Run], comparison: Comparison, notes: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows."""
    majority = majority_name(runs)
    names = [*MEASURES, *([majority] if majority else [])]
    shown, left_out = completions(runs)
    return {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "majority": majority,
        "notes": list(notes),
        "keys": comparison.keys,
        "differing": comparison.differing,
        "axes": axes(list(runs), comparison),
        "runs": [of_run(run, i, comparison, names) for i, run in enumerate(runs)],
        "groups": [
            {"label": label, "runs": members} | ends([runs[i] for i in members], names)
            for label, members in comparison.groups.items()
        ],
        "completions": shown,
        "left_out": left_out,
    }


def of_run(run: Run, i: int, comparison: Comparison, names: Sequence[str]) -> dict[str, Any]:
    """One run: what its table row, its curves and its points need."""
    curves, seconds = run.curves, run.summary.get("seconds")
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
        "steps": compact(curves.steps),
        "samples": compact(curves.samples),
        "metrics": {name: compact(values) for name, values in curves.metrics.items()},
        "curve": curve(run),
        "kinds": {part: kinds(run.summary.get(part)) for part in ("base", "final")},
        "subjects": {part: parts(run.summary.get(part), "subjects") for part in ("base", "final")},
        **ends([run], names),
    }


def ends(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, list[float | None]]]:
    """The figures of base and final: name -> value, low, high."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for part in ("base", "final"):
        estimates = {name: estimate(runs, name, part) for name in names}
        found[part] = {name: [one.value, one.low, one.high] for name, one in estimates.items() if one is not None}
    return found


def curve(run: Run) -> dict[str, Any]:
    """The evaluations of a run on the same problems."""
    names = {name for record in run.curve for name, value in record.items() if number(value) is not None}
    names -= {"iteration", "step", "optimizer_step", "samples", "samples_seen", "problems"}
    whole = np.array([record["optimizer_step"] for record in run.curve], dtype=np.float64)
    values = {}
    for name in sorted(names):
        steps, found = eval_values(run, name)
        values[name] = compact(np.where(np.isin(whole, steps), np.interp(whole, steps, found), np.nan))
    samples = np.array([record["samples_seen"] for record in run.curve], dtype=np.float64)
    return {"steps": compact(whole), "samples": compact(samples), "values": values}


def kinds(figures: Any) -> dict[str, list[list[float | None]]] | None:
    """pass@K, maj@K, the histogram of correct completions and pass@1 by difficulty: x, y, low, high."""
    if not isinstance(figures, dict):
        return None
    found: dict[str, list[list[float | None]]] = {}
    for name in ("pass@k", "maj@k"):
        points = figures.get(name)
        if isinstance(points, dict) and all(k.isdigit() and isinstance(point, dict) for k, point in points.items()):
            ks = sorted(points, key=int)
            ends = [[number(points[k].get(end)) for k in ks] for end in ("value", "low", "high")]
            found[name] = [list(map(float, ks)), *ends]
    counts = figures.get("correct_histogram")
    if isinstance(counts, list) and counts and sum(counts):
        found["histogram"] = [list(map(float, range(len(counts)))), [count / sum(counts) for count in counts]]
    by_level = {level: part for level, part in parts(figures, "levels").items() if level.isdigit()}
    if by_level:
        levels = sorted(by_level, key=int)
        found["levels"] = [list(map(float, levels)), [by_level[level] for level in levels]]
    return found or None


def parts(figures: Any, name: str) -> dict[str, float]:
    """pass@1 of each level or subject."""
    given = figures.get(name) if isinstance(figures, dict) else None
    found = given.items() if isinstance(given, dict) else ()
    values = {key: number(part.get("pass@1")) for key, part in found if isinstance(part, dict)}
    return {key: value for key, value in values.items() if value is not None}


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
