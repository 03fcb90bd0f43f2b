"""docs/results/README.md: a section for each figure, written from the recorded numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.figure import Claim, Extra, Figure, counted, verdict
from reproduce.groups import name_of, top_k
from reproduce.selection import Runs, collapsed, group_by
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.runs.console import plural
from topr_exp.runtime.files import write_text

HEAD = """# Results

Written by `python -m reproduce`; nothing here is typed by hand. The models are `tiny` and `tiny_noise`, which ship
(and `tiny_verifier`), the problems are generated ([GSM8K-like and MATH-like](../../topr_exp/data)), and the papers'
claims are about models ten thousand times larger: "not shown" says that a claim does not show at this size, no more.

How to read it:
- Percent, on test problems. Brackets: 95 % t interval over seeds and problems, as samples of more of both (crossed
  random effects; with few seeds that differ it is wide); every seed is a dot or a thin line. Each seed has completions
  of its own. Curves are on the first 50 test problems, their bands 95 % t intervals over seeds.
- Where seeds can collapse (end below half of the base's pass@1) these intervals cover far less: if one seed in five
  does, 49 % with three seeds and 68 % with five. How many did stands beside the seeds with Wilson's interval of their
  share, and a claim that an algorithm collapses is decided by that: *shown* where the share is above one half.
- A claim is *shown* where the 95 % interval lies wholly on its side, *not shown* where it lies wholly on the other,
  *undecided* between. Differences are paired by seed and problem. Claims without an interval (what is computed exactly,
  or must hold in every seed) say what decides them. A figure's verdict: *shown* if all its claims are, *partly* if some
  are, else *undecided* if any claim is, else *not shown*.
- Learning rates: the same grid for every algorithm, chosen by validation problems (section "Learning rates").
"""
BASE_BY: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("data.name", name_of),
    ("data.turns", "{} turns".format),
    ("sampler.top_k", top_k),
)
ENVIRONMENT = ("python", "platform", "processor", "cores", "device")


def write_page(figures: Sequence[Figure], out: Path) -> Path:
    """Write the page from what `out` records."""
    sections, rows, environments, words = [], [], [], []
    for figure in figures:
        stored = records.read(out / f"{figure.name}.json")
        found = records.runs_of(stored)
        environments += [each for each in stored["environments"] if each not in environments]
        judged = {model: figure.judge(group, stored["extra"]) for model, group in found.split("model.name").items()}
        words += [claim.word for claims in judged.values() for claim in claims]
        rows.append(summary_row(figure, judged))
        sections.append(section(figure, found, judged, stored["extra"]))
    table = ["| | verdict |", "|---|---|", *rows]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("shown", "not shown", "undecided"))
    text = "\n".join([HEAD, *origin(environments), "", *table, "", f"{len(words)} claims: {counts}.", "", *sections])
    path = out / "README.md"
    write_text(path, text.rstrip("\n") + "\n")
    return path


def origin(environments: Sequence[dict[str, Any]]) -> list[str]:
    """Where the numbers come from, a line for each machine and set of versions, with the commits that ran there."""
    if not environments:
        return ["Nothing was computed yet."]
    commits: dict[str, list[str]] = {}
    for each in environments:
        known = [f"{key} {each[key]}" for key in ENVIRONMENT if each.get(key)]
        known += [f"GPU {gpu}" for gpu in each.get("gpus") or []]
        known += [" ".join(pair) for pair in (each.get("versions") or {}).items()]
        changed = " (with uncommitted changes)" if each.get("git_dirty") else ""
        commits.setdefault(", ".join(known), []).append(f"{each.get('git_commit')}{changed}")
    return ["Computed by:", *(f"- {place}; commit {', commit '.join(found)}" for place, found in commits.items())]


def anchor(title: str) -> str:
    """The link to a heading, as GitHub makes it."""
    kept = "".join(ch for ch in title.lower() if ch.isalnum() or ch in " -_")
    return kept.replace(" ", "-")


def summary_row(figure: Figure, judged: Mapping[str, list[Claim]]) -> str:
    words = ", ".join(f"{model}: {verdict(claims)}" for model, claims in judged.items())
    return f"| [{figure.title}](#{anchor(figure.title)}) | {words or 'not computed yet'} |"


def section(figure: Figure, found: Runs, judged: Mapping[str, list[Claim]], extra: Extra) -> str:
    """One figure: claim, picture, verdict with its reasons, numbers, command."""
    lines = [f"## {figure.title}", "", figure.claim, ""]
    full = " --full" if figure.only_full else ""
    command = f"`python -m reproduce {figure.name}{full}`"
    if not len(found):
        return "\n".join([*lines, f"Not computed yet: {command}", ""])
    lines += [f"![{figure.title}]({figure.name}.png)", ""]
    if figure.note:
        lines += [figure.note, ""]
    for model, claims in judged.items():
        lines += [f"**{model}: {verdict(claims)}**", ""]
        lines += [f"- {claim.text}: *{claim.word}* ({claim.evidence})" for claim in claims]
        lines.append("")
    for model, group in found.split("model.name").items():
        if figure.own_table is not None:
            lines += [*figure.own_table(group, extra), ""]
        seeds = " ".join(str(seed) for seed in sorted({*group.seeds}))
        lines += ["<details>", f"<summary>{model}: the numbers ({plural(len(group), 'run')}, seeds {seeds})</summary>"]
        lines += ["", *numbers(figure, group), "", "</details>", ""]
    return "\n".join([*lines, f"{command}; the same runs as a sweep: {sweeps(figure)}", ""])


def sweeps(figure: Figure) -> str:
    return ", ".join(f"`python -m topr_exp experiment={each}`" for each in figure.experiments)


def numbers(figure: Figure, runs: Runs) -> list[str]:
    """A table: the base, then a row a group; means with their intervals, then the pass@1 of every seed."""
    k = runs[0]["final"]["k"]
    titles = [f"maj@{k}" if name == "maj" else name for name in figure.names]
    lines = [f"| | {' | '.join(titles)} | pass@1 of each seed |", "|---|" + "---|" * (len(titles) + 1)]
    # What the base scores depends on the problems and on the top-k that it is sampled with.
    asked = [(key, text) for key, text in BASE_BY if len(runs.split(key)) > 1]
    bases = {f"base, {label}": group for label, group in group_by(runs, *asked).items()} if asked else {"base": runs}
    rows: dict[str, tuple[Runs, str]] = {label: (Runs(group[:1]), "base") for label, group in bases.items()}
    rows |= {label: (group, "final") for label, group in group_by(runs, *figure.levels).items() if len(group)}
    for label, (group, part) in rows.items():
        cells = [crossed_interval(group.values(name, part)).percent() for name in figure.names]
        each = " ".join(f"{100 * value:.1f}" for value in group.each("pass@1", part)) if part == "final" else ""
        fallen = collapsed(group)
        if part == "final" and len(group) > 1 and fallen is not None and fallen.value > 0:
            each += f"; collapsed: {counted(fallen)}"
        lines.append(f"| {name_of(label)} | {' | '.join(cells)} | {each} |")
    return lines
