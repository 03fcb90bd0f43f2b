"""Who ended best, by how much, and how sure that is: what the report says first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import REWARD, estimate
from topr_exp.report.groups import Comparison
from topr_exp.report.results import gold_answers, record
from topr_exp.report.runs import Run
from topr_exp.report.selection import Runs, difference, gain
from topr_exp.runs.console import plural
from topr_exp.types import TOPRError

MOST = 5  # groups that the sentence names
Row = dict[str, str | int]  # by the titles of the columns


def ranking(groups: Mapping[str, Sequence[Run]], runs: Sequence[Run], comparison: Comparison) -> tuple[str, list[Row]]:
    """Say who ended best and tabulate final pass@1, groups best first; of a single group base and trained model.

    groups: label -> runs. Unfinished runs are left out; without finished ones there are no rows.
    """
    number = {run.path: draw for run, draw in zip(runs, comparison.draws, strict=True)}
    done = {label: [run for run in members if run.status == "done"] for label, members in groups.items()}
    done = {label: members for label, members in done.items() if members}
    if not done:
        return "No run has finished yet.", []
    if len(done) == 1:
        return before_and_after(next(iter(done.values())), number)
    best = next(iter(done))
    differences = {label: to_best(done[best], members, number) for label, members in done.items() if label != best}
    lines = [("group", label, members, "final", differences.get(label)) for label, members in done.items()]
    return verdict(best, done, differences), rows(lines, best)


def rows(lines: Sequence[tuple[str, str, Sequence[Run], str, Interval | None]], reference: str) -> list[Row]:
    """The table of lines (title, name, runs, part, difference to the reference)."""
    found: list[Row] = []
    for title, name, runs, part, minus in lines:
        mean, reward = (estimate(runs, figure, part) for figure in ("pass@1", REWARD))
        rewards = {"mean reward": reward.plain()} if reward is not None else {}
        row: Row = {title: name, "runs": len(runs), "pass@1 %": mean.percent() if mean is not None else "–"}
        compared = {f"minus {reference}": minus.percent(sign=True), "over": minus.over} if minus is not None else {}
        found.append({**row, **rewards, **compared})
    return found


def to_best(best: Sequence[Run], runs: Sequence[Run], number: Mapping[Path, int]) -> Interval | None:
    """A group's final pass@1 minus the best one's, paired by seed and problem; None where that is not known.

    So it is for runs without a seed in common, tested on different problems, or whose verdicts are gone.
    """
    try:
        if len({str(gold_answers(run)) for run in (*best, *runs)}) > 1:
            return None
        pair = [Runs([record(run, number[run.path]) for run in members]) for members in (best, runs)]
    except TOPRError:
        return None
    return difference(pair[0], pair[1])


def verdict(best: str, groups: Mapping[str, Sequence[Run]], differences: Mapping[str, Interval | None]) -> str:
    """Who ended best, and which of the others that is not sure of."""
    found = estimate(groups[best], "pass@1")
    if found is None:
        return "No finished run has been evaluated."
    known = {label: each for label, each in differences.items() if each is not None and not math.isnan(each.high)}
    ended = f"{found.percent()} % pass@1 ({plural(len(groups[best]), 'run')})"
    if not known:
        return f"{best} has the highest number, {ended}, but no other shares a seed, the test and its verdicts with it."
    said = f"{best} ended best: {ended}."
    close = [label for label, each in known.items() if each.high >= 0]
    if unknown := [label for label in differences if label not in known]:
        said += f" Not compared, for want of a common seed, test or verdicts: {listed(unknown, len(differences))}."
    if close:
        said += f" Not told apart from it: {listed(close, len(differences))}."
    if len(known) > len(close):
        which = "The others" if close or unknown else "All others"
        said += f" {which} ended below it, each beyond its own 95 % interval."
    if any(each.seeds < 2 for each in known.values()):
        said += " Where one seed is compared, nothing is said of other seeds."
    return said


def listed(labels: Sequence[str], others: int) -> str:
    """Some of the other groups by name, a long list cut short."""
    if len(labels) == others > 1:
        return "all others"
    more = [f"{len(labels) - MOST} more"] if len(labels) > MOST else []
    return "; ".join([*labels[:MOST], *more])


def before_and_after(runs: Sequence[Run], number: Mapping[Path, int]) -> tuple[str, list[Row]]:
    """Base and trained model of runs that differ in seeds alone."""
    try:
        records = [record(run, number[run.path]) | record(run, number[run.path], "base") for run in runs]
        gained: Interval | None = gain(Runs(records))
    except TOPRError:  # the verdicts are gone
        gained = None
    found = rows([("model", "base", runs, "base", None), ("model", "trained", runs, "final", gained)], "base")
    before, after = (estimate(runs, "pass@1", part) for part in ("base", "final"))
    if before is None or after is None:
        return "The run has not been evaluated.", found
    said = f"pass@1 went from {before.percent()} % to {after.percent()} % ({plural(len(runs), 'run')})"
    said += f", by {gained.percent(sign=True)} points." if gained is not None else "."
    if len(runs) == 1:
        said += " The intervals are over test problems; one run says nothing of other seeds."
    return said, found
