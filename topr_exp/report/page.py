"""`report.html`: one file with tables, figures and completions inside; it opens from disk and asks the network nothing.

Texts of models and runs are escaped. The policy in the page's head forbids every script but the page's, by its hash,
and every request.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from topr_exp.report.estimates import Groups, ranking
from topr_exp.report.figures import INTERVALS, Plot, series_style
from topr_exp.report.groups import MISSING, Comparison, text
from topr_exp.report.runs import Run
from topr_exp.report.tables import group_rows, run_rows
from topr_exp.runs.console import plural
from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import number

HERE = Path(__file__).parent
MOST_COMPLETIONS, LEAST_COMPLETIONS = 3000, 10  # of all runs together, and of a run
LONGEST_TEXT = 4000
SECTIONS = {
    "result": "Result", "curves": "Curves", "overview": "Overview", "runs": "Runs", "sweep": "Sweep",
    "samples": "K completions, and problems by correct ones", "settings": "Settings that differ",
    "completions": "Completions",
}  # fmt: skip
HELD = ("algo.name", "data.name", "data.source", "model.name", "compose.name", "optim.lr")  # named where all share them
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def render_page(
    title: str,
    comparison: Comparison,
    groups: Groups,
    notes: Sequence[str],
    plots: Sequence[Plot],
    drawings: Mapping[str, str],
) -> str:
    """Render the whole page; groups: best first."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    runs = comparison.runs
    parts = {
        "result": result(groups),
        "overview": overview(comparison, groups, notes),
        "runs": filtered("runs", "words, as in topr seed=1") + table("runs", run_rows(comparison)),
        "settings": settings(comparison),
        "completions": completions(runs),
    }
    for plot in plots:
        parts[plot.section] = parts.get(plot.section, "") + figure(plot, drawings[plot.name])
    known = {name: head for name, head in SECTIONS.items() if name in parts}
    sections = "".join(
        f'<section id="{name}"><h2>{head}</h2>\n{parts[name]}</section>\n' for name, head in known.items()
    )
    states = Counter(run.status for run in runs)
    differs = f"; they differ in {', '.join(comparison.keys)}" if comparison.keys else ""
    subtitle = (
        f"{plural(len(runs), 'run')} ({', '.join(f'{count} {state}' for state, count in states.items())}) in "
        f"{plural(len(groups), 'group')}{differs}. Made {time.strftime('%Y-%m-%d %H:%M')}."
    )
    links = " ".join(f'<a href="#{name}">{head.partition(" ")[0]}</a>' for name, head in known.items())
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p><nav>{links}</nav></header>\n"
        f"<main>\n{sections}</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def table(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    with pd.option_context("display.max_colwidth", None):
        frame = pd.DataFrame([{key: str(value) for key, value in row.items()} for row in rows])
        made = frame.to_html(index=False, na_rep=MISSING, border=0, table_id=f"{name}-table", justify="unset")
    return f'<div class="scroll">{made}</div>\n'


def filtered(name: str, search: str) -> str:
    box = f'<input type="search" data-in="{name}" placeholder="{search}">'
    return f"<p><label>filter {box}</label> <output></output></p>\n"


def paragraph(words: str, title: str = "") -> str:
    return f"<p>{f'<strong>{escape(title)}: </strong>' if title else ''}{escape(words)}</p>\n"


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{content}</details>\n"


def figure(plot: Plot, drawing: str) -> str:
    """A figure with boxes that show and hide its lines."""
    boxes = "".join(
        f'<label style="color: {series_style(line.style)["color"]}"><input type="checkbox" '
        f'data-line="{plot.name}.{i}." checked>{escape(line.name)}</label>'
        for i, line in enumerate(plot.lines)
    )
    return folded(plot.caption, f"<figure>{drawing}<figcaption>{boxes}</figcaption></figure>", is_open=True)


# ---- sections


def result(groups: Groups) -> str:
    sentence, rows = ranking(groups)
    return f"<p><strong>{escape(sentence)}</strong></p>\n" + (table("ranking", rows) if rows else "")


