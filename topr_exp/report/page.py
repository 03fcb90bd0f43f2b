"""`report.html`: one file with tables, figures and completions inside; it opens from disk and asks the network nothing.

Texts of models and runs are escaped. The page's policy forbids every request, and every script but its own, by hash.
"""

import base64
import hashlib
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from textwrap import shorten
from typing import Any

import pandas as pd

from topr_exp.report.drawing import INTERVALS, Drawing, series_style
from topr_exp.report.grouping import RunGroups
from topr_exp.report.plots import MOST_LINES, Plot
from topr_exp.report.ranking import rank_groups
from topr_exp.report.reader import Run
from topr_exp.report.tables import group_rows, run_rows
from topr_exp.runs.records import Record
from topr_exp.runtime.json_files import as_number
from topr_exp.runtime.terminal import plural

MOST_COMPLETIONS = 3000  # of all runs together
LONGEST_TEXT = 4000
LONGEST_QUESTION = 90  # characters of it in a completion's line
MOST_COMMANDS = 3
MOST_OPEN_NOTES = 5
SECTIONS = {  # name -> heading, which links show up to a colon
    "result": "Result",
    "sweep": "Sweep",
    "final": "Final: before and after training",
    "curves": "Curves",
    "overview": "Overview",
    "runs": "Runs",
    "samples": "Samples: pass@K, maj@K and problems by correct completions",
    "settings": "Settings",
    "completions": "Completions",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def render_page(title: str, run_groups: RunGroups, drawings: Sequence[Drawing]) -> str:
    folder = Path(__file__).parent
    template = (folder / "page.html").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    script_digest = hashlib.sha256(script.encode()).digest()
    script_hash = base64.b64encode(script_digest).decode()
    contents = render_sections(run_groups)
    for plot, svg in drawings:
        contents[plot.section] = contents.get(plot.section, "") + render_plot(plot, svg)
    links = []
    sections = []
    for name, heading in SECTIONS.items():
        if name in contents:
            link_text, _, _ = heading.partition(":")
            links.append(f'<a href="#{name}">{link_text}</a>')
            sections.append(f'<section id="{name}"><h2>{heading}</h2>\n{contents[name]}</section>\n')
    return Template(template).substitute(
        policy=POLICY.format(script_hash),
        script=script,
        title=escape(title),
        subtitle=escape(subtitle(run_groups)),
        made=time.strftime("%Y-%m-%d %H:%M"),
        links=" ".join(links),
        sections="".join(sections),
    )


def render_sections(run_groups: RunGroups) -> dict[str, str]:
    """The sections without plots, by name."""
    sentence, ranking_rows = rank_groups(run_groups.ranking)
    result = f"<p><strong>{escape(sentence)}</strong></p>\n"
    if ranking_rows:
        result += render_table("ranking", ranking_rows)
    runs_table = render_table("runs", run_rows(run_groups))
    return {
        "result": result,
        "overview": render_overview(run_groups),
        "runs": search_box("runs", "words, as in topr seed=1") + runs_table,
        "settings": render_settings(run_groups),
        "completions": render_completions(run_groups.runs),
    }


def subtitle(run_groups: RunGroups) -> str:
    """How many runs there are, in which states, and the settings in which they differ."""
    status_counts = Counter(run.status for run in run_groups.runs)
    statuses = ", ".join(f"{count} {status}" for status, count in status_counts.items())
    runs = plural(len(run_groups.runs), "run")
    groups = plural(len(run_groups.groups), "group")
    text = f"{runs} ({statuses}) in {groups}"
    if run_groups.keys:
        text += f"; they differ in {', '.join(run_groups.keys)}"
    return f"{text}."


# ---- elements


def render_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    frame = pd.DataFrame(rows).map(str)
    with pd.option_context("display.max_colwidth", None):
        html = frame.to_html(index=False, border=0, table_id=f"{name}-table", justify="unset")
    html = re.sub(r"(?<=<th>).*(?=</th>)", breakable_head, html)
    return f'<div class="scroll">{html}</div>\n'


def breakable_head(head: re.Match[str]) -> str:
    """A column's head that a browser may break after dots and underscores."""
    return re.sub(r"(?<=[._])(?=\w)", "<wbr>", head[0])


def search_box(name: str, hint: str) -> str:
    box = f'<input type="search" data-in="{name}" placeholder="{hint}">'
    return f"<p><label>filter {box}</label> <output></output></p>\n"


def foldable(title: str, content: str, *, is_open: bool = False) -> str:
    attribute = " open" if is_open else ""
    return f"<details{attribute}><summary>{escape(title)}</summary>{content}</details>\n"


def render_plot(plot: Plot, svg: str) -> str:
    """A figure with boxes that show and hide its lines."""
    labels = []
    for i, line in enumerate(plot.lines):
        box = f'<input type="checkbox" data-line="{plot.name}.{i}." checked>'
        color = series_style(line.style)["color"]
        labels.append(f'<label style="color: {color}">{box}{escape(line.name)}</label>')
    caption = f"<figcaption>{''.join(labels)}</figcaption>"
    return foldable(plot.caption, f"<figure>{svg}{caption}</figure>", is_open=True)


# ---- sections


def render_overview(run_groups: RunGroups) -> str:
    """Notes on damage, facts of the runs, and the figures of each group."""
    html = render_notes(run_groups)
    for title, text in list_facts(run_groups).items():
        html += f"<p><strong>{title}: </strong>{escape(text)}</p>\n"
    html += render_table("groups", group_rows(run_groups, run_groups.ranking))
    return f"{html}<p>{INTERVALS}</p>\n"


def render_notes(run_groups: RunGroups) -> str:
    """The runs' notes, and one on groups that figures leave out; "" without any."""
    notes = []
    for run in run_groups.runs:
        notes += [f"{run.name}: {note}" for note in run.notes]
    count = len(run_groups.groups)
    if count > MOST_LINES:
        notes.append(f"figures, but for sweeps, show the {MOST_LINES} of {count} groups with the highest final pass@1")
    if not notes:
        return ""
    items = [f"<li>{escape(note)}</li>" for note in notes]
    bullets = f"<ul>{''.join(items)}</ul>"
    title = f"{plural(len(notes), 'note')} about these folders"
    return foldable(title, bullets, is_open=len(notes) <= MOST_OPEN_NOTES)


def list_facts(run_groups: RunGroups) -> dict[str, str]:
    """Texts by title: what may explain where runs end, and where they come from."""
    tests = set()
    commits = set()
    commands = set()
    for run in run_groups.runs:
        if run.evaluations:
            problems = run.evaluations[-1].get("problems")
            samples = run.evaluations[-1].get("samples")
            tests.add(f"{problems} problems, {samples} completions each")
        commit = run.environment.get("git_commit")
        if commit:
            changes = " with uncommitted changes" if run.environment.get("git_dirty") else ""
            commits.add(f"{commit:.10}{changes}")
        words = run.environment.get("command")
        if words is not None:
            command = ["python", "-m", "topr_exp", *words[1:]]
            commands.add(shlex.join(command))
    repeats = [f"{repeat} and {counted_run}" for repeat, counted_run in run_groups.repeats.items()]
    facts = {
        "also differs": run_groups.confounded,
        "counted once": "; ".join(repeats),
        "tested on": "; ".join(sorted(tests)),
        "commit": ", ".join(sorted(commits)),
        "command": "; ".join(sorted(commands)[:MOST_COMMANDS]),
    }
    return {title: text for title, text in facts.items() if text}


def render_settings(run_groups: RunGroups) -> str:
    rows = []
    for key in (*run_groups.differing, *run_groups.fixed):
        counts = Counter(run_groups.value_texts(key))
        values = [f"{value} ({count})" for value, count in sorted(counts.items())]
        rows.append({"setting": key, "values (runs)": ", ".join(values)})
    if not rows:
        return ""
    return foldable("all settings, first those that differ", render_table("settings", rows))


# ---- completions


@dataclass(frozen=True)
class ShownCompletion:
    """An entry of completions.jsonl with the runs that have it: a sweep's runs have the base's in common."""

    entry: Record
    owners: list[Run]


def render_completions(runs: Sequence[Run]) -> str:
    """Different completions, each with the first run that has it; of each run as many as the page has room for."""
    completions = distinct_completions(runs)
    completions_by_run: dict[str, list[ShownCompletion]] = {}
    for completion in completions:
        first_owner = completion.owners[0].name
        completions_by_run.setdefault(first_owner, []).append(completion)

    most_of_run = max(1, MOST_COMPLETIONS // len(runs))
    cards: list[str] = []
    for completions_of_run in completions_by_run.values():
        ordered_completions = kinds_in_turn(completions_of_run)
        cards += map(render_card, ordered_completions[:most_of_run])
    count_text = f"{len(cards)} of {len(completions)} different completions; all are in the run folders"
    search = search_box("completions", "words, as in verdict=correct set=test")
    return f"<p>{count_text} (completions.jsonl)</p>\n{search}<div>{''.join(cards)}</div>"


def distinct_completions(runs: Sequence[Run]) -> list[ShownCompletion]:
    """Gather the runs' completions: equal ones of several runs are one with several owners."""
    completions: dict[str, ShownCompletion] = {}  # by the entry as JSON
    for run in runs:
        for entry in run.completions:
            content = json.dumps(entry, sort_keys=True)
            completion = completions.setdefault(content, ShownCompletion(entry, []))
            completion.owners.append(run)
    return list(completions.values())


def kinds_in_turn(completions: Sequence[ShownCompletion]) -> list[ShownCompletion]:
    """Order completions: the first of each kind (set, iteration, verdict), then the second of each, and so on."""
    entries = pd.DataFrame([completion.entry for completion in completions])
    kinds = entries.groupby(["set", "iteration", "verdict"])
    rank_in_kind = kinds.cumcount()
    order = rank_in_kind.sort_values(kind="stable").index
    return [completions[i] for i in order]


def render_card(completion: ShownCompletion) -> str:
    """A completion: its facts and its question in a line, the texts folded."""
    entry = completion.entry
    facts = {
        "verdict": entry["verdict"],
        "run": owner_text(completion),
        "set": entry["set"],
        "iteration": entry["iteration"],
        "difficulty": entry.get("level"),
        "subject": entry.get("subject"),
        "gold": entry.get("gold"),
        "answer": entry.get("answer"),
        "truncated": entry.get("truncated") or None,
        "trained on": entry.get("trained_on"),
    }
    logp = as_number(entry.get("logp"))
    if logp is not None:
        facts["log π"] = f"{logp:.2f}"
    words = [f"{name}={shorten_text(str(value))}" for name, value in facts.items() if value is not None]
    words.append(shorten(entry["question"], LONGEST_QUESTION, placeholder=" …"))
    texts = []
    for name in ("question", "completion"):
        texts.append(f"<pre>{escape(shorten_text(entry[name]))}</pre>")
    if len(completion.owners) > 1:
        names = ", ".join(run.name for run in completion.owners)
        texts.append(f"<p>runs: {escape(names)}</p>")
    return foldable(" · ".join(words), "".join(texts))


def owner_text(completion: ShownCompletion) -> str:
    """The run that has a completion; where several have it, their number."""
    owners = completion.owners
    if len(owners) == 1:
        return owners[0].name
    if completion.entry["iteration"] == 0:
        return f"base of {len(owners)} runs"
    return f"{len(owners)} runs"


def shorten_text(text: str) -> str:
    hidden_count = len(text) - LONGEST_TEXT
    if hidden_count <= 0:
        return text
    return f"{text[:LONGEST_TEXT]} … ({hidden_count} more characters)"
