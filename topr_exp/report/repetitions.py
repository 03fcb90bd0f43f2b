"""Repetitions of a run with other seeds, scored problem by problem; differences paired by seed and problem."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np

from topr_exp.evaluation.intervals import Interval, Values, crossed_interval
from topr_exp.evaluation.statistics import headline_k, measure
from topr_exp.report.reader import Run
from topr_exp.runs.records import Record
from topr_exp.runtime.json_files import DAMAGE
from topr_exp.runtime.terminal import one_line
from topr_exp.store import Store, Table
from topr_exp.types import CORRECT, INVALID, VERDICTS, ConfigError, TOPRError

MAJ_UNITS = 1000  # maj@K of a problem is stored as a whole number of these parts


class Repetitions(list[Record]):
    """Records of runs that differ in their seeds, in the order of these.

    A record has `settings` with a `seed`, and for each stage ("base", "final") what `problem_results` returns.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(sorted(records, key=lambda record: int(record["settings"]["seed"])))

    @property
    def seeds(self) -> list[int]:
        return [int(record["settings"]["seed"]) for record in self]

    def with_seeds(self, seeds: Sequence[int]) -> Self:
        """Select the records of these seeds, the first of each."""
        own_seeds = self.seeds
        records = [self[own_seeds.index(seed)] for seed in seeds]
        return type(self)(records)

    def values(self, name: str = "pass@1", stage: str = "final") -> Values:
        """Return a share of each problem's completions, [seeds, problems]: pass@1, incorrect, invalid or maj."""
        return np.stack([problem_shares(record[stage], name) for record in self])

    def interval(self, name: str = "pass@1", stage: str = "final") -> Interval:
        """The mean of a share with its 95 % interval over seeds and problems."""
        return crossed_interval(self.values(name, stage), share=True)


def problem_shares(results: Record, name: str) -> Values:
    """Return a share of each problem's completions, [problems]; of a verifier, the mean over the problem's solutions.

    A verifier reads the first solutions to all problems, then the second ones, and so on.
    """
    n = results["n"]
    counts = {key: counts_of(text) for key, text in results["of_problems"].items()}
    if name in ("maj", f"maj@{results.get('k')}"):
        shares = counts["maj"] / MAJ_UNITS
    elif name == "pass@1":
        shares = counts["correct"] / n
    elif name == "incorrect":
        shares = (n - counts["correct"] - counts["invalid"]) / n
    elif name in counts:
        shares = counts[name] / n
    else:
        raise ConfigError(f"{name}: expected pass@1, correct, incorrect, invalid, maj or maj@{results.get('k')}")
    solutions = results.get("solutions", 1)
    shares_by_solution = shares.reshape(solutions, -1)  # [solutions, problems]
    return np.asarray(shares_by_solution.mean(axis=0))


# ---- paired estimates


def contrast(combine: Callable[..., Values], *groups: Repetitions, name: str = "pass@1") -> Interval | None:
    """Estimate a combination of groups' shares, problem by problem, over the seeds that all groups have.

    combine: maps the groups' values, [seeds, problems] each, to one such array. None where no seed is shared.
    TOPRError for groups whose runs were tested on other problems.
    """
    test_sets = set()
    for record in chain.from_iterable(groups):
        test_answers = record["final"].get("test_answers")
        if test_answers is not None:
            test_sets.add(test_answers)
    if len(test_sets) > 1:
        raise TOPRError("other test problems: these groups can't be paired by problem")
    seeds = shared_seeds(groups)
    if not seeds:
        return None
    values = [group.with_seeds(seeds).values(name) for group in groups]
    return crossed_interval(combine(*values))


def shared_seeds(groups: Iterable[Repetitions]) -> list[int]:
    """The seeds that all groups have, in order; none where there are no groups."""
    seed_sets = [set(group.seeds) for group in groups]
    if not seed_sets:
        return []
    return sorted(set.intersection(*seed_sets))


def difference(reference: Repetitions, group: Repetitions, name: str = "pass@1") -> Interval | None:
    """Estimate group − reference, paired by seed and problem; None where they share no seed."""
    return contrast(lambda first, second: second - first, reference, group, name=name)


def gain(group: Repetitions, name: str = "pass@1") -> Interval | None:
    """Estimate final − base; None without records."""
    if not group:
        return None
    return crossed_interval(group.values(name) - group.values(name, "base"))


# ---- from run folders


def read_repetitions(runs: Iterable[Run], *stages: str) -> Repetitions:
    """Read what runs scored on each problem in some stages ("base", "final"), with the indices of their seeds as seeds.

    `test_answers` of a stage, a hash of the gold answers, is the same where the test problems are.
    TOPRError where the verdicts of an evaluation are gone or damaged.
    """
    records = []
    for run in runs:
        record: Record = {"settings": {"seed": run.seed_index}}
        for stage in stages:
            if stage not in run.problem_results:
                run.problem_results[stage] = read_stage(run, stage)
            record[stage] = run.problem_results[stage]
        records.append(record)
    return Repetitions(records)


