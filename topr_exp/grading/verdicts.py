"""Verdicts of rollouts, kept in the store under the grader's version: grading again never samples again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.grading import GRADER_VERSION, Grader
from topr_exp.progress import Progress
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store, Table
from topr_exp.types import Problem


class Verdicts:
    """The verdict of every completion of some rollouts, in their row order."""

    def __init__(self, table: Table, n: int) -> None:
        self.table, self.n = table, n

    @cached_property
    def verdict(self) -> NDArray[np.str_]:
        """[rows] correct, incorrect or invalid."""
        return np.array(self.table.read(["verdict"])["verdict"].to_pylist())

    @property
    def positive(self) -> NDArray[np.bool_]:
        return self.verdict == "correct"

    @cached_property
    def classes(self) -> NDArray[np.int32]:
        """[problems, n] the answers' equivalence classes in their problem, -1 without an answer."""
        column: NDArray[np.int32] = self.table.read(["class"])["class"].to_numpy()
        return column.reshape(-1, self.n)

    def paths(self) -> dict[str, int]:
        """How many verdicts each path of the grader decided."""
        names, counts = np.unique(np.array(self.table.read(["path"])["path"].to_pylist()), return_counts=True)
        return dict(zip(names.tolist(), counts.tolist(), strict=True))


def judge(
    rollouts: Rollouts, problems: Sequence[Problem], grader_name: str, store: Store, label: str = "grading"
) -> Verdicts:
    """Grade every completion against its problem's gold answer, or read the verdicts from the store."""
    import pyarrow as pa

    key = {
        "rollouts": rollouts.table.name,
        "grader": grader_name,
        "golds": [problem.answer for problem in problems],
        "version": GRADER_VERSION,
    }
    table = store.table("verdicts", key, rollouts.table.shards)
    texts = rollouts.texts() if table.missing() else []
    with Grader(grader_name) as grader, Progress(label, rollouts.rows, "completions") as progress:

        def make(shard: int) -> Any:
            start, end = rollouts.shard_rows(shard)
            golds = [problems[row // rollouts.n].answer for row in range(start, end)]
            outcomes = list(grader.grade(zip(texts[start:end], golds, strict=True)))
            answers = [outcome.answer for outcome in outcomes]
            classes: list[int] = []
            for first in range(0, len(answers), rollouts.n):
                classes += grader.classes(answers[first : first + rollouts.n])
            progress.update(end - start)
            return pa.table(
                {
                    "verdict": pa.array([outcome.verdict for outcome in outcomes], pa.string()),
                    "answer": pa.array(answers, pa.string()),
                    "path": pa.array([outcome.path for outcome in outcomes], pa.string()),
                    "class": pa.array(classes, pa.int32()),
                }
            )

        def report(shard: int, made_here: bool) -> None:
            if not made_here:
                start, end = rollouts.shard_rows(shard)
                progress.update(end - start, 0, "from the store")

        table.fill(make, report, parallel=True, on_wait=progress.message)
    return Verdicts(table, rollouts.n)
