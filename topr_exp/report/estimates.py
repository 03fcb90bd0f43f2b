"""Figures of groups of runs with 95 % intervals, and differences between groups."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from topr_exp.evaluation.intervals import Interval, clopper_pearson, t_interval
from topr_exp.report.reader import Run
from topr_exp.report.repetitions import difference, gold_answers, read_repetitions
from topr_exp.runs.records import Record, is_count
from topr_exp.runtime.json_files import DAMAGE, as_number
from topr_exp.types import TOPRError

REWARD = "mean_reward"  # of an evaluation whose rewards are graded; no share
Groups = Mapping[str, Sequence[Run]]  # label -> repetitions
Differences = dict[str, Interval | str]  # label -> difference to another group, or the reason for having none
NO_FIGURE = -1.0  # sorts groups without a figure last


def finished_only(groups: Groups) -> dict[str, list[Run]]:
    """The finished runs of each group that has any."""
    finished_groups = {}
    for label, runs in groups.items():
        finished_runs = [run for run in runs if run.is_done]
        if finished_runs:
            finished_groups[label] = finished_runs
    return finished_groups


def estimate(runs: Sequence[Run], name: str, stage: str = "final") -> Interval | None:
    """Estimate the mean of a share, or of REWARD, over repetitions; final figures are of finished runs.

    Over seeds and problems; over seeds where verdicts are missing; over problems for one run or equal completions.
    """
    measured_runs = []
    for run in runs:
        is_stage_over = stage == "base" or run.is_done
        if is_stage_over and run.summary_number(stage, name) is not None:
            measured_runs.append(run)
    if not measured_runs:
        return None
    first_run = measured_runs[0]
    first_interval = interval_of_evaluation(first_run.summary[stage], name)
    if have_same_completions(measured_runs, stage):
        if not math.isnan(first_interval.low):
            return first_interval
        measured_runs = [first_run]  # whose verdicts give the interval that its evaluation lacks
    if name != REWARD:
        with contextlib.suppress(TOPRError):  # the verdicts are gone
            repetitions = read_repetitions(measured_runs, stage)
            return repetitions.interval(name, stage)
    values = [run.summary[stage][name] for run in measured_runs]
    if len(set(values)) == 1:  # no spread to make an interval of
        return first_interval
    return t_interval(values, share=name != REWARD)


def have_same_completions(runs: Sequence[Run], stage: str) -> bool:
    """Return True for a single run and for runs that were scored on the same completions, as a sweep's bases."""
    table_names = set()
    for run in runs:
        table = run.summary[stage].get("verdicts", run.path)
        table_names.add(Path(str(table)).name)
    return len(table_names) == 1


def interval_of_evaluation(evaluation: Record, name: str) -> Interval:
    """A figure of one evaluation with its interval over problems, else ± 1.96 standard errors."""
    value = float(evaluation[name])
    if name == "correct":  # whose interval is that of pass@1
        name = "pass@1"
    if value in (0, 1) and name != REWARD:  # where a standard error is 0
        # Problems that were made from one source are one case.
        independent_cases = evaluation.get("sources", evaluation.get("problems"))
        if is_count(independent_cases) and independent_cases > 0:
            interval = clopper_pearson(int(value) * independent_cases, independent_cases)
            return replace(interval, seeds=1, problems=True)
    bounds = bounds_at_k(evaluation, name)
    if bounds is not None:
        low, high = bounds
        return Interval(value, low, high)
    error = as_number(evaluation.get(f"{name}_se"))
    if error is None:
        return Interval(value)
    half_width = 1.96 * error
    return Interval(value, value - half_width, value + half_width)


def bounds_at_k(evaluation: Record, name: str) -> tuple[float, float] | None:
    """The interval of pass@K or maj@K over problems; None where it is not stored, and for other figures."""
    statistic, _, k = name.partition("@")  # maj@8 is the point 8 of maj@k
    with contextlib.suppress(*DAMAGE):
        point = evaluation[f"{statistic}@k"][k]
        low = as_number(point["low"])
        high = as_number(point["high"])
        if low is not None and high is not None:
            return low, high
    return None


