"""What an evaluation of a run found, problem by problem, small enough to be committed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from topr_exp.evaluation.draws import INVALID, encode
from topr_exp.evaluation.statistics import headline_k, measure
from topr_exp.report.runs import Run
from topr_exp.runs.records import Record
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

SHARES = ("pass@1", *VERDICTS)
DIGITS = 6  # of what is written; a second machine has to agree in all of them


def results(run: Run, record: Record, *, votes: bool = True) -> Record:
    """An evaluation of a run: its shares, and of each problem the correct and the invalid completions and maj@K.

    votes: False leaves maj@K out, which takes most of the time. TOPRError where its verdicts are gone or damaged, or
    are not those that the run's settings ask for.
    """
    n = run.count("data", "eval_n")
    solutions = run.count("task", "test_solutions") if verifies(run) else None  # to each problem, that a verifier reads
    if missing := [name for name in SHARES if record.get(name) is None]:
        raise TOPRError(f"{run.name}: its evaluation has no {missing[0]}")
    verdicts = Path(record["verdicts"])
    table = Store(verdicts.parent.parent).open(verdicts)
    columns, problems = table.read(["verdict", "class"]), len(table.key["golds"])
    if len(columns) != n * problems or problems % (solutions or 1):
        raise TOPRError(f"{run.name}: {verdicts} does not hold {n} verdicts (data.eval_n) on each of its problems")
    codes = encode(columns["verdict"].to_pylist()).reshape(-1, n)
    k = headline_k(n)
    counts = {"correct": packed(np.sum(codes == 0, axis=1)), "invalid": packed(np.sum(codes == INVALID, axis=1))}
    if votes:
        majority = measure(codes, columns["class"].to_numpy().reshape(-1, n)).maj_at[k]
        counts["maj"] = packed(np.rint(1000 * majority).astype(int))  # per mille
    return {
        **{name: rounded(record[name]) for name in SHARES},
        "n": n,
        "k": k,
        "of_problems": counts,
        **({"solutions": solutions} if solutions else {}),
    }


def verifies(run: Run) -> bool:
    task = run.config.get("task")
    return isinstance(task, dict) and task.get("test_solutions") is not None


def packed(counts: Iterable[int]) -> str:
    """Whole numbers in one string, which JSON keeps on one line."""
    return " ".join(str(int(count)) for count in counts)


def unpacked(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)


def rounded(value: float | None) -> float | None:
    """To DIGITS significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
