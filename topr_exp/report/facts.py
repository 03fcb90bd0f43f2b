"""What a reader has to know beside the numbers: what was held fixed, what was tested, where it was computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from topr_exp.report.groups import Comparison, text
from topr_exp.report.runs import Run

HELD = ("algo.name", "data.name", "data.source", "model.name", "compose.name", "optim.lr")  # named where all share them
MOST = 3  # commands


def facts(runs: Sequence[Run], comparison: Comparison) -> dict[str, str]:
    """Title -> what there is to say; nothing where the runs don't tell."""
    commands = sorted(set(commands_of(runs)))
    more = [f"{len(commands) - MOST} more"] if len(commands) > MOST else []
    found = {
        "held fixed": ", ".join(f"{key} {text(comparison.fixed[key])}" for key in HELD if key in comparison.fixed),
        "also differs": comparison.confounded,
        "counted once": "; ".join(f"{runs[i].name} and {runs[j].name}" for i, j in comparison.repeats.items()),
        "tested on": "; ".join(sorted(set(tests_of(runs)))),
        "commit": ", ".join(sorted(set(commits_of(runs)))),
        "command": "; ".join([*commands[:MOST], *more]),
    }
    return {title: words for title, words in found.items() if words}


def tests_of(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        for last in run.evaluations[-1:]:
            yield f"{last.get('problems')} problems, {last.get('samples')} completions each"


def commits_of(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if isinstance(commit := run.environment.get("git_commit"), str):
            yield f"{commit[:10]}{' with uncommitted changes' if run.environment.get('git_dirty') else ''}"


def commands_of(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if isinstance(given := run.environment.get("command"), list) and given:
            yield " ".join([f"python -m {module(str(given[0]))}", *map(str, given[1:])])


def module(path: str) -> str:
    """The module that was run, by its file: the package itself where that is another program, such as topr-exp."""
    parts = Path(path.removesuffix(".py")).parts
    if "topr_exp" not in parts:
        return "topr_exp"
    inside = parts[len(parts) - parts[::-1].index("topr_exp") :]
    return ".".join(["topr_exp", *(part for part in inside if part != "__main__")])