def headlines(runs: Sequence[Run]) -> list[str]:
    """Name the figures that describe these runs: pass@1, the mean reward where there is one, maj@K of the largest K."""
    names: set[str] = set()
    for run in runs:
        base = run.summary.get("base", {})
        last_evaluation = run.summary.get("final", base)
        names |= last_evaluation.keys()
    headline_names = ["pass@1"]
    if REWARD in names:
        headline_names.append(REWARD)
    ks = [int(name.removeprefix("maj@")) for name in names if re.fullmatch(r"maj@\d+", name)]
    if ks:
        headline_names.append(f"maj@{max(ks)}")
    return headline_names


def estimate_text(runs: Sequence[Run], name: str, stage: str = "final") -> str:
    """An estimate for people: shares in percent."""
    interval = estimate(runs, name, stage)
    if interval is None:
        return "–"
    if name == REWARD:
        return interval.to_text(".3g")
    return interval.percent()


def mean_values(groups: Groups, name: str) -> dict[str, float]:
    """The mean final figure of each group; NO_FIGURE where it has none."""
    means = {}
    for label, runs in groups.items():
        interval = estimate(runs, name)
        means[label] = interval.value if interval is not None else NO_FIGURE
    return means


def best_first(groups: Groups) -> Groups:
    """Order groups by their final pass@1, those without one last."""
    means = mean_values(groups, "pass@1")
    labels = sorted(groups, key=lambda label: -means[label])
    return {label: groups[label] for label in labels}


# ---- differences between groups


def difference_between(runs: Sequence[Run], reference: Sequence[Run], name: str) -> Interval | str:
    """Estimate the final figure of runs minus that of others, paired by seed and problem; else say why not."""
    try:
        reason = why_incomparable([*reference, *runs], name)
        if reason:
            return reason
        reference_repetitions = read_repetitions(reference, "final")
        repetitions = read_repetitions(runs, "final")
    except TOPRError as error:
        return str(error)
    return difference(reference_repetitions, repetitions, name) or "no seed in common"


def why_incomparable(runs: Sequence[Run], name: str) -> str:
    """The reason why the final figures of runs can't be paired by problem, or ""; TOPRError if verdicts are gone."""
    if any(run.summary_number("final", name) is None for run in runs):
        return f"no {name} of both"
    if len(set(map(gold_answers, runs))) > 1:
        return "other test problems"
    return ""


def differences(groups: Groups, references: Mapping[str, str | None], name: str) -> Differences:
    """Compare each group with its reference (None: it has none); a group that is its own is left out."""
    intervals: Differences = {}
    for label, runs in groups.items():
        reference = references[label]
        if reference is None:
            intervals[label] = "nothing to compare with"
        elif reference != label:
            intervals[label] = difference_between(runs, groups[reference], name)
    return intervals


def comparison_rows(groups: Groups, to_references: Differences, *, reference: str, name: str) -> list[dict[str, str]]:
    """Tabulate for each group of finished runs its figure and its difference to the reference.

    to_references: as `differences` returns; empty for a single group, whose rows have no difference. reference: the
    word of a column's title.
    """
    rows = []
    for label, runs in groups.items():
        interval = estimate(runs, name)
        row = {
            f"{name}, %": label,
            "runs": str(len(runs)),
            "mean": estimate_text(runs, name),
            "over": interval.over if interval is not None else "",
        }
        if to_references:
            row |= difference_cells(to_references.get(label, ""), reference)
        rows.append(row)
    return rows


def difference_cells(to_reference: Interval | str, reference: str) -> dict[str, str]:
    """Format a difference to the reference, or the reason for having none, as the last two columns of a row."""
    if isinstance(to_reference, Interval):
        return {f"minus {reference}": to_reference.percent(sign=True), "paired over": to_reference.over}
    return {f"minus {reference}": to_reference, "paired over": ""}
