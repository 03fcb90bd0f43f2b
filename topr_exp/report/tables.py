"""Runs and groups as data frames, and these as CSV, LaTeX and rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from topr_exp.report.estimates import Groups, estimate, headlines, printed
from topr_exp.report.groups import Comparison, text
from topr_exp.report.runs import Run
from topr_exp.runtime.files import number
from topr_exp.types import VERDICTS

OF_SUMMARY = ("baseline", "effective_positive", "positive_share", "n_train")
OF_RUN = ("run", "folder", "status", "notes", "group", "updates", "seconds")
FORMULAS = ("=", "+", "@", "\t", "\r")  # how text begins that a spreadsheet would compute


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """A row a run, as `topr_exp.read_runs` names the columns."""
    names, rows = [*headlines(runs), *VERDICTS], []
    for run in runs:
        seconds = run.summary.get("seconds")
        spent = [number(one) or 0.0 for one in seconds.values()] if isinstance(seconds, dict) else []
        told = {f"{key} (setting)" if key in (*OF_SUMMARY, *OF_RUN) else key: run.settings[key] for key in run.settings}
        rows.append(
            {"run": run.name, "folder": str(run.path), "status": run.status, "notes": run.notes, "group": run.group}
            | told
            | {name: run.figure(name) for name in OF_SUMMARY}
            | {"updates": len(run.updates), "seconds": sum(spent) if spent else None}
            | estimates([run], names)
        )
    return pd.DataFrame(rows).set_index("run")


def groups_frame(comparison: Comparison) -> pd.DataFrame:
    """A row a group: means over its runs with 95 % intervals, and what the intervals are over."""
    names, rows = [*headlines(comparison.runs), *VERDICTS], []
    for label, runs in comparison.groups.items():
        keys = {key: text(runs[0].settings.get(key)) for key in comparison.keys}
        rows.append({"group": label, **keys, "runs": len(runs)} | estimates(runs, names))
    return pd.DataFrame(rows).set_index("group")


def estimates(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for part in ("base", "final"):
        for name in names:
            found = estimate(runs, name, part)
            ends = found.as_dict().values() if found is not None else (None, None, None)
            row |= zip((f"{part}_{name}{end}" for end in ("", "_low", "_high")), ends, strict=True)
            row[f"{part}_{name}_interval_over"] = found.over if found is not None else None
    return row


def as_csv(frame: pd.DataFrame) -> str:
    """CSV that a spreadsheet shows and does not compute: text that looks like a formula gets an apostrophe."""
    safe = frame.reset_index().map(lambda cell: f"'{cell}" if str(cell).startswith(FORMULAS) else cell)
    return str(safe.to_csv(index=False, lineterminator="\n"))


def groups_tex(comparison: Comparison) -> str:
    r"""The groups as a LaTeX tabular (needs \usepackage{booktabs}), in percent with 95 % intervals."""
    tex = pd.DataFrame(group_rows(comparison, comparison.groups)).to_latex(index=False, escape=True)
    for character, shown in (("<", r"\textless{}"), (">", r"\textgreater{}"), ("–", "--")):
        tex = tex.replace(character, shown)
    return f"% Percent (mean_reward as it is); 95 % intervals over a group's runs and the test problems.\n{tex}"


# ---- for people: shares in percent


def group_rows(comparison: Comparison, groups: Groups) -> list[dict[str, Any]]:
    return [{"group": label, "runs": len(runs)} | scores(comparison, runs) for label, runs in groups.items()]


def run_rows(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {"run": run.name, "status": run.status, "updates": len(run.updates)}
        | {key: text(run.settings.get(key)) for key in [*comparison.keys, "seed"]}
        | scores(comparison, [run])
        for run in comparison.runs
    ]


def scores(comparison: Comparison, runs: Sequence[Run]) -> dict[str, str]:
    """Estimates of runs after and before training by their titles."""
    names = [*headlines(comparison.runs), "invalid"]
    return {f"{part} {name}": printed(runs, name, part) for part in ("final", "base") for name in names}
