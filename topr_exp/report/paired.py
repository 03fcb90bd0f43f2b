"""Runs as records of what each test problem's completions were, so that groups are compared problem by problem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.curves import number
from topr_exp.report.results import results
from topr_exp.report.runs import Run
from topr_exp.runs.records import Record
from topr_exp.store import Store
from topr_exp.types import TOPRError


def record(run: Run, draw: int = 0, part: str = "final", figure: str = "pass@1") -> Record:
    """The part (base, final) of a run that `Runs` needs for a figure; draw: a number for its seeds."""
    return {"settings": {"seed": draw}, part: of_test(run, evaluations(run)[0 if part == "base" else -1], figure)}


def evaluations(run: Run) -> list[Record]:
    """What was measured on the whole test set, the base first; TOPRError where there is nothing."""
    if not run.evaluations:
        raise TOPRError(f"{run.name}: there is no evaluation of it")
    return run.evaluations


def of_test(run: Run, evaluation: Record, figure: str = "pass@1") -> Record:
    """An evaluation of a run, problem by problem, with the intervals that it has by itself; read once."""
    found: Record = evaluation.get("tested", {})
    if not found or (figure == "maj" and "maj" not in found["of_problems"]):
        with readable(run):
            found = results(run, {**evaluation, "verdicts": verdicts(run, evaluation)}, votes=figure == "maj")
            share, vote = measured(evaluation, "pass@1"), measured(evaluation, f"maj@{found['k']}")
            evaluation["tested"] = found = found | {"intervals": {"pass@1": share, "correct": share, "maj": vote}}
    return found


def measured(evaluation: Record, name: str) -> Interval | None:
    """A figure as its run measured it, with the interval over problems that it noted; None where it has no such figure.

    Without the ends of an interval, as of a mean reward, they are 1.96 standard errors away.
    """
    name = "pass@1" if name == "correct" else name
    value, error = number(evaluation.get(name)), number(evaluation.get(f"{name}_se"))
    if value is None:
        return None
    curve, _, k = name.partition("@")
    try:
        point = evaluation[f"{curve}@k"][k]
        low, high = number(point.get("low")), number(point.get("high"))
    except (LookupError, TypeError, AttributeError):
        low = high = None
    if low is not None and high is not None:
        return Interval(value, low, high)
    return Interval(value, value - 1.96 * error, value + 1.96 * error) if error is not None else Interval(value)


def verdicts(run: Run, evaluation: Record) -> Path:
    """Where the verdicts of an evaluation lie: in the run's own store or the shared one, wherever these are now."""
    name = Path(evaluation.get("verdicts", "")).name
    places = [folder / "store" / "verdicts" / name for folder in (run.path, run.path.resolve().parents[1])]
    found = next((place for place in places if name and place.exists()), None)
    if found is None:
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone (neither {places[0]} nor {places[1]})")
    return found


def gold_answers(run: Run) -> Any:
    """The answers to the problems that a run was tested on last."""
    with readable(run):
        place = verdicts(run, evaluations(run)[-1])
        return Store(place.parent.parent).open(place).key["golds"]


@contextmanager
def readable(run: Run) -> Iterator[None]:
    """Make one TOPRError of whatever damaged settings, evaluations or verdicts lead to."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, OSError) as error:
        raise TOPRError(f"{run.name}: its verdicts can't be read ({' '.join(str(error).split())[:100]})") from error
