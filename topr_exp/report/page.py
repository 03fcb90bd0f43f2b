"""`report.html`: one file with tables, figures and completions inside; it opens from disk and asks the network nothing.

Texts of models and runs are escaped. The page's policy forbids every request, and every script but its own, by hash.
"""

import base64
import contextlib
import hashlib
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from textwrap import shorten
from typing import Any

import pandas as pd

from topr_exp.report.estimates import Groups, ranking
from topr_exp.report.figures import INTERVALS, MOST_LINES, Plot, series_style
from topr_exp.report.groups import Comparison, group_rows, run_rows
from topr_exp.report.runs import DAMAGE, Run
from topr_exp.runs.records import Record
from topr_exp.runtime.terminal import plural

MOST_COMPLETIONS, LEAST_COMPLETIONS = 3000, 10  # of all runs together, and of a run
LONGEST_TEXT = 4000
LONGEST_QUESTION = 90  # characters of it in a completion's line
MOST_COMMANDS = 3
SECTIONS = {
    "result": "Result", "sweep": "Sweep", "final": "Final: before and after training", "curves": "Curves",
    "overview": "Overview", "runs": "Runs", "samples": "Samples: pass@K, maj@K and problems by correct completions",
    "settings": "Settings",
    "completions": "Completions",
}  # fmt: skip
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def render_page(
    title: str,
    comparison: Comparison,
    groups: Groups,
    drawings: Mapping[str, tuple[Plot, str]],
) -> str:
    """Render the whole page; groups: best first; drawings: plots with their SVG, by name."""
    page, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    policy = POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    runs = comparison.runs
    sentence, rows = ranking(groups)
    parts = {
        "result": f"<p><strong>{escape(sentence)}</strong></p>\n" + (table("ranking", rows) if rows else ""),
        "overview": overview(comparison, groups),
        "runs": filtered("runs", "words, as in topr seed=1") + table("runs", run_rows(comparison)),
        "settings": settings(comparison),
        "completions": completions(runs),
    }
    for plot, drawing in drawings.values():
        parts[plot.section] = parts.get(plot.section, "") + figure(plot, drawing)
    known = {name: head for name, head in SECTIONS.items() if name in parts}
    states = ", ".join(f"{count} {state}" for state, count in Counter(run.status for run in runs).items())
    differs = f"; they differ in {', '.join(comparison.keys)}" if comparison.keys else ""
    return Template(page).substitute(
        policy=policy,
        script=script,
        title=escape(title),
        subtitle=escape(f"{plural(len(runs), 'run')} ({states}) in {plural(len(groups), 'group')}{differs}."),
        made=time.strftime("%Y-%m-%d %H:%M"),
        links=" ".join(f'<a href="#{name}">{head.partition(":")[0]}</a>' for name, head in known.items()),
        sections="".join(
            f'<section id="{name}"><h2>{head}</h2>\n{parts[name]}</section>\n' for name, head in known.items()
        ),
    )