def overview(comparison: Comparison, groups: Groups, notes: Sequence[str]) -> str:
    """Notes on damage, what was held fixed, and the figures of each group."""
    told = [*(f"{run.name}: {note}" for run in comparison.runs for note in run.notes), *notes]
    items = "".join(f"<li>{escape(note)}</li>" for note in told)
    found = folded(f"{plural(len(told), 'note')} about these folders", f"<ul>{items}</ul>", is_open=len(told) < 6)
    said = "".join(paragraph(words, title) for title, words in facts(comparison).items())
    return (
        (found if told else "")
        + said
        + table("groups", group_rows(comparison, groups))
        + paragraph(f"Shares in percent. {INTERVALS}")
    )


def facts(comparison: Comparison) -> dict[str, str]:
    tests, commits = set(), set()
    for run in comparison.runs:
        if run.evaluations:
            asked = run.evaluations[-1]
            tests.add(f"{asked.get('problems')} problems, {asked.get('samples')} completions each")
        if commit := run.environment.get("git_commit"):
            commits.add(f"{commit!s:.10}{' with uncommitted changes' if run.environment.get('git_dirty') else ''}")
    found = {
        "held fixed": ", ".join(f"{key} {text(comparison.fixed[key])}" for key in HELD if key in comparison.fixed),
        "also differs": comparison.confounded,
        "counted once": "; ".join(f"{one} and {other}" for one, other in comparison.repeats.items()),
        "tested on": "; ".join(sorted(tests)),
        "commit": ", ".join(sorted(commits)),
    }
    return {title: words for title, words in found.items() if words}


def settings(comparison: Comparison) -> str:
    counts = {key: Counter(comparison.texts(key)) for key in comparison.differing}
    rows = [
        {"setting": key, "values (runs)": ", ".join(f"{value} ({n})" for value, n in sorted(each.items()))}
        for key, each in counts.items()
    ]
    fixed = [{"setting": key, "value": text(value)} for key, value in comparison.fixed.items()]
    differing = table("settings", rows) if rows else paragraph("The runs have the same settings, seeds apart.")
    return differing + folded("settings that all runs share", table("fixed", fixed))


# ---- completions


def completions(runs: Sequence[Run]) -> str:
    """Completions of all runs, as many of each as the page has room for, their kinds (set, verdict) in turn."""
    room = max(LEAST_COMPLETIONS, MOST_COMPLETIONS // len(runs))
    cards, total = [], sum(len(run.completions) for run in runs)
    for run in [run for run in runs if run.completions]:
        kinds = pd.DataFrame([(each["set"], each["iteration"], each["verdict"]) for each in run.completions])
        in_turn = kinds.groupby([0, 1, 2]).cumcount().sort_values(kind="stable").index
        cards += [card(run, run.completions[i]) for i in in_turn[:room]]
    if not total:
        return paragraph("These runs keep no completions.")
    left = total - len(cards)
    more = paragraph(f"{left} more completions are in the run folders (completions.jsonl).") if left else ""
    return more + filtered("completions", "words, as in verdict=correct set=test") + f"<div>{''.join(cards)}</div>"


def card(run: Run, entry: Record) -> str:
    known = entry["logp"] if isinstance(entry.get("logp"), dict) else {}
    places = {int(k): value for k, v in known.items() if k.isdecimal() and (value := number(v)) is not None}
    logp = [places[place] for place in sorted(places)]
    facts = {
        "verdict": entry["verdict"], "run": run.name, "set": entry["set"], "iteration": entry["iteration"],
        "difficulty": entry.get("level"), "subject": entry.get("subject"), "gold": entry.get("gold"),
        "answer": entry.get("answer"), "log π": f"{logp[-1]:.2f}" if logp else None,
        "log-ratio": f"{logp[-1] - logp[0]:.2f}" if len(logp) > 1 else None,
        "truncated": entry.get("truncated") or None, "trained on": entry.get("trained_on"),
    }  # fmt: skip
    said = " · ".join(f"{name}={cut(str(value))}" for name, value in facts.items() if value is not None)
    return folded(said, "".join(f"<pre>{escape(cut(entry[name]))}</pre>" for name in ("question", "completion")))


def cut(value: str) -> str:
    left = len(value) - LONGEST_TEXT
    return value if left <= 0 else f"{value[:LONGEST_TEXT]} … ({left} more characters)"
