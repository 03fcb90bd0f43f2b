"""Evaluations of runs, problem by problem, small enough to be committed; intervals over seeds and problems at once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.intervals import Interval, crossed_interval
from topr_exp.evaluation.statistics import INVALID, headline_k, measure
from topr_exp.report.runs import DAMAGE, Run
from topr_exp.runs.records import Record
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

Matrix = NDArray[np.float64]  # [seeds, problems]


class Runs(list[Record]):
    """Records, by seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(sorted(records, key=lambda record: int(record["settings"]["seed"])))

    @property
    def seeds(self) -> list[int]:
        return [int(record["settings"]["seed"]) for record in self]

    def values(self, name: str = "pass@1", part: str = "final") -> Matrix:
        """[seeds, problems] a share of each problem's completions: pass@1, invalid, or maj (the headline maj@K)."""
        return np.stack([of_problems(record[part], name) for record in self])

    def interval(self, name: str = "pass@1", part: str = "final") -> Interval:
        """Over seeds and problems."""
        return crossed_interval(self.values(name, part), share=True)


def of_problems(results: Record, name: str) -> NDArray[np.float64]:
    """A share of each problem's completions; of a verifier's, which reads several solutions to it, their mean.

    A verifier is asked of the first solutions to all problems, then of the second ones, and so on.
    """
    kinds = results["of_problems"]
    if name.startswith("maj"):
        shares = unpacked(kinds["maj"]) / 1000
    elif name == "incorrect":
        shares = (results["n"] - unpacked(kinds["correct"]) - unpacked(kinds["invalid"])) / results["n"]
    else:
        shares = unpacked(kinds[{"pass@1": "correct"}.get(name, name)]) / results["n"]
    return np.asarray(shares.reshape(results.get("solutions", 1), -1).mean(axis=0))


def contrast(combine: Callable[..., Matrix], *groups: Runs, name: str = "pass@1") -> Interval | None:
    """An interval of a combination of several groups' values, problem by problem, over the seeds that all have.

    combine: what is made of their [S, P] matrices, in order. None where they share no seed.
    """
    shared = sorted(set.intersection(*({*group.seeds} for group in groups))) if groups else []
    if not shared:
        return None
    paired = (Runs([group[group.seeds.index(seed)] for seed in shared]) for group in groups)
    return crossed_interval(combine(*(group.values(name) for group in paired)))


def difference(first: Runs, second: Runs, name: str = "pass@1") -> Interval | None:
    """second − first, paired by seed (which decides the training completions) and by problem."""
    return contrast(lambda a, b: b - a, first, second, name=name)


def gain(runs: Runs, name: str = "pass@1") -> Interval | None:
    """final − base."""
    return crossed_interval(runs.values(name) - runs.values(name, "base")) if len(runs) else None


def records(runs: Iterable[Run], *parts: str) -> Runs:
    """The parts (base, final) of some runs, with their draws as seeds. TOPRError where one can't be read."""
    found = []
    for run in runs:
        for part in set(parts) - run.tested.keys():
            with readable(run):
                evaluation = run.evaluations[0 if part == "base" else -1]
                run.tested[part] = results(run, {**evaluation, "verdicts": verdicts(run, evaluation)})
        found.append({"settings": {"seed": run.draw}, **{part: run.tested[part] for part in parts}})
    return Runs(found)


def verdicts(run: Run, evaluation: Record) -> Path:
    """Find the verdicts of an evaluation, in the run's store or the shared one, wherever these are now."""
    name = Path(evaluation.get("verdicts", "")).name
    places = [folder / "store" / "verdicts" / name for folder in (run.path, run.path.resolve().parents[1])]
    found = next((place for place in places if name and place.exists()), None)
    if found is None:
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone")
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
    except DAMAGE as error:
        raise TOPRError(f"{run.name}: its verdicts can't be read ({' '.join(str(error).split())[:100]})") from error


def results(run: Run, record: Record) -> Record:
    """Of each problem of an evaluation the correct and invalid completions, and maj@K."""
    asked = run.config.get("task", {}).get("test_solutions")
    solutions = 1 if asked is None else int(asked)  # that a verifier reads of each
    place = Path(record["verdicts"])
    table = Store(place.parent.parent).open(place)
    columns, problems = table.read(["verdict", "class"]), len(table.key["golds"])
    left_out = solutions > 1 and run.summary.get("too_long", {}).get("test")  # solutions of some problems
    if left_out or not len(columns) or len(columns) % problems or solutions < 1 or problems % solutions:
        raise TOPRError(f"{run.name}: {place} does not hold the same number of verdicts on each of its problems")
    codes = np.array([VERDICTS.index(name) for name in columns["verdict"].to_pylist()], np.int8).reshape(problems, -1)
    n, k = codes.shape[1], headline_k(codes.shape[1])
    _, majorities = measure(codes, columns["class"].to_numpy().reshape(-1, n))
    counts = {
        "correct": packed(np.sum(codes == 0, axis=1)),
        "invalid": packed(np.sum(codes == INVALID, axis=1)),
        "maj": packed(np.rint(1000 * majorities[k]).astype(int)),  # per mille
    }
    found = {"n": n, "k": k, "of_problems": counts}
    return found if asked is None else {**found, "solutions": solutions}


def packed(counts: Iterable[int]) -> str:
    """Whole numbers in one string, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def unpacked(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)