def table(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    with pd.option_context("display.max_colwidth", None):
        frame = pd.DataFrame([{key: str(value) for key, value in row.items()} for row in rows])
        made = frame.to_html(index=False, border=0, table_id=f"{name}-table", justify="unset")
    made = re.sub(r"(?<=<th>).*(?=</th>)", lambda head: re.sub(r"(?<=[._])(?=\w)", "<wbr>", head[0]), made)
    return f'<div class="scroll">{made}</div>\n'


def filtered(name: str, search: str) -> str:
    box = f'<input type="search" data-in="{name}" placeholder="{search}">'
    return f"<p><label>filter {box}</label> <output></output></p>\n"


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


def overview(comparison: Comparison, groups: Groups) -> str:
    """Notes on damage, what else is known of the runs, and the figures of each group."""
    told = [f"{run.name}: {note}" for run in comparison.runs for note in run.notes]
    if len(groups) > MOST_LINES:
        told.append(f"figures show the {MOST_LINES} of {len(groups)} groups with the highest final pass@1")
    items = "".join(f"<li>{escape(note)}</li>" for note in told)
    found = folded(f"{plural(len(told), 'note')} about these folders", f"<ul>{items}</ul>", is_open=len(told) < 6)
    said = "".join(f"<p><strong>{title}: </strong>{escape(words)}</p>\n" for title, words in facts(comparison).items())
    return (found if told else "") + said + table("groups", group_rows(comparison, groups)) + f"<p>{INTERVALS}</p>\n"


def facts(comparison: Comparison) -> dict[str, str]:
    """What may be why runs end where they do, and where they come from."""
    asked = [run.evaluations[-1] for run in comparison.runs if run.evaluations]
    made = [run.environment for run in comparison.runs if run.environment.get("git_commit")]
    tests = {f"{one.get('problems')} problems, {one.get('samples')} completions each" for one in asked}
    given = [words[1:] for run in comparison.runs if isinstance(words := run.environment.get("command"), list)]
    commands = {shlex.join(["python", "-m", "topr_exp", *map(str, words)]) for words in given}
    commits = {
        f"{one['git_commit']!s:.10}{' with uncommitted changes' if one.get('git_dirty') else ''}" for one in made
    }
    found = {
        "also differs": comparison.confounded,
        "counted once": "; ".join(f"{one} and {other}" for one, other in comparison.repeats.items()),
        "tested on": "; ".join(sorted(tests)),
        "commit": ", ".join(sorted(commits)),
        "command": "; ".join(sorted(commands)[:MOST_COMMANDS]),
    }
    return {title: words for title, words in found.items() if words}


def settings(comparison: Comparison) -> str:
    counts = {key: Counter(comparison.texts(key)) for key in (*comparison.differing, *comparison.fixed)}
    rows = [
        {"setting": key, "values (runs)": ", ".join(f"{value} ({n})" for value, n in sorted(each.items()))}
        for key, each in counts.items()
    ]
    return folded("all settings, first those that differ", table("settings", rows)) if rows else ""


def completions(runs: Sequence[Run]) -> str:
    """Completions of all runs, as many of each as the page has room for, their kinds (set, verdict) in turn.

    Those that several runs have in common, as a sweep's have the base's, stand there once.
    """
    room = max(LEAST_COMPLETIONS, MOST_COMPLETIONS // len(runs))
    owners: dict[str, list[Run]] = {}
    own_entries: dict[str, dict[str, Record]] = {run.name: {} for run in runs}
    for run in runs:
        for entry in run.completions:
            content = json.dumps(entry, sort_keys=True)
            owners.setdefault(content, []).append(run)
            own_entries[owners[content][0].name][content] = entry
    cards = []
    for entries in own_entries.values():
        if entries:
            kinds = pd.DataFrame([*entries.values()]).groupby(["set", "iteration", "verdict"])
            in_turn = kinds.cumcount().sort_values(kind="stable").index
            contents = [*entries]
            cards += [card(owners[contents[i]], entries[contents[i]]) for i in in_turn[:room]]
    told = f"{len(cards)} of {len(owners)} different completions; all are in the run folders (completions.jsonl)"
    return (
        f"<p>{told}</p>\n{filtered('completions', 'words, as in verdict=correct set=test')}<div>{''.join(cards)}</div>"
    )


def card(owners: Sequence[Run], entry: Record) -> str:
    """A completion of one run or more: what is known of it and its question in a line, the texts folded."""
    facts = {
        "verdict": entry["verdict"], "run": owner_text(owners, entry), "set": entry["set"],
        "iteration": entry["iteration"], "difficulty": entry.get("level"), "subject": entry.get("subject"),
        "gold": entry.get("gold"), "answer": entry.get("answer"), "truncated": entry.get("truncated") or None,
        "trained on": entry.get("trained_on"),
    }  # fmt: skip
    with contextlib.suppress(*DAMAGE):
        facts["log π"] = f"{entry['logp']:.2f}"
    known = [f"{name}={cut(str(value))}" for name, value in facts.items() if value is not None]
    line = " · ".join([*known, shorten(entry["question"], LONGEST_QUESTION, placeholder=" …")])
    texts = "".join(f"<pre>{escape(cut(entry[name]))}</pre>" for name in ("question", "completion"))
    names = f"<p>runs: {escape(', '.join(run.name for run in owners))}</p>" if len(owners) > 1 else ""
    return folded(line, texts + names)


def owner_text(owners: Sequence[Run], entry: Record) -> str:
    """The run that has a completion; where several have it, their number."""
    if len(owners) == 1:
        return owners[0].name
    return f"base of {len(owners)} runs" if entry["iteration"] == 0 else f"{len(owners)} runs"


def cut(value: str) -> str:
    left = len(value) - LONGEST_TEXT
    return value if left <= 0 else f"{value[:LONGEST_TEXT]} … ({left} more characters)"
