"""Runs as records of what each test problem's completions were, so that groups are compared problem by problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topr_exp.report.groups import Comparison
from topr_exp.report.results import results
from topr_exp.report.runs import Run
from topr_exp.runs.records import Record
from topr_exp.store import Store
from topr_exp.types import TOPRError

SEEDS = ("seed", "sampler.seed", "data.seed")  # two runs are paired where all of these agree


def draws(comparison: Comparison) -> list[int]:
    """A number for the seeds of each run, the same where all of them are."""
    found = [tuple(str(settings.get(key)) for key in SEEDS) for settings in comparison.settings]
    numbers = {draw: number for number, draw in enumerate(sorted(set(found)))}
    return [numbers[draw] for draw in found]


def record(run: Run, draw: int) -> Any:
    """What `Runs` needs of a finished run; draw: a number for its seeds."""
    return {"settings": {"seed": draw}, "final": of_test(run, evaluations(run)[-1])}


def evaluations(run: Run) -> list[Record]:
    """What was measured on the whole test set, the base first; TOPRError where there is nothing."""
    if not run.evaluations:
        raise TOPRError(f"{run.name}: there is no evaluation of it")
    return run.evaluations


def of_test(run: Run, evaluation: Record) -> Record:
    """An evaluation of a run, problem by problem."""
    return results(run, {**evaluation, "verdicts": verdicts(run, evaluation)})


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
    place = verdicts(run, evaluations(run)[-1])
    return Store(place.parent.parent).open(place).key["golds"]
