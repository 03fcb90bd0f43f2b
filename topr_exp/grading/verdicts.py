"""The verdicts of rollouts, kept in the store under the grader's version: a changed grader needs no new samples."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.config.data import Grading
from topr_exp.grading.extraction import FORMATS, why_invalid
from topr_exp.grading.grader import Grader, Outcome, version
from topr_exp.grading.pool import CUT_OFF
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.schema import identity
from topr_exp.store import Store
from topr_exp.types import VERDICTS, Problem

SHOWN_INVALID = 3  # completions
SHOWN_CHARACTERS = 100  # of the end of each


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
    def grader_timeouts(self) -> int:
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
    table = store.table("verdicts", key, rollouts.shards, rollouts.derivation)
    table.hold()
    with open_grader(grading) as grader, Progress("grading", rollouts.rows, "completions", "grading") as progress:

        def make(shard: int) -> pa.Table:
            start, end = rollouts.shard_rows(shard)
            return grade(grader, rollouts.texts(start, end), rollouts.problem[start:end], problems)

        table.fill(make, progress)
    verdicts = Verdicts(table.name, table.read())
    if distributed.is_main_process():
        command = f"python -m topr_exp.store --root {table.folder.parents[1]} prune --yes --key {table.name}"
        warn_of_failures(verdicts, grading.grader, f"; to have the next run try again: {command}")
        warn_of_invalid(verdicts, rollouts, grading.grader)
    return verdicts


def given_verdicts(rollouts: Rollouts, rewards: NDArray[np.float64], threshold: float, store: Store) -> Verdicts:
    """Verdicts of a log's own rewards, [rows]: correct from `threshold` on; no answer is read."""
    key = {"given_from": threshold, "rollouts": rollouts.name}
    table = store.table("verdicts", key, rollouts.shards, rollouts.derivation)
    table.hold()

    def make(shard: int) -> pa.Table:
        some = rewards[slice(*rollouts.shard_rows(shard))].tolist()
        outcomes = [Outcome("correct" if each >= threshold else "incorrect", None, "given", each) for each in some]
        return as_table(outcomes, np.full(len(some), -1), graded=True)

    table.fill(make)
    return Verdicts(table.name, table.read())


def warn_of_failures(verdicts: Verdicts, grader_name: str, again: str = "") -> None:
    """Say how many completions count as incorrect because a grader was cut off or failed; `again`: the way out."""
    for count, what, then in (
        (verdicts.grader_timeouts, "was cut off twice (its time, its memory, or by another program)", again),
        (verdicts.count("raised"), "failed with an error", ""),
    ):
        if count:
            of_all = f"{count} of {len(verdicts.codes)} completions"
            warn(f"grader {grader_name} {what} on {of_all}, which count as incorrect{then}")


def warn_of_invalid(verdicts: Verdicts, rollouts: Rollouts, grader_name: str) -> None:
    """Show three invalid completions, each with the reason, where more than half of all are invalid."""
    (invalid,) = np.nonzero(verdicts.codes == VERDICTS.index("invalid"))
    if 2 * len(invalid) <= rollouts.rows:
        return
    summary = f"grader {grader_name} finds no answer in {len(invalid)} of {rollouts.rows} completions"
    if grader_name == "gsm8k":
        summary += r" (data.grader=lenient also reads \boxed{12}, #### 12, Answer: 12 and a last number)"
    lines = [f"{summary}, such as"]
    for row in invalid[:SHOWN_INVALID].tolist():
        (text,) = rollouts.texts(row, row + 1)
        reason = why_invalid(text, grader_name) if grader_name in FORMATS else "the grader calls it invalid"
        if rollouts.truncated[row]:
            reason += ", and the token limit cut it off"
        lines.append(f"  {reason}: {_last_words(text)}")
    warn("\n".join(lines))


def _last_words(text: str) -> str:
    """The end of a text in one line, quoted."""
    line = " ".join(text.split())
    return ascii(line) if len(line) <= SHOWN_CHARACTERS else f"...{line[-SHOWN_CHARACTERS:]!a}"


def grade(grader: Grader, texts: Sequence[str], problem: NDArray[np.integer], problems: Sequence[Problem]) -> pa.Table:
    """Verdict, answer, path and equivalence class of completions, and their rewards where the grader is to give them.

    problem: the index of each one's problem.
    """
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
    return as_table(outcomes, classes, grader.graded)


def as_table(outcomes: Sequence[Outcome], classes: NDArray[np.integer], graded: bool) -> pa.Table:
    columns = {
        "verdict": pa.array([outcome.verdict for outcome in outcomes], pa.string()),
        "answer": pa.array([outcome.answer for outcome in outcomes], pa.string()),
        "path": pa.array([outcome.path for outcome in outcomes], pa.string()),
        "class": pa.array(classes, pa.int32()),
    }
    if graded:
        columns["reward"] = pa.array([outcome.reward for outcome in outcomes], pa.float64())
    return pa.table(columns)
