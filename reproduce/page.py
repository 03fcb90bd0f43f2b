"""docs/results/README.md: a section for each figure, written from the recorded numbers alone."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.claims import Claim, Extra, describe_share, verdict
from reproduce.figure import Figure
from reproduce.files import links_from, plural, write_file
from reproduce.groups import TESTS, group_by, models, name_of
from reproduce.jobs import is_study
from reproduce.selection import Runs, collapsed_seeds, collapsed_share
from topr_exp.report import against_best, highest_mean, leaders

WORDS = ("shown", "shown alone", "reversed", "reversed alone", "not shown", "equal", "undecided")
MACHINE = ("python", "platform", "processor", "cores", "device")


def write_page(figures: Sequence[Figure], out: Path) -> Path:
    """Write the page from what `out` records."""
    sections, verdict_rows = [], []
    environments: list[dict[str, Any]] = []
    word_counts = Counter[str]()
    for figure in figures:
        stored = records.read(out / f"{figure.name}.json")
        runs = records.runs_of(stored)
        for environment in stored["environments"]:
            if environment not in environments:
                environments.append(environment)
        claims_of_model = figure.decide(runs, stored["extra"])
        for claim in itertools.chain.from_iterable(claims_of_model.values()):
            word_counts[claim.word] += 1
        verdict_rows.append(verdict_row(figure, claims_of_model))
        sections.append(section(figure, runs, claims_of_model, stored["extra"]))
    head = Path(__file__).with_name("head.md").read_text(encoding="utf-8")
    counts = [f"{word_counts[word]} {word}" for word in WORDS]
    summary = f"{word_counts.total()} claims: {', '.join(counts)}."
    lines = [
        head,
        "| | verdict |",
        "|---|---|",
        *verdict_rows,
        "",
        summary,
        "",
        *sections,
        "<details>",
        "<summary>Computed by</summary>",
        "",
        *list_origins(environments),
        "",
        "</details>",
    ]
    path = out / "README.md"
    write_file(path, links_from(out, "\n".join(lines).rstrip("\n") + "\n"))
    return path


def verdict_row(figure: Figure, claims_of_model: Mapping[str, list[Claim]]) -> str:
    verdicts = [f"{model}: {verdict(claims)}" for model, claims in claims_of_model.items()]
    text = ", ".join(verdicts) or "not computed yet"
    return f"| [{figure.title}](#{anchor(figure.title)}) | {text} |"


def anchor(title: str) -> str:
    """The link that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def list_origins(environments: Sequence[dict[str, Any]]) -> list[str]:
    """Where the numbers come from, a line for each machine and set of versions, with the commits that ran there."""
    if not environments:
        return ["Nothing was computed yet."]
    commits_of: dict[str, list[str]] = {}
    for environment in environments:
        commit = str(environment.get("git_commit"))
        if environment.get("git_dirty"):
            commit += " (with uncommitted changes)"
        commits_of.setdefault(machine_facts(environment), []).append(commit)
    return [f"- {facts}; commit {', commit '.join(commits)}" for facts, commits in commits_of.items()]


def machine_facts(environment: Mapping[str, Any]) -> str:
    """The machine, its GPUs and the versions of an environment."""
    facts = []
    for key in MACHINE:
        if environment.get(key):
            facts.append(f"{key} {environment[key]}")
    for gpu in environment.get("gpus") or []:
        facts.append(f"GPU {gpu}")
    for package, version in (environment.get("versions") or {}).items():
        facts.append(f"{package} {version}")
    return ", ".join(facts)


def section(figure: Figure, runs: Runs, claims_of_model: Mapping[str, list[Claim]], extra: Extra) -> str:
    """One figure: claim, picture, verdict with its reasons, numbers, command."""
    command = f"`python -m reproduce {figure.name}`"
    if figure.only_full:
        command = f"`python -m reproduce {figure.name} --full`"
    lines = [f"## {figure.title}", "", figure.claim, ""]
    if not len(runs):
        lines += [f"Not computed yet: {command}", ""]
        return "\n".join(lines)
    lines += [f"![{figure.title}]({figure.name}.png)", ""]
    if figure.note:
        lines += [figure.note, ""]
    lines += missing_note(len(runs), extra)
    for model, claims in claims_of_model.items():
        lines += [f"**{model}: {verdict(claims)}**", ""]
        for claim in claims:
            lines.append(f"- {claim.text}: *{claim.word}* ({claim.evidence})")
        lines.append("")
    for model, members in models(runs).items():
        if figure.table is not None:
            lines += [*figure.table(members, extra), ""]
        lines += model_numbers(figure, model, members)
    sweeps = [f"`{sweep_command(experiment)}`" for experiment in figure.experiments]
    lines += [f"{command}; the same runs as a sweep: {', '.join(sweeps)}", ""]
    return "\n".join(lines)