def read_stage(run: Run, stage: str) -> Record:
    """Read the `problem_results` of a run's first or last evaluation, wherever its verdicts are now."""
    position = 0 if stage == "base" else -1
    with damage_as_error(run):
        results = problem_results(run, run.evaluations[position])
        golds_hash = hashlib.sha256(gold_answers(run, position).encode()).hexdigest()
        return {**results, "test_answers": golds_hash}


def problem_results(run: Run, evaluation: Record) -> Record:
    """Count the correct and invalid completions of each problem of one of `run.evaluations`, and score its maj@K.

    Returns n and k, completions a problem and those that vote; `of_problems`, counts in the order of the problems as
    one text each (maj in thousandths); `solutions`, where a verifier read several to a problem. TOPRError where the
    verdicts are not equally many for each problem.
    """
    table = open_verdicts(run, evaluation)
    columns = table.read(["verdict", "class"])
    problem_count = len(table.key["golds"])
    test_solutions = run.config.get("task", {}).get("test_solutions")  # that a verifier reads of each problem
    solutions = int(test_solutions) if test_solutions is not None else 1
    if not are_verdicts_equally_many(run, len(columns), problem_count=problem_count, solutions=solutions):
        raise TOPRError(f"{run.name}: {table.folder} does not hold the same number of verdicts on each of its problems")

    codes = np.array([VERDICTS.index(name) for name in columns["verdict"].to_pylist()])
    verdicts = codes.reshape(problem_count, -1)  # [problems, n]
    classes = columns["class"].to_numpy().reshape(problem_count, -1)
    n = verdicts.shape[1]
    k = headline_k(n)
    correct_counts = np.sum(verdicts == CORRECT, axis=1)
    invalid_counts = np.sum(verdicts == INVALID, axis=1)
    majority_scores = measure(verdicts, classes, [k]).maj_at[k]
    results: Record = {
        "n": n,
        "k": k,
        "of_problems": {
            "correct": counts_as_text(correct_counts),
            "invalid": counts_as_text(invalid_counts),
            "maj": counts_as_text(np.rint(MAJ_UNITS * majority_scores)),
        },
    }
    if test_solutions is not None:
        results["solutions"] = solutions
    return results


def are_verdicts_equally_many(run: Run, count: int, *, problem_count: int, solutions: int) -> bool:
    """Return True where each problem has as many verdicts, on each of its `solutions`, as every other one."""
    has_dropped_solutions = solutions > 1 and run.summary.get("too_long", {}).get("test")
    has_equal_counts = count > 0 and count % problem_count == 0
    has_equal_solutions = solutions > 0 and problem_count % solutions == 0
    return has_equal_counts and has_equal_solutions and not has_dropped_solutions


def open_verdicts(run: Run, evaluation: Record) -> Table:
    """Open the verdicts of an evaluation in the run's store or the shared one, wherever the folders are now."""
    recorded_path = Path(evaluation.get("verdicts", ""))
    name = f"verdicts/{recorded_path.name}"
    store = find_store(run.path, name, recorded_path.parent.parent)
    if not recorded_path.name or not (store.root / name).exists():
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone")
    return store.open(store.root / name)


def find_store(run: Path, table: str, recorded_path: str | Path) -> Store:
    """Find the store that holds a table of a run, wherever both are now: in the run, beside its sweep, or where it was.

    table: its path in the store. recorded_path: of the store when the run wrote it.
    """
    home = run.resolve()
    for path in (home / "store", home.parent.parent / "store"):
        if (path / table).is_dir():
            return Store(path)
    return Store(Path(recorded_path))


def gold_answers(run: Run, position: int = -1) -> str:
    """The answers to the problems of one of a run's evaluations, as one text. TOPRError as `read_repetitions`."""
    with damage_as_error(run):
        table = open_verdicts(run, run.evaluations[position])
        return str(table.key["golds"])


@contextmanager
def damage_as_error(run: Run) -> Iterator[None]:
    """Turn what damaged settings, evaluations or verdicts lead to into a TOPRError."""
    try:
        yield
    except (*DAMAGE, AssertionError) as error:  # the statistics assert what intact verdicts hold
        raise TOPRError(f"{run.name}: its verdicts can't be read ({one_line(error, 100)})") from error


def counts_as_text(counts: Iterable[float]) -> str:
    """Whole numbers in one text, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def counts_of(text: str) -> Values:
    """The numbers of `counts_as_text`."""
    return np.array(text.split(), dtype=np.float64)
