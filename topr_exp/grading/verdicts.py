"""The verdicts of rollouts, kept in the store under the grader's version: a changed grader needs no new samples."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.config.data import GRADERS, Grading
from topr_exp.config.identity import identity
from topr_exp.grading.grader import Grader, check_name, version
from topr_exp.grading.pool import CUT_OFF
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.imported import match_problems
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store
from topr_exp.store.table import Table
from topr_exp.types import VERDICTS, Problem, TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class Verdicts:
    """The verdict of every completion of some rollouts, in their row order."""

    def __init__(self, name: str, columns: pa.Table) -> None:
        self.name, self.columns = name, columns  # verdict, answer, path, class; reward where rewards are graded

    @cached_property
    def codes(self) -> NDArray[np.int8]:
        """[rows] each verdict as its index in VERDICTS."""
        return np.array([VERDICTS.index(name) for name in self.columns["verdict"].to_pylist()], dtype=np.int8)

    @property
    def positive(self) -> NDArray[np.bool_]:
        return self.codes == VERDICTS.index("correct")

    @cached_property
    def reward(self) -> NDArray[np.float64] | None:
        """[rows] what the grader gave, of all that it was cut off at the lowest of these and 0; None: not graded."""
        if "reward" not in self.columns.column_names:
            return None
        given = np.array(self.columns["reward"].to_pylist(), dtype=np.float64)  # a null is not-a-number
        return np.where(np.isnan(given), min(0.0, float(np.nanmin(given, initial=0.0))), given)

    @property
    def cut_off(self) -> int:
        """Completions that count as incorrect since two workers were killed on them, or ended."""
        return self.count(*CUT_OFF)

    def count(self, *paths: str) -> int:
        """Completions that were decided in one of these ways."""
        return int(np.isin(self.columns["path"].to_pylist(), paths).sum())

    @property
    def classes(self) -> NDArray[np.int32]:
        """[rows] the answer's equivalence class among those of its problem and shard, -1 without an answer."""
        return np.asarray(self.columns["class"].to_numpy())

    @property
    def votes_known(self) -> bool:
        """Check that incorrect completions can be told apart; a user's grader may give verdicts alone."""
        unnamed = (self.codes == VERDICTS.index("incorrect")) & (self.classes < 0)
        return "user" not in set(self.columns["path"].filter(unnamed).to_pylist())


def open_grader(grading: Grading) -> Grader:
    """The grader that the settings ask for."""
    return Grader(grading.grader, graded=grading.graded, threshold=grading.threshold)


def grade_rollouts(rollouts: Rollouts, problems: Sequence[Problem], grading: Grading, store: Store) -> Verdicts:
    """Grade every completion against its problem's gold answer, or read the verdicts from the store."""
    key: dict[str, Any] = {
        "rollouts": rollouts.name,
        **identity(grading),
        "golds": [problem.answer for problem in problems],
        "version": version(grading.grader),
    }
    table = store.table("verdicts", key, rollouts.shards)
    with open_grader(grading) as grader, Progress("grading", rollouts.rows, "completions") as progress:

        def make(shard: int) -> pa.Table:
            start, end = rollouts.shard_rows(shard)
            verdicts = grade(grader, rollouts.texts(start, end), rollouts.problem[start:end], problems)
            progress.update(end - start)
            return verdicts

        def report(shard: int, made_here: bool) -> None:
            if not made_here:
                start, end = rollouts.shard_rows(shard)
                progress.update(end - start, 0, "from the store")

        with store.stop.leaving_together():
            table.fill(make, report, on_wait=progress.message)
    verdicts = Verdicts(table.name, table.read())
    if distributed.is_main_process():
        own = "" if grading.grader in GRADERS else f" --grader {grading.grader}"
        command = f"python -m topr_exp.store --root {table.folder.parents[1]} regrade {table.name}{own}"
        warn_of_failures(verdicts, grading.grader, f"; to try again: {command}")
    return verdicts


def warn_of_failures(verdicts: Verdicts, grader_name: str, again: str = "") -> None:
    """Say how many completions count as incorrect because a grader was cut off or failed; `again`: the way out."""
    for count, what, then in (
        (verdicts.cut_off, "was cut off twice (its time, its memory, or by another program)", again),
        (verdicts.count("raised"), "failed with an error", ""),
    ):
        if count:
            log.warning(
                "warning: grader %s %s on %d of %d completions, which count as incorrect%s",
                *(grader_name, what, count, len(verdicts.codes), then),
            )


