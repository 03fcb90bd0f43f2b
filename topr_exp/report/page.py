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

from topr_exp.report.estimates import majority_name, pass_at_1, reward_name
from topr_exp.report.figures import Groups, Plot, series_style
from topr_exp.report.groups import MISSING, Comparison, bases, named, text
from topr_exp.report.ranking import ranking
from topr_exp.report.runs import Run
from topr_exp.report.tables import OF_SUMMARY, printed, runs_frame
from topr_exp.runs.console import plural
from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import number

HERE = Path(__file__).parent
MOST_COMPLETIONS, LEAST_COMPLETIONS = 3000, 10  # of all runs together, and of a run
LONGEST_TEXT = 4000
SHOWN_AT_FIRST = 8  # lines of a figure
SECTIONS = {
    "result": "Result", "curves": "Curves", "overview": "Overview", "runs": "Runs", "sweep": "Sweep",
    "samples": "K completions, and problems by correct ones", "settings": "Settings that differ",
    "completions": "Completions",
}  # fmt: skip
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
BRACKETS = (
    "Percent, mean rewards as they are. In brackets: 95 % intervals, over runs and test problems (crossed random "
    "effects); of a single run over test problems, which leaves out how training runs vary. Where verdicts are gone: "
    "Student's t over runs."
)


