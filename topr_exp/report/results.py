"""Evaluations of a run, problem by problem: as records that groups are compared by, small enough to be committed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from topr_exp.evaluation.draws import INVALID
from topr_exp.evaluation.intervals import Interval
from topr_exp.evaluation.statistics import headline_k, measure
from topr_exp.report.runs import Run
from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import number
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

SHARES = ("pass@1", *VERDICTS)
DIGITS = 6  # of what is written; a second machine has to agree in all of them


def record(run: Run, part: str = "final", figure: str = "pass@1") -> Record:
    """The part (base, final) of a run that `Runs` needs for a figure, with its draw as the seed; read once."""
    if not run.evaluations:
        raise TOPRError(f"{run.name}: there is no evaluation of it")
    evaluation = run.evaluations[0 if part == "base" else -1]
    found: Record = evaluation.get("tested", {})
    if not found or (figure == "maj" and "maj" not in found["of_problems"]):
        with readable(run):
            found = results(run, {**evaluation, "verdicts": verdicts(run, evaluation)}, votes=figure == "maj")
            share, vote = measured(evaluation, "pass@1"), measured(evaluation, f"maj@{found['k']}")
        evaluation["tested"] = found = found | {"intervals": {"pass@1": share, "correct": share, "maj": vote}}
    return {"settings": {"seed": run.draw}, part: found}


def measured(evaluation: Record, name: str) -> Interval | None:
    """A figure as its run measured it, with its interval over problems (else 1.96 standard errors); None without it."""
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
    """Find the verdicts of an evaluation, in the run's store or the shared one, wherever these are now."""
    name = Path(evaluation.get("verdicts", "")).name
    places = [folder / "store" / "verdicts" / name for folder in (run.path, run.path.resolve().parents[1])]
    found = next((place for place in places if name and place.exists()), None)
    if found is None:
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone (neither {places[0]} nor {places[1]})")
    return found


def gold_answers(run: Run) -> str:
    """The answers to the problems that a run was tested on last, in one text."""
    with readable(run):
        place = verdicts(run, run.evaluations[-1])
        return str(Store(place.parent.parent).open(place).key["golds"])


@contextmanager
def readable(run: Run) -> Iterator[None]:
    """Make one TOPRError of whatever damaged settings, evaluations or verdicts lead to."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, OSError) as error:
        raise TOPRError(f"{run.name}: its verdicts can't be read ({' '.join(str(error).split())[:100]})") from error


def results(run: Run, record: Record, *, votes: bool = True) -> Record:
    """An evaluation's shares, and of each problem the correct and invalid completions and (votes) maj@K."""
    asked = run.config.get("task", {}).get("test_solutions")
    solutions = 1 if asked is None else int(asked)  # that a verifier reads of each
    if missing := [name for name in SHARES if number(record.get(name)) is None]:
        raise TOPRError(f"{run.name}: its evaluation has no {missing[0]}")
    place = Path(record["verdicts"])
    table = Store(place.parent.parent).open(place)
    columns, problems = table.read(["verdict", "class"]), len(table.key["golds"])
    if len(columns) % problems or solutions < 1 or problems % solutions:
        raise TOPRError(f"{run.name}: {place} does not hold the same number of verdicts on each of its problems")
    codes = np.array([VERDICTS.index(name) for name in columns["verdict"].to_pylist()], np.int8).reshape(problems, -1)
    n, k = codes.shape[1], headline_k(codes.shape[1])
    counts = {"correct": packed(np.sum(codes == 0, axis=1)), "invalid": packed(np.sum(codes == INVALID, axis=1))}
    if votes:
        majority = measure(codes, columns["class"].to_numpy().reshape(-1, n)).maj_at[k]
        counts["maj"] = packed(np.rint(1000 * majority).astype(int))  # per mille
    found = {name: rounded(record[name]) for name in SHARES} | {"n": n, "k": k, "of_problems": counts}
    return found if asked is None else {**found, "solutions": solutions}


def packed(counts: Iterable[int]) -> str:
    """Whole numbers in one string, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def unpacked(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)


def rounded(value: float | None) -> float | None:
    """To DIGITS significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
