"""Facts beside the numbers: settings held fixed, test problems, machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topr_exp.report.groups import Comparison, text
from topr_exp.report.runs import Run

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