def render_page(
    title: str,
    runs: Sequence[Run],
    comparison: Comparison,
    notes: Sequence[str],
    plots: Sequence[Plot],
    drawings: Mapping[str, str],
) -> str:
    """The whole page."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    groups = best_first(runs, comparison)
    parts = {
        "result": result(groups, runs, comparison),
        "overview": overview(groups, runs, comparison, notes),
        "runs": run_table(runs, comparison),
        "samples": subjects(groups, bases(list(runs), comparison)),
        "settings": settings_that_differ(runs, comparison),
        "completions": completions(runs),
    }
    shown = sorted(plots, key=lambda plot: not plot.in_files)
    content = {
        name: parts.get(name, "") + "".join(figure(plot, drawings[plot.name]) for plot in shown if plot.section == name)
        for name in SECTIONS
    }
    known = {name: head for name, head in SECTIONS.items() if content[name]}
    sections = "".join(
        f'<section id="{name}"><h2>{head}</h2>\n{content[name]}</section>\n' for name, head in known.items()
    )
    states = Counter(run.status for run in runs)
    differs = f"; they differ in {', '.join(comparison.keys)}" if comparison.keys else ""
    subtitle = (
        f"{plural(len(runs), 'run')} ({', '.join(f'{count} {state}' for state, count in states.items())}) in "
        f"{plural(len(comparison.groups), 'group')}{differs}. Made {time.strftime('%Y-%m-%d %H:%M')}."
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


def best_first(runs: Sequence[Run], comparison: Comparison) -> Groups:
    """The groups by their final pass@1."""
    groups = {label: [runs[i] for i in members] for label, members in comparison.groups.items()}
    return dict(sorted(groups.items(), key=lambda group: -pass_at_1(group[1])))


def table(name: str, rows: Iterable[Mapping[str, Any]], search: str = "") -> str:
    """A table that sorts by the column whose title is clicked; search: words that tell how to filter its rows."""
    with pd.option_context("display.max_colwidth", None):
        frame = pd.DataFrame([{key: str(value) for key, value in row.items()} for row in rows])
        made = frame.to_html(index=False, na_rep=MISSING, border=0, table_id=f"{name}-table", justify="unset")
    return (filtered(name, search) if search else "") + f'<div class="scroll">{made}</div>\n'


def filtered(name: str, search: str) -> str:
    box = f'<input type="search" data-in="{name}" placeholder="{search}">'
    return f"<p><label>filter {box}</label> <output></output></p>\n"


def paragraph(words: str, title: str = "") -> str:
    return f"<p>{f'<strong>{escape(title)}: </strong>' if title else ''}{escape(words)}</p>\n"


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{content}</details>\n"


def figure(plot: Plot, drawing: str) -> str:
    """A figure with boxes that show and hide its lines; folded where it is on the page alone."""
    boxes = "".join(
        f'<label style="color: {series_style(line.style)["color"]}"><input type="checkbox" '
        f'data-line="{plot.name}.{i}."{" checked" * (i < SHOWN_AT_FIRST)}>{escape(line.name)}</label>'
        for i, line in enumerate(plot.lines)
    )
    content = f"<figure>{drawing}<figcaption>{boxes}</figcaption></figure>"
    return folded(plot.caption, content, is_open=plot.in_files)


# ---- sections


def result(groups: Groups, runs: Sequence[Run], comparison: Comparison) -> str:
    """Who ended best, and by how much."""
    sentence, rows = ranking(groups, runs, comparison)
    return f"<p><strong>{escape(sentence)}</strong></p>\n" + (table("ranking", rows) if rows else "")


def overview(groups: Groups, runs: Sequence[Run], comparison: Comparison, notes: Sequence[str]) -> str:
    """Notes on damage, what was held fixed, and the figures of each group."""
    told = [*(f"{run.name}: {note}" for run in runs for note in run.notes), *notes]
    items = "".join(f"<li>{escape(note)}</li>" for note in told)
    found = folded(f"{plural(len(told), 'note')} about these folders", f"<ul>{items}</ul>", is_open=len(told) < 6)
    said = "".join(paragraph(words, title) for title, words in facts(runs, comparison).items())
    rows = [
        {"group": label, "runs": len(members)} | printed(members, headlines(runs)) for label, members in groups.items()
    ]
    return (found if told else "") + said + table("groups", rows) + paragraph(BRACKETS)


def headlines(runs: Sequence[Run]) -> list[tuple[str, str]]:
    names = ["pass@1", reward_name(runs), majority_name(runs), "invalid"]
    return [(part, name) for part in ("final", "base") for name in names if name]


def run_table(runs: Sequence[Run], comparison: Comparison) -> str:
    """The settings that tell groups apart and the figures of each run."""
    frame = runs_frame(runs, comparison)
    more = [name for name in (*OF_SUMMARY, "updates", "seconds") if name not in comparison.keys]
    rows = []
    for i, run in enumerate(runs):
        keys = {key: text(comparison.settings[i].get(key)) for key in [*comparison.keys, "seed"]}
        numbers = {name: f"{value:.4g}" for name in more if pd.notna(value := frame[name].iloc[i])}
        rows.append({"run": run.name, "status": run.status} | keys | printed([run], headlines(runs)) | numbers)
    return table("runs", rows, "words, as in topr seed=1")


def subjects(groups: Groups, of_bases: Groups) -> str:
    """The mean pass@1 by subject of every base and every group."""
    parts = [*((label, runs, "base") for label, runs in of_bases.items()),
             *((label, runs, "final") for label, runs in groups.items())]  # fmt: skip
    found: dict[str, dict[str, str]] = {}
    for label, runs, part in parts[: SHOWN_AT_FIRST + 1]:
        for name in {name for run in runs for name in (run.summary.get(part) or {}).get("subjects") or {}}:
            values = [one for run in runs if (one := run.figure(part, "subjects", name, "pass@1")) is not None]
            if values:
                found.setdefault(name, {})[label] = f"{100 * sum(values) / len(values):.1f}"
    rows = [{"subject": name, **found[name]} for name in sorted(found)]
    return "<h3>pass@1 by subject (%)</h3>" + table("subjects", rows) if rows else ""


def settings_that_differ(runs: Sequence[Run], comparison: Comparison) -> str:
    rows = []
    for key in comparison.differing:
        counts = Counter(text(settings.get(key)) for settings in comparison.settings)
        values = ", ".join(f"{value} ({count})" for value, count in sorted(counts.items()))
        comes_with = f"comes with {key.partition('.')[0]}" if named(key, comparison.keys) else "also differs"
        rows.append({"setting": key, "values (runs)": values, "": "" if key in comparison.keys else comes_with})
    fixed = [{"setting": key, "value": text(value)} for key, value in comparison.fixed.items()]
    differing = table("settings", rows) if rows else paragraph("The runs have the same settings, seeds apart.")
    return differing + folded("settings that all runs share", table("fixed", fixed))


# ---- completions


def completions(runs: Sequence[Run]) -> str:
    """Completions of all runs, as many of each as the page has room for, their kinds (set, verdict) in turn."""
    room = max(LEAST_COMPLETIONS, MOST_COMPLETIONS // len(runs))
    cards, total = [], 0
    for run in runs:
        if run.completions:
            kinds = pd.DataFrame(run.completions)[["set", "iteration", "verdict"]]
            in_turn = kinds.groupby(["set", "iteration", "verdict"]).cumcount().sort_values(kind="stable").index
            cards += [card(run, run.completions[i]) for i in in_turn[:room]]
            total += len(run.completions)
    if not total:
        return paragraph("These runs keep no completions.")
    left = total - len(cards)
    more = paragraph(f"{left} more completions are in the run folders (completions.jsonl).") if left else ""
    return more + filtered("completions", "words, as in verdict=correct set=test") + f"<div>{''.join(cards)}</div>"


def card(run: Run, entry: Record) -> str:
    places = {int(k): v for k, v in entry.get("logp", {}).items() if k.isdigit() and number(v) is not None}
    logp = [places[place] for place in sorted(places)]
    facts = {
        "verdict": entry["verdict"], "run": run.name, "set": entry["set"], "iteration": entry["iteration"],
        "difficulty": entry.get("level"), "subject": entry.get("subject"), "gold": entry.get("gold"),
        "answer": entry.get("answer"), "log π before": f"{logp[0]:.2f}" if len(logp) > 1 else None,
        "log π": f"{logp[-1]:.2f}" if logp else None,
        "log-ratio": f"{logp[-1] - logp[0]:.2f}" if len(logp) > 1 else None,
        "truncated": entry.get("truncated") or None, "trained on": entry.get("trained_on"),
    }  # fmt: skip
    said = " · ".join(f"{name}={cut(str(value))}" for name, value in facts.items() if value is not None)
    return folded(said, "".join(f"<pre>{escape(cut(entry[name]))}</pre>" for name in ("question", "completion")))


def cut(value: str) -> str:
    left = len(value) - LONGEST_TEXT
    return value if left <= 0 else f"{value[:LONGEST_TEXT]} … ({left} more characters)"


HELD = ("algo.name", "data.name", "data.source", "model.name", "compose.name", "optim.lr")  # named where all share them
MOST = 3  # commands


def facts(runs: Sequence[Run], comparison: Comparison) -> dict[str, str]:
    """Title -> what there is to say; nothing where the runs don't tell."""
    tests = {f"{run.evaluations[-1].get('problems')} problems, {run.evaluations[-1].get('samples')} completions each"
             for run in runs if run.evaluations}  # fmt: skip
    commits = {f"{commit[:10]}{' with uncommitted changes' if run.environment.get('git_dirty') else ''}"
               for run in runs if isinstance(commit := run.environment.get("git_commit"), str)}  # fmt: skip
    commands = sorted({" ".join([f"python -m {module(str(given[0]))}", *map(str, given[1:])]) for run in runs
                       if isinstance(given := run.environment.get("command"), list) and given})  # fmt: skip
    more = [f"{len(commands) - MOST} more"] if len(commands) > MOST else []
    found = {
        "held fixed": ", ".join(f"{key} {text(comparison.fixed[key])}" for key in HELD if key in comparison.fixed),
        "also differs": comparison.confounded,
        "counted once": "; ".join(f"{runs[i].name} and {runs[j].name}" for i, j in comparison.repeats.items()),
        "tested on": "; ".join(sorted(tests)),
        "commit": ", ".join(sorted(commits)),
        "command": "; ".join([*commands[:MOST], *more]),
    }
    return {title: words for title, words in found.items() if words}


def module(path: str) -> str:
    """The module that was run, by its file: the package itself where that is another program, such as topr-exp."""
    parts = Path(path.removesuffix(".py")).parts
    if "topr_exp" not in parts:
        return "topr_exp"
    inside = parts[len(parts) - parts[::-1].index("topr_exp") :]
    return ".".join(["topr_exp", *(part for part in inside if part != "__main__")])
