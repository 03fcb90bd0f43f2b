"""docs/results/README.md: a section for each figure, written from the recorded numbers alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.claims import Claim, Extra, counted, verdict
from reproduce.figure import Figure
from reproduce.files import plural, write_file
from reproduce.groups import TESTS, group_by, models, name_of
from reproduce.jobs import is_study
from reproduce.selection import Runs, collapsed_seeds, collapsed_share
from topr_exp.report import against_best, highest_mean, leaders

WORDS = ("shown", "shown alone", "reversed", "reversed alone", "not shown", "equal", "undecided")
MACHINE = ("python", "platform", "processor", "cores", "device")


def write_page(figures: Sequence[Figure], out: Path) -> Path:
    """Write the page from what `out` records."""
    sections, verdict_rows, environments, words = [], [], [], []
    for figure in figures:
        stored = records.read(out / f"{figure.name}.json")
        runs = records.runs_of(stored)
        for environment in stored["environments"]:
            if environment not in environments:
                environments.append(environment)
        claims_of_model = figure.decide(runs, stored["extra"])
        verdicts = [f"{model}: {verdict(claims)}" for model, claims in claims_of_model.items()]
        words += [claim.word for claims in claims_of_model.values() for claim in claims]
        link = f"[{figure.title}](#{anchor(figure.title)})"
        verdict_rows.append(f"| {link} | {', '.join(verdicts) or 'not computed yet'} |")
        sections.append(section(figure, runs, claims_of_model, stored["extra"]))
    head = Path(__file__).with_name("head.md").read_text(encoding="utf-8")
    counts = ", ".join(f"{words.count(word)} {word}" for word in WORDS)
    summary = ["| | verdict |", "|---|---|", *verdict_rows, "", f"{len(words)} claims: {counts}.", ""]
    origins = ["<details>", "<summary>Computed by</summary>", "", *list_origins(environments), "", "</details>"]
    path = out / "README.md"
    write_file(path, "\n".join([head, *summary, *sections, *origins]).rstrip("\n") + "\n")
    return path


def anchor(title: str) -> str:
    """The link that GitHub gives a heading."""
    characters = [character for character in title.lower() if character.isalnum() or character in " -_"]
    return "".join(characters).replace(" ", "-")


def list_origins(environments: Sequence[dict[str, Any]]) -> list[str]:
    """Where the numbers come from, a line for each machine and set of versions, with the commits that ran there."""
    if not environments:
        return ["Nothing was computed yet."]
    commits_of: dict[str, list[str]] = {}
    for environment in environments:
        facts = [f"{key} {environment[key]}" for key in MACHINE if environment.get(key)]
        facts += [f"GPU {gpu}" for gpu in environment.get("gpus") or []]
        facts += [" ".join(version) for version in (environment.get("versions") or {}).items()]
        changes = " (with uncommitted changes)" if environment.get("git_dirty") else ""
        commits_of.setdefault(", ".join(facts), []).append(f"{environment.get('git_commit')}{changes}")
    return [f"- {facts}; commit {', commit '.join(commits)}" for facts, commits in commits_of.items()]


def section(figure: Figure, runs: Runs, claims_of_model: Mapping[str, list[Claim]], extra: Extra) -> str:
    """One figure: claim, picture, verdict with its reasons, numbers, command."""
    lines = [f"## {figure.title}", "", figure.claim, ""]
    command = f"`python -m reproduce {figure.name}{' --full' if figure.only_full else ''}`"
    if not len(runs):
        return "\n".join([*lines, f"Not computed yet: {command}", ""])
    lines += [f"![{figure.title}]({figure.name}.png)", ""]
    if figure.note:
        lines += [figure.note, ""]
    lines += missing_note(len(runs), extra)
    for model, claims in claims_of_model.items():
        lines += [f"**{model}: {verdict(claims)}**", ""]
        lines += [f"- {claim.text}: *{claim.word}* ({claim.evidence})" for claim in claims]
        lines.append("")
    for model, members in models(runs).items():
        if figure.table is not None:
            lines += [*figure.table(members, extra), ""]
        seeds = " ".join(map(str, sorted(set(members.seeds))))
        summary = f"{model}: the numbers ({plural(len(members), 'run')}, seeds {seeds})"
        lines += ["<details>", f"<summary>{summary}</summary>", "", *number_table(figure, members), ""]
        lines += [*best_groups(figure, members), "", "</details>", ""]
    sweeps = ", ".join(f"`{sweep_command(experiment)}`" for experiment in figure.experiments)
    return "\n".join([*lines, f"{command}; the same runs as a sweep: {sweeps}", ""])


def missing_note(count: int, extra: Extra) -> list[str]:
    """How many runs of the full version are missing."""
    missing, left_out = extra.get("missing", 0), extra.get("left_out", 0)
    if not missing and not left_out:
        return []
    sweeps = f", and all of {plural(left_out, 'sweep')} whose rates are not chosen yet" if left_out else ""
    return [f"**{missing} of {plural(count + missing, 'run')} are missing**{sweeps}.", ""]


def sweep_command(experiment: str) -> str:
    """The command that runs an experiment without drawing."""
    own_folder = "--config-dir reproduce/conf " if is_study(experiment) else ""
    return f"python -m topr_exp {own_folder}experiment={experiment}"


# ---- numbers


def by_test(runs: Runs) -> dict[str, Runs]:
    """The runs by what the base was tested on, where that differs."""
    return group_by(runs, *(split for split in TESTS if len(split(runs)) > 1))


def table_groups(figure: Figure, runs: Runs) -> dict[str, Runs]:
    """The groups of a figure's table that have runs."""
    return {name: group for name, group in group_by(runs, *figure.levels).items() if len(group)}


def best_groups(figure: Figure, runs: Runs) -> list[str]:
    """Say of the table's groups on each test which has the highest mean, and what is sure of it."""
    lines = []
    for members in by_test(runs).values():
        groups = {name_of(name): group for name, group in table_groups(figure, members).items()}
        if len(groups) > 1:
            best, *tied = leaders({name: group.mean() for name, group in groups.items()})
            collapsed = {name: collapsed_seeds(group) for name, group in groups.items()}
            sure = against_best(groups, best, collapsed, tied=tied)
            lines.append(f"- {highest_mean([best, *tied], len(groups))}. {sure}".rstrip())
    return lines


def number_table(figure: Figure, runs: Runs) -> list[str]:
    """A table: the base, then a row a group; means with their intervals, then the pass@1 of every seed."""
    titles = [f"maj@{runs[0]['final']['k']}" if name == "maj" else name for name in figure.columns]
    lines = [f"| | {' | '.join(titles)} | pass@1 of each seed |", "|---|" + "---|" * (len(titles) + 1)]
    for name, members in by_test(runs).items():
        base = Runs(members[:1])
        cells = [base.interval(column, "base").percent() for column in figure.columns]
        lines.append(f"| {', '.join(filter(None, ('base', name)))} | {' | '.join(cells)} |  |")
    for name, group in table_groups(figure, runs).items():
        cells = [group.interval(column).percent() for column in figure.columns]
        lines.append(f"| {name_of(name)} | {' | '.join(cells)} | {seed_scores(group)} |")
    return lines


def seed_scores(group: Runs) -> str:
    """pass@1 of every seed, and how many collapsed."""
    scores = " ".join(f"{100 * mean:.1f}" for mean in group.seed_means())
    share = collapsed_share(group)
    if len(group) > 1 and share is not None and share.value > 0:
        return f"{scores}; collapsed: {counted(share)}"
    return scores