def model_numbers(figure: Figure, model: str, runs: Runs) -> list[str]:
    """A model's numbers, to be unfolded."""
    seeds = " ".join(map(str, sorted(set(runs.seeds))))
    summary = f"{model}: the numbers ({plural(len(runs), 'run')}, seeds {seeds})"
    return [
        "<details>",
        f"<summary>{summary}</summary>",
        "",
        *number_table(figure, runs),
        "",
        *best_groups(figure, runs),
        "",
        "</details>",
        "",
    ]


def missing_note(count: int, extra: Extra) -> list[str]:
    """How many runs of the full version are missing."""
    missing, left_out = extra.get("missing", 0), extra.get("left_out", 0)
    if not missing and not left_out:
        return []
    note = f"**{missing} of {plural(count + missing, 'run')} are missing**"
    if left_out:
        note += f", and all of {plural(left_out, 'sweep')} whose rates are not chosen yet"
    return [f"{note}.", ""]


def sweep_command(experiment: str) -> str:
    """The command that runs an experiment without drawing."""
    if is_study(experiment):
        return f"python -m topr_exp --config-dir reproduce/conf experiment={experiment}"
    return f"python -m topr_exp experiment={experiment}"


# ---- numbers


def by_test(runs: Runs) -> dict[str, Runs]:
    """The runs by what the base was tested on, where that differs."""
    splits = [split for split in TESTS if len(split(runs)) > 1]
    return group_by(runs, *splits)


def table_groups(figure: Figure, runs: Runs) -> dict[str, Runs]:
    """The groups of a figure's table that have runs."""
    return {name: group for name, group in group_by(runs, *figure.levels).items() if len(group)}


def best_groups(figure: Figure, runs: Runs) -> list[str]:
    """Say of the table's groups on each test which has the highest mean, and what is sure of it."""
    lines = []
    for members in by_test(runs).values():
        groups = {name_of(key): group for key, group in table_groups(figure, members).items()}
        if len(groups) < 2:
            continue
        means = {name: group.mean() for name, group in groups.items()}
        collapsed = {name: collapsed_seeds(group) for name, group in groups.items()}
        best, *tied = leaders(means)
        sure = against_best(groups, best, collapsed, tied=tied)
        lines.append(f"- {highest_mean([best, *tied], len(groups))}. {sure}".rstrip())
    return lines


def number_table(figure: Figure, runs: Runs) -> list[str]:
    """A table: the base, then a row a group; means with their intervals, then the pass@1 of every seed."""
    titles = ["", *figure.columns, "pass@1 of each seed"]
    if "maj" in titles:
        titles[titles.index("maj")] = f"maj@{runs[0]['final']['k']}"
    lines = [f"|{' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, members in by_test(runs).items():
        title = f"base, {name}" if name else "base"
        base = Runs(members[:1])
        lines.append(f"| {title} | {share_cells(base, figure.columns, 'base')} |  |")
    for name, group in table_groups(figure, runs).items():
        cells = share_cells(group, figure.columns, "final")
        lines.append(f"| {name_of(name)} | {cells} | {seed_scores(group)} |")
    return lines


def share_cells(group: Runs, columns: Sequence[str], stage: str) -> str:
    """The cells of a row: the means of some shares with their intervals."""
    intervals = [group.interval(column, stage) for column in columns]
    return " | ".join(interval.percent() for interval in intervals)


def seed_scores(group: Runs) -> str:
    """pass@1 of every seed, and how many collapsed."""
    scores = " ".join(f"{100 * mean:.1f}" for mean in group.seed_means())
    share = collapsed_share(group)
    if len(group) > 1 and share is not None and share.value > 0:
        return f"{scores}; collapsed: {describe_share(share)}"
    return scores
