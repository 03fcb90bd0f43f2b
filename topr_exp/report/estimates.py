"""What a group of runs scored before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topr_exp.evaluation.intervals import Interval, t_interval
from topr_exp.report.runs import Run

REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with a t interval; of a single run it is over problems."""
    values = [value for run in runs if (value := run.figure(part, name)) is not None]
    if not values:
        return None
    if len(set(values)) > 1:
        return t_interval(values, share=name != REWARD)
    # One run, or the same completions in all of them, as the base's are.
    run = next(run for run in runs if run.figure(part, name) is not None)
    curve, _, k = name.partition("@")
    low, high = (run.figure(part, f"{curve}@k", k, end) for end in ("low", "high"))
    if low is not None and high is not None:
        return Interval(values[0], low, high)
    error = run.figure(part, f"{name}_se")
    if error is not None:
        return Interval(values[0], values[0] - 1.96 * error, values[0] + 1.96 * error)
    return Interval(values[0])


def plotted(runs: Sequence[Run], name: str) -> Interval | None:
    """A final figure as plots show it: of two runs with their range, as curves are."""
    found = estimate(runs, name)
    if found is None or found.seeds != 2:
        return found
    values = [value for run in runs if (value := run.figure("final", name)) is not None]
    return replace(found, low=min(values), high=max(values))


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
    names = {
        name
        for run in runs
        for name in run.summary.get("final", run.summary.get("base", {}))
        if name.startswith("maj@")
    }
    ks = sorted(int(name[4:]) for name in names if name[4:].isdigit())
    return f"maj@{ks[-1]}" if ks else None
