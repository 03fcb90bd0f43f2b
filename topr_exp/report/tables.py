"""Runs and groups as data frames, and these as CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from topr_exp.report.estimates import as_printed, estimate, majority_name, reward_name
from topr_exp.report.groups import Comparison, text
from topr_exp.report.runs import Run
from topr_exp.runtime.jsonfiles import number
from topr_exp.types import VERDICTS

OF_SUMMARY = ("baseline", "effective_positive", "positive_share", "n_train")
OF_RUN = ("run", "folder", "status", "notes", "group", "updates", "seconds")
FORMULAS = ("=", "+", "@", "\t", "\r")  # how text begins that a spreadsheet would compute


def measures(runs: Sequence[Run]) -> list[str]:
    """The figures that tables hold."""
    majority, reward = majority_name(runs), reward_name(runs)
    return ["pass@1", *([reward] if reward else []), *([majority] if majority else []), *VERDICTS]


def runs_frame(runs: Sequence[Run], comparison: Comparison) -> pd.DataFrame:
    """A row a run; `report.read_runs` names the columns."""
    rows = []
    for run, settings, label in zip(runs, comparison.settings, comparison.labels, strict=True):
        seconds = run.summary.get("seconds")
        spent = [number(one) or 0.0 for one in seconds.values()] if isinstance(seconds, dict) else []
        rows.append(
            {"run": run.name, "folder": str(run.path), "status": run.status, "notes": run.notes, "group": label}
            | {setting_column(key): value for key, value in settings.items()}
            | {name: run.figure(name) for name in OF_SUMMARY}
            | {"updates": len(run.updates), "seconds": sum(spent) if spent else None}
            | estimates([run], measures(runs))
        )
    return pd.DataFrame(rows).set_index("run")


def groups_frame(runs: Sequence[Run], comparison: Comparison) -> pd.DataFrame:
    """A row a group: means over its runs with 95 % intervals, and what the intervals are over."""
    rows = []
    for label, members in comparison.groups.items():
        settings = comparison.settings[members[0]]
        keys = {key: text(settings.get(key)) for key in comparison.keys}
        found = estimates([runs[i] for i in members], measures(runs), over=True)
        rows.append({"group": label, **keys, "runs": len(members), **found})
    return pd.DataFrame(rows)


def estimates(runs: Sequence[Run], names: Sequence[str], *, over: bool = False) -> dict[str, Any]:
    """The estimates of base and final by column."""
    row: dict[str, Any] = {}
    for part in ("base", "final"):
        for name in names:
            found = estimate(runs, name, part)
            value, low, high = found.as_dict().values() if found is not None else (None, None, None)
            row |= {f"{part}_{name}": value, f"{part}_{name}_low": low, f"{part}_{name}_high": high}
            if over:
                row[f"{part}_{name}_interval_over"] = found.over if found is not None else None
    return row


def setting_column(key: str) -> str:
    return f"{key} (setting)" if key in (*OF_SUMMARY, *OF_RUN) else key


def runs_csv(runs: Sequence[Run], comparison: Comparison) -> str:
    """The settings that differ, what was trained on, and the figures of each run."""
    frame = runs_frame(runs, comparison)
    keys = [*comparison.differing, "seed"]
    for key in keys:
        frame[setting_column(key)] = [text(one.get(key)) for one in comparison.settings]
    figures = [name for name in frame if name.startswith(("base_", "final_"))]
    shown = ["folder", "status", "group", *map(setting_column, keys), *OF_SUMMARY, *figures]
    return as_csv(frame[shown].reset_index())


def as_csv(frame: pd.DataFrame) -> str:
    """CSV that a spreadsheet shows and does not compute: text that looks like a formula gets an apostrophe."""
    safe = frame.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell)
    return str(safe.to_csv(index=False, lineterminator="\n"))


def groups_tex(runs: Sequence[Run], comparison: Comparison) -> str:
    r"""The groups as a LaTeX tabular (needs \usepackage{booktabs}), in percent with 95 % intervals."""
    figures = [("base", "pass@1"), *(("final", name) for name in measures(runs))]
    rows = []
    for label, members in comparison.groups.items():
        settings = comparison.settings[members[0]]
        keys = {key: text(settings.get(key)) for key in comparison.keys} or {"run": label}
        rows.append({**keys, "runs": len(members)} | printed([runs[i] for i in members], figures))
    frame = pd.DataFrame(rows)
    frame.columns = frame.columns.str.removeprefix("final ")
    form = "l" * len(comparison.keys or ["run"]) + "r" * (1 + len(figures))
    tex = frame.to_latex(index=False, escape=True, column_format=form)
    for character, shown in (("<", r"\textless{}"), (">", r"\textgreater{}"), ("–", "--")):
        tex = tex.replace(character, shown)
    return f"% Percent (mean_reward as it is); 95 % intervals over a group's runs and the test problems.\n{tex}"


def printed(runs: Sequence[Run], figures: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Figures (part, name) of runs by their titles, as people read them."""
    found = {f"{part} {name}": (name, estimate(runs, name, part)) for part, name in figures}
    return {title: as_printed(each, name) if each else "–" for title, (name, each) in found.items()}
