"""docs/results/README.md: a section for each figure, written from the recorded numbers alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.figure import Claim, Extra, Figure, counted, verdict
from reproduce.groups import group_by, grouping, name_of
from reproduce.jobs import is_study
from reproduce.selection import Runs, collapsed, fell, mean_of
from topr_exp.report.ranking import against_best, highest_mean, leaders
from topr_exp.runtime.files import write_text
from topr_exp.runtime.terminal import plural

BASE_BY = ("data_sets", "lengths", "top_ks")  # groupings that decide what the base scores
WORDS = ("shown", "shown alone", "reversed", "reversed alone", "not shown", "equal", "undecided")
ENVIRONMENT = ("python", "platform", "processor", "cores", "device")


def write_page(figures: Sequence[Figure], out: Path) -> Path:
    """Write the page from what `out` records."""
    sections, rows, environments, words = [], [], [], []
    for figure in figures:
        stored = records.read(out / f"{figure.name}.json")
        found = records.runs_of(stored)
        environments += [each for each in stored["environments"] if each not in environments]
        judged = figure.decide(found, stored["extra"])
        words += [claim.word for claims in judged.values() for claim in claims]
        link = "".join(ch for ch in figure.title.lower() if ch.isalnum() or ch in " -_").replace(" ", "-")  # GitHub's
        told = ", ".join(f"{model}: {verdict(claims)}" for model, claims in judged.items())
        rows.append(f"| [{figure.title}](#{link}) | {told or 'not computed yet'} |")
        sections.append(section(figure, found, judged, stored["extra"]))
    head = Path(__file__).with_name("head.md").read_text(encoding="utf-8")
    table = ["| | verdict |", "|---|---|", *rows]
    counts = ", ".join(f"{words.count(word)} {word}" for word in WORDS)
    made = ["<details>", "<summary>Computed by</summary>", "", *origin(environments), "", "</details>"]
    text = "\n".join([head, *table, "", f"{len(words)} claims: {counts}.", "", *sections, *made])
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
    return [f"- {place}; commit {', commit '.join(found)}" for place, found in commits.items()]


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
    missing, waiting = extra.get("missing", 0), extra.get("left_out", 0)
    if missing or waiting:
        without = f", and all of {plural(waiting, 'sweep')} whose rates are not chosen yet" if waiting else ""
        lines += [f"**{missing} of {plural(len(found) + missing, 'run')} are missing**{without}.", ""]
    for model, claims in judged.items():
        lines += [f"**{model}: {verdict(claims)}**", ""]
        lines += [f"- {claim.text}: *{claim.word}* ({claim.evidence})" for claim in claims]
        lines.append("")
    for model, group in found.split("model.name").items():
        if figure.own_table is not None:
            lines += [*figure.own_table(group, extra), ""]
        seeds = " ".join(str(seed) for seed in sorted({*group.seeds}))
        lines += ["<details>", f"<summary>{model}: the numbers ({plural(len(group), 'run')}, seeds {seeds})</summary>"]
        lines += ["", *numbers(figure, group), "", *highest(figure, group), "", "</details>", ""]
    sweeps = ", ".join(f"`{sweep_command(experiment)}`" for experiment in figure.experiments)
    return "\n".join([*lines, f"{command}; the same runs as a sweep: {sweeps}", ""])


def sweep_command(experiment: str) -> str:
    """The command that runs an experiment without drawing."""
    own_folder = "--config-dir reproduce/conf " if is_study(experiment) else ""
    return f"python -m topr_exp {own_folder}experiment={experiment}"


def highest(figure: Figure, runs: Runs) -> list[str]:
    """Say of the table's groups on each test which has the highest mean, and what is sure of it."""
    asked = [split for split in map(grouping, BASE_BY) if len(split(runs)) > 1]
    lines = []
    for members in group_by(runs, *asked).values():
        groups = {name_of(label): group for label, group in group_by(members, *figure.levels).items() if len(group)}
        if len(groups) > 1:
            best, *tied = leaders({label: mean_of(group) for label, group in groups.items()})
            told = against_best(groups, best, {label: fell(group) for label, group in groups.items()}, tied=tied)
            lines.append(f"- {highest_mean([best, *tied], len(groups))}. {told}".rstrip())
    return lines


def numbers(figure: Figure, runs: Runs) -> list[str]:
    """A table: the base, then a row a group; means with their intervals, then the pass@1 of every seed."""
    k = runs[0]["final"]["k"]
    titles = [f"maj@{k}" if name == "maj" else name for name in figure.names]
    lines = [f"| | {' | '.join(titles)} | pass@1 of each seed |", "|---|" + "---|" * (len(titles) + 1)]
    asked = [split for split in map(grouping, BASE_BY) if len(split(runs)) > 1]
    bases = {", ".join(filter(None, ("base", label))): group for label, group in group_by(runs, *asked).items()}
    rows: dict[str, tuple[Runs, str]] = {label: (Runs(group[:1]), "base") for label, group in bases.items()}
    rows |= {label: (group, "final") for label, group in group_by(runs, *figure.levels).items() if len(group)}
    for label, (group, part) in rows.items():
        cells = [group.interval(name, part).percent() for name in figure.names]
        each = " ".join(f"{100 * value:.1f}" for value in group.each("pass@1", part)) if part == "final" else ""
        fallen = collapsed(group)
        if part == "final" and len(group) > 1 and fallen is not None and fallen.value > 0:
            each += f"; collapsed: {counted(fallen)}"
        lines.append(f"| {name_of(label)} | {' | '.join(cells)} | {each} |")
    return lines
