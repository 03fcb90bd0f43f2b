"""Tables of runs and groups: as data frames, CSV, LaTeX, and rows for people."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import Groups, estimate, estimate_text, headlines
from topr_exp.report.grouping import RunGroups, value_text
from topr_exp.report.reader import TRUNCATED_SHARES, Run, was_truncated
from topr_exp.types import VERDICTS

Row = dict[str, Any]  # by title of a column

SUMMARY_COLUMNS = ("baseline", "effective_positive", "positive_share", "n_train", "truncated_share")
RUN_COLUMNS = ("run", "folder", "status", "notes", "group", "updates", "seconds")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of text that a spreadsheet would compute, unless it is a number
INFINITIES = {".inf": math.inf, "-.inf": -math.inf}  # settings of losses, which config.json has as text
LATEX = {"<": r"\textless{}", ">": r"\textgreater{}", "–": "--", "p̃": r"$\tilde{p}$"}


# ---- data frames


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Tabulate runs, one a row, as `topr_exp.read_runs` names the columns."""
    names = [*headlines(runs), *VERDICTS]
    rows = []
    for run in runs:
        row: Row = {
            "run": run.name,
            "folder": str(run.path),
            "status": run.status,
            "notes": run.notes,
            "group": run.group,
        }
        for key, value in run.settings.items():
            is_name_in_use = key in SUMMARY_COLUMNS or key in RUN_COLUMNS
            column = f"{key} (setting)" if is_name_in_use else key
            if isinstance(value, str):
                value = INFINITIES.get(value, value)
            row[column] = value
        for name in SUMMARY_COLUMNS:
            row[name] = number_or_nan(run.summary_number(name))
        row["updates"] = run.update_count
        row["seconds"] = total_seconds(run)
        for stage in ("base", "final"):
            row[f"{stage}_truncated_share"] = number_or_nan(run.summary_number(stage, "truncated_share"))
        rows.append(row | estimate_columns([run], names))
    return pd.DataFrame(rows).set_index("run")


def number_or_nan(number: float | None) -> float:
    """A number for a column, which without any numbers is one of floats all the same."""
    return number if number is not None else math.nan


def total_seconds(run: Run) -> float:
    """The time of all stages; NaN where the summary has none."""
    seconds_by_stage: dict[str, float] = run.summary.get("seconds", {})
    if not seconds_by_stage:
        return math.nan
    return sum(seconds_by_stage.values(), 0.0)


def groups_frame(run_groups: RunGroups) -> pd.DataFrame:
    """Tabulate groups, one a row: means over its runs with 95 % intervals, and what the intervals are over.

    Final figures are over the finished ones alone.
    """
    names = [*headlines(run_groups.runs), *VERDICTS]
    rows = []
    for label, runs in run_groups.groups.items():
        row: Row = {"group": label}
        for key in run_groups.keys:
            row[key] = value_text(runs[0].settings.get(key))
        row["runs"] = len(runs)
        row["finished"] = finished_count(runs)
        rows.append(row | estimate_columns(runs, names))
    return pd.DataFrame(rows).set_index("group")


def finished_count(runs: Sequence[Run]) -> int:
    return sum(run.is_done for run in runs)


def estimate_columns(runs: Sequence[Run], names: Sequence[str]) -> Row:
    columns: Row = {}
    for stage in ("base", "final"):
        for name in names:
            interval = estimate(runs, name, stage)
            columns |= interval_columns(f"{stage}_{name}", interval)
    return columns


def interval_columns(name: str, interval: Interval | None) -> Row:
    """Columns NAME, NAME_low, NAME_high and NAME_interval_over; NaN, the last None, where there is no number."""
    bounds = interval or Interval(math.nan)
    return {
        name: bounds.value,
        f"{name}_low": bounds.low,
        f"{name}_high": bounds.high,
        f"{name}_interval_over": interval.over if interval is not None else None,
    }


def as_csv(frame: pd.DataFrame) -> str:
    """CSV that a spreadsheet shows and does not compute: text that looks like a formula gets an apostrophe."""
    table = frame.reset_index()
    table = table.map(without_formula).rename(columns=without_formula)
    return str(table.to_csv(index=False, lineterminator="\n"))


def without_formula(cell: Any) -> Any:
    """A cell or title unchanged, but for text that a spreadsheet would compute."""
    with suppress(TypeError, ValueError):
        float(cell)
        return cell  # a number, or its text: -0.5 begins as a formula does
    if str(cell).startswith(FORMULA_STARTS):
        return f"'{cell}"
    return cell


def groups_tex(run_groups: RunGroups) -> str:
    r"""The groups as a LaTeX tabular (needs \usepackage{booktabs}), in percent with 95 % intervals."""
    rows = group_rows(run_groups, run_groups.groups)
    latex = pd.DataFrame(rows).to_latex(index=False, escape=True)
    for character, command in LATEX.items():
        latex = latex.replace(character, command)
    return f"% Percent (mean_reward as it is); 95 % intervals over a group's runs and the test problems.\n{latex}"


# ---- rows for people: shares in percent


def group_rows(run_groups: RunGroups, groups: Groups) -> list[Row]:
    rows = []
    for label, runs in groups.items():
        size: int | str = len(runs)
        finished = finished_count(runs)
        if 0 < finished < len(runs):  # the final figures are of these alone
            size = f"{finished} of {len(runs)}"
        rows.append({"group": label, "runs": size, **score_columns(run_groups, runs)})
    return rows


def run_rows(run_groups: RunGroups) -> list[Row]:
    rows = []
    for run in run_groups.runs:
        row: Row = {"run": run.name, "status": run.status, "updates": run.update_count}
        for key in (*run_groups.keys, "seed"):
            row[key] = value_text(run.settings.get(key))
        row |= score_columns(run_groups, [run])
        rows.append(row)
    return rows


def score_columns(run_groups: RunGroups, runs: Sequence[Run]) -> Row:
    """Estimates of runs after and before training by their titles."""
    names = [*headlines(run_groups.runs), "invalid"]
    columns: Row = {}
    for stage in ("final", "base"):
        for name in names:
            columns[f"{stage} {name}"] = estimate_text(runs, name, stage)
    if any(map(was_truncated, run_groups.runs)):
        for title, path in TRUNCATED_SHARES.items():
            columns[title] = mean_share_text(runs, *path)
    return columns


def mean_share_text(runs: Sequence[Run], *path: str) -> str:
    """The mean of a share of the summaries, in percent."""
    shares = []
    for run in runs:
        share = run.summary_number(*path)
        if share is not None:
            shares.append(share)
    if not shares:
        return "–"
    percent = 100 * sum(shares) / len(shares)
    return f"{percent:.1f}"
