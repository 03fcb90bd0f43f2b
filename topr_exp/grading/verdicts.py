"""Verdicts on completions, kept in the store under the grader's version: a changed grader needs no new samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.config.data import THOUGHT_START
from topr_exp.grading.extraction import FORMATS, why_invalid
from topr_exp.grading.grader import Grader, Outcome, version
from topr_exp.grading.pool import CUT_OFF
from topr_exp.grading.worker import PACKAGE
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.completions import Completions, ProblemIndex
from topr_exp.schema import identity
from topr_exp.store import Store, Table
from topr_exp.types import INCORRECT, INVALID, VERDICTS, Problem, Verdict

INVALID_EXAMPLES = 3  # completions that a warning quotes
QUOTED_CHARACTERS = 100  # of the end of each


def grade_completions(completions: Completions, grader: Grader, store: Store) -> Completions:
    """Add the verdict on each completion against its problem's gold answer, from the store where it is there."""
    key: dict[str, Any] = {
        **identity(grader.grading),
        "golds": [problem.answer for problem in completions.problems],
        "version": version(grader.name),
    }
    table = completions.derived_table(store, "verdicts", key)
    with Progress("grading", len(completions), "completions", kind="grading") as progress:

        def make_shard(shard: int) -> pa.Table:
            rows = shard_rows(completions, shard)
            problem_index = completions.problem_index[rows.start : rows.stop]
            return grade(grader, completions.texts(rows), problem_index, completions.problems)

        table.fill(make_shard, progress)
    graded = with_stored_verdicts(completions, table)
    if distributed.is_main_process():
        prune_command = f"python -m topr_exp.store --root {table.folder.parents[1]} prune --yes --key {table.name}"
        warn_of_failures(graded, grader.name, f"; to have the next run try again: {prune_command}")
        warn_of_invalid(graded, grader.name)
    return graded


def grade_by_log(completions: Completions, threshold: float, store: Store) -> Completions:
    """Add verdicts by the rewards that imported completions came with: correct from `threshold` on."""
    rewards = completions.reward
    assert rewards is not None, "a log without rewards is refused when it is read"
    table = completions.derived_table(store, "verdicts", {"given_from": threshold})

    def make_shard(shard: int) -> pa.Table:
        rows = shard_rows(completions, shard)
        outcomes = []
        for reward in rewards[rows.start : rows.stop].tolist():
            verdict: Verdict = "correct" if reward >= threshold else "incorrect"
            outcomes.append(Outcome(verdict, None, "given", reward))
        return tabulate_outcomes(outcomes, np.full(len(outcomes), -1), graded=True)

    table.fill(make_shard)
    return with_stored_verdicts(completions, table)


def shard_rows(completions: Completions, shard: int) -> range:
    assert completions.stored is not None, "verdicts in the store are on stored completions"
    return completions.stored.sharding.rows(shard)


def with_stored_verdicts(completions: Completions, table: Table) -> Completions:
    """Add the columns of a table of verdicts to the completions that it is on."""
    assert completions.stored is not None, "verdicts in the store are on stored completions"
    graded = with_verdicts(completions, table.read())
    return replace(graded, stored=replace(completions.stored, verdicts=table.name))


def with_verdicts(completions: Completions, verdicts: pa.Table) -> Completions:
    """Add graded columns, the verdicts as codes; rewards of a log make way for the grader's, or for none."""
    codes = [VERDICTS.index(verdict) for verdict in verdicts["verdict"].to_pylist()]
    columns: dict[str, Any] = {"verdict": pa.array(codes, pa.int8())}
    for name in ("answer", "path", "class"):
        columns[name] = verdicts[name]
    columns["reward"] = None
    if "reward" in verdicts.column_names:
        columns["reward"] = verdicts["reward"]
    return completions.with_columns(columns)


def grade(grader: Grader, texts: Sequence[str], problem_index: ProblemIndex, problems: Sequence[Problem]) -> pa.Table:
    """Tabulate verdict, answer, path and equivalence class of completions, and rewards where the grader gives them.

    problem_index: [rows] indices into `problems`.
    """
    pairs = []
    for text, index in zip(texts, problem_index.tolist(), strict=True):
        problem = problems[index]
        pairs.append((with_thought_start(text, problem, grader.name), problem.answer))
    outcomes = list(grader.grade(pairs))
    classes = np.full(len(outcomes), -1, dtype=np.int32)
    for index in np.unique(problem_index):
        rows = np.flatnonzero(problem_index == index)
        outcomes_of_problem = [outcomes[row] for row in rows]
        classes[rows] = number_classes(grader, outcomes_of_problem)
    return tabulate_outcomes(outcomes, classes, graded=grader.graded)


