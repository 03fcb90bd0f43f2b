"""Scores of a group of runs before and after training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from topr_exp.evaluation.intervals import Interval, t_interval
from topr_exp.report.results import measured, record
from topr_exp.report.runs import Run
from topr_exp.report.selection import Runs
from topr_exp.types import TOPRError

REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with its interval, wherever one is shown.

    It is over seeds and problems where the verdicts are there, else over seeds alone; of a single run, or the same
    completions in all as the base's are, over problems. Final figures are of finished runs, as long as there are none
    of those that got furthest.
    """
    furthest = max(map(progress, runs), default=None)
    known = [
        run for run in runs if run.figure(part, name) is not None and (part == "base" or progress(run) == furthest)
    ]
    if not known:
        return None
    values = [float(run.summary[part][name]) for run in known]
    if len({Path(str(run.summary[part].get("verdicts", run.path))).name for run in known}) == 1:
        own = measured(known[0].summary[part], name)
        if own is not None and not math.isnan(own.low):
            return own
        known = known[:1]
    figure = "maj" if name.startswith("maj@") else name
    if name != REWARD:
        try:
            return Runs([record(run, part=part, figure=figure) for run in known]).interval(figure, part)
        except TOPRError:  # the verdicts are gone
            pass
    if len(set(values)) > 1:
        return t_interval(values, share=name != REWARD)
    return measured(known[0].summary[part], name) or Interval(values[0])


def progress(run: Run) -> tuple[bool, int]:
    """Describe a run's progress: finished, else after how many evaluations."""
    return (True, 0) if run.status == "done" else (False, len(run.evaluations))


def reward_name(runs: Sequence[Run]) -> str | None:
    """REWARD, where one of these runs has it."""
    return REWARD if any(run.figure(part, REWARD) is not None for run in runs for part in ("base", "final")) else None


def as_printed(found: Interval, name: str) -> str:
    """A figure for people: shares in percent."""
    return found.plain() if name == REWARD else found.percent()


def pass_at_1(runs: Sequence[Run]) -> float:
    """The final pass@1 to order groups by; below all others where there is none."""
    found = estimate(runs, "pass@1")
    return found.value if found is not None else -1.0


def majority_name(runs: Sequence[Run]) -> str | None:
    """The headline maj@K of these runs: the one with the largest K up to 8."""
    names = {name for run in runs for name in run.summary.get("final", run.summary.get("base", {}))}
    ks = [int(name[4:]) for name in names if name.startswith("maj@") and name[4:].isdigit()]
    return f"maj@{max(ks)}" if ks else None