def grade(grader: Grader, texts: Sequence[str], problem: NDArray[np.integer], problems: Sequence[Problem]) -> pa.Table:
    """Verdict, answer, path and equivalence class of completions, and their rewards where the grader is to give them.

    problem: the index of each one's problem.
    """
    import pyarrow as pa

    golds = [problems[index].answer for index in problem.tolist()]
    outcomes = list(grader.grade(zip(texts, golds, strict=True)))
    answers = [outcome.answer for outcome in outcomes]
    classes = np.full(len(answers), -1, dtype=np.int32)
    for index in np.unique(problem):
        (rows,) = np.nonzero(problem == index)
        classes[rows] = grader.classes([answers[row] for row in rows])
        # A user's grader may give verdicts without answers: what it calls correct counts as one answer.
        unnamed = [row for row in rows if outcomes[row].verdict == "correct" and classes[row] < 0]
        classes[unnamed] = classes[rows].max(initial=-1) + 1
    columns = {
        "verdict": pa.array([outcome.verdict for outcome in outcomes], pa.string()),
        "answer": pa.array(answers, pa.string()),
        "path": pa.array([outcome.path for outcome in outcomes], pa.string()),
        "class": pa.array(classes, pa.int32()),
    }
    if grader.graded:
        columns["reward"] = pa.array([outcome.reward for outcome in outcomes], pa.float64())
    return pa.table(columns)


def regrade_table(table: Table, store: Store, own: str | None = None) -> tuple[int, int]:
    """Grade again what was cut off in a table of verdicts; returns the number of such rows before and after.

    own: the user's grader that may run; a key names one, but a store is not trusted with code. Raises TOPRError
    for any other grader, one that has changed, and completions that are not in the store.
    """
    if table.error:
        raise TOPRError(table.error)
    cut_off = [Verdicts("", table.shard(index)).cut_off for index in range(table.shards)]
    if not sum(cut_off):
        return 0, 0
    key, name = table.key, table.key["grader"]
    if name not in {*GRADERS, own}:
        raise TOPRError(f"its grader is code of your own; add --grader {name} to run it")
    check_name(name)
    if key["version"] != version(name):
        raise TOPRError(f"its grader {name} is not found as it was then; a run that needs the verdicts makes new ones")
    completions = store.open(store.root / key["rollouts"].partition(" ")[0]).read()
    problem, left = _answered(completions, key["rollouts"]), 0
    problems = [Problem(str(index), "", gold) for index, gold in enumerate(key["golds"])]
    with Grader(name, graded=key.get("graded", False), threshold=key.get("threshold", 1.0)) as grader:
        for shard, before in enumerate(cut_off):
            if before:
                rows = slice(*table.bounds()[shard : shard + 2])
                new = _regrade(table.shard(shard), grader, completions["text"][rows], problem[rows], problems)
                if (after := Verdicts("", new).cut_off) < before:
                    table.replace(shard, new)
                left += min(before, after)
    return sum(cut_off), left


def _answered(completions: pa.Table, name: str) -> NDArray[np.integer]:
    """[rows] the problem that each completion answers; imported ones are numbered in the order of their answers."""
    if "problem" in completions.column_names:
        return np.asarray(completions["problem"].to_numpy())
    named = {each for each in completions["problem_id"].to_pylist() if each is not None}
    return match_problems(completions, [Problem(each, "", "") for each in named], name)[1]


def _regrade(
    old: pa.Table, grader: Grader, texts: pa.ChunkedArray, problem: NDArray[np.integer], problems: Sequence[Problem]
) -> pa.Table:
    """A shard's verdicts, those of the problems of its cut-off rows anew."""
    import pyarrow as pa

    again = np.isin(problem, problem[np.isin(old["path"].to_pylist(), CUT_OFF)])
    (rows,) = np.nonzero(again)
    new = grade(grader, texts.take(rows).to_pylist(), problem[rows], problems)
    order = np.arange(len(old))
    order[rows] = len(old) + np.arange(len(rows))
    return pa.concat_tables([old, new]).take(order)