def with_thought_start(text: str, problem: Problem, grader_name: str) -> str:
    """Put the <think> with which its prompt ends before a completion; a user's grader gets what was sampled."""
    is_own_grader = grader_name in FORMATS or grader_name.startswith(PACKAGE)
    return THOUGHT_START + text if problem.opens_thought and is_own_grader else text


def number_classes(grader: Grader, outcomes: Sequence[Outcome]) -> NDArray[np.integer]:
    """Number the equivalence classes of the answers to one problem from 0; -1 without an answer.

    A user's grader may give verdicts without answers: what it calls correct counts as one answer.
    """
    answers = [outcome.answer for outcome in outcomes]
    classes = np.array(grader.classes(answers))
    is_correct = np.array([outcome.verdict == "correct" for outcome in outcomes])
    lacks_answer = classes < 0
    class_of_correct = classes.max() + 1
    classes[is_correct & lacks_answer] = class_of_correct
    return classes


def tabulate_outcomes(outcomes: Sequence[Outcome], classes: NDArray[np.integer], *, graded: bool) -> pa.Table:
    columns = {}
    for name in ("verdict", "answer", "path"):
        texts = [getattr(outcome, name) for outcome in outcomes]
        columns[name] = pa.array(texts, pa.string())
    columns["class"] = pa.array(classes, pa.int32())
    if graded:
        rewards = [outcome.reward for outcome in outcomes]
        columns["reward"] = pa.array(rewards, pa.float64())
    return pa.table(columns)


# ---- how verdicts came about


def grader_timeouts(completions: Completions) -> int:
    """Count completions that are incorrect since two workers were killed on them, or ended."""
    return count_paths(completions, *CUT_OFF)


def count_paths(completions: Completions, *paths: str) -> int:
    """Count completions that were decided in one of these ways."""
    return int(np.isin(completions.table["path"].to_pylist(), paths).sum())


def votes_are_known(completions: Completions) -> bool:
    """Check that incorrect completions can be told apart; a user's grader may give verdicts alone."""
    is_unnamed = (completions.verdicts == INCORRECT) & (completions.answer_classes < 0)
    paths = completions.table["path"].filter(is_unnamed)
    return "user" not in paths.to_pylist()


def warn_of_failures(completions: Completions, grader_name: str, remedy: str) -> None:
    """Warn of completions that count as incorrect because a grader was cut off (`remedy`: the way out) or failed."""
    cut_off = "was cut off twice (its time, its memory, or by another program)"
    warn_of_incorrect(completions, grader_timeouts(completions), f"grader {grader_name} {cut_off}", remedy)
    warn_of_incorrect(completions, count_paths(completions, "raised"), f"grader {grader_name} failed with an error")


def warn_of_incorrect(completions: Completions, count: int, cause: str, remedy: str = "") -> None:
    if count:
        warn(f"{cause} on {count} of {len(completions)} completions, which count as incorrect{remedy}")


def warn_of_invalid(completions: Completions, grader_name: str) -> None:
    """Quote three invalid completions, each with the reason, where more than half of all are invalid."""
    invalid_rows = np.flatnonzero(completions.verdicts == INVALID)
    if 2 * len(invalid_rows) <= len(completions):
        return
    summary = f"grader {grader_name} finds no answer in {len(invalid_rows)} of {len(completions)} completions"
    if grader_name == "gsm8k":
        summary += r" (data.grader=lenient also reads \boxed{12}, #### 12, Answer: 12 and a last number)"
    lines = [f"{summary}, such as"]
    for row in invalid_rows[:INVALID_EXAMPLES].tolist():
        (text,) = completions.texts(range(row, row + 1))
        reason = "the grader calls it invalid"
        if grader_name in FORMATS:
            problem = completions.problems[completions.problem_index[row]]
            reason = why_invalid(with_thought_start(text, problem, grader_name), grader_name)
        if completions.is_truncated[row]:
            reason += ", and the token limit cut it off"
        lines.append(f"  {reason}: {quote_end(text)}")
    warn("\n".join(lines))


def quote_end(text: str) -> str:
    """Quote the end of a text in one line."""
    line = " ".join(text.split())
    if len(line) <= QUOTED_CHARACTERS:
        return ascii(line)
    return f"...{line[-QUOTED_CHARACTERS:]!a}"
