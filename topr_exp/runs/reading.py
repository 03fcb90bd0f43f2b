"""Checks that need the user's files read, before anything starts: each line of problems and completions.

Files are read once for all runs of a sweep that name them, and what they hold is kept no longer than that.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topr_exp.config.data import DataConfig, Reward
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.runs.console import warn
from topr_exp.runs.inputs import own_files
from topr_exp.store.completions import empty_completion, missing_column, scan_file, unknown_problem, unknown_token
from topr_exp.store.table import Store
from topr_exp.types import TOPRError

LARGEST_REFUSED_SHARE = 0.05
Stamp = tuple[str, int, int]  # of a file: where, bytes, time of change


def check_problems(config: Config) -> None:
    """Refuse (TOPRError) problems that can't be read or are too few, and golds that their own grader refuses."""
    sets = problems(config.data)
    if sets is None:
        return
    if not sets.train:
        origin = sets.train_report.origin
        raise TOPRError(f"{origin}: no problem is left; every training question is also a test question")
    wanted = config.schedule.prompts
    if wanted is not None and wanted > len(sets.train):
        raise TOPRError(f"schedule.prompts={wanted}: there are {len(sets.train)} problems to sample")
    if refused := refused_golds(key_of(config.data)):
        warn(refused)


def problems(data: DataConfig) -> ProblemSets | None:
    """The problems that a run would have; None where they would come from the hub or the like."""
    return read_problems(key_of(data)) if data.at_hand else None


@dataclass(frozen=True)
class Key:
    """Settings of problems and what their files look like: what is read once for all runs that share it."""

    data: DataConfig = field(compare=False)
    settings: str
    stamps: tuple[Stamp, ...]


def key_of(data: DataConfig) -> Key:
    stamps = tuple(stamp(path) for _, path in (*data.files(), *own_files(data)))
    return Key(data, json.dumps(plain(data)), stamps)


@functools.lru_cache(maxsize=4)
def read_problems(key: Key) -> ProblemSets:
    return load_problems(key.data)


@functools.lru_cache(maxsize=4)
def refused_golds(key: Key) -> str | None:
    """A warning where the grader refuses some golds; TOPRError where over 5 %: it is not the one for them."""
    from topr_exp.grading import Grader

    sets, name = read_problems(key), key.data.grader_name
    tried = [(one, right) for one in (*sets.train, *sets.test) if (right := key.data.solution(one)) is not None]
    with Grader(name, graded=key.data.reward is Reward.graded, threshold=key.data.threshold) as grader:
        outcomes = list(grader.grade((right, one.answer) for one, right in tried))
    found = [each for each, outcome in zip(tried, outcomes, strict=True) if outcome.verdict != "correct"]
    if not found:
        return None
    one, right = found[0]
    text = (
        f"data={key.data.name}: the grader {name} refuses the gold of {len(found)} of {len(tried)} problems; the "
        f"first is {one.id}, gold {one.answer!r:.80}, tried as {right!r:.120}"
    )
    if len(found) > LARGEST_REFUSED_SHARE * len(tried):
        raise TOPRError(f"{text} (at most 5 % may be refused)")
    return text


def check_completions(config: Config, vocabulary: int | None) -> None:
    """Refuse (TOPRError) completions made elsewhere with a malformed line or one that no run could train on.

    vocabulary: the model's tokens, where its folder says how many they are.
    """
    source = config.data.completions
    if source is None:
        return
    sets = problems(config.data)
    known = None if sets is None else frozenset(problem.id for problem in sets.train)
    if Path(source).is_file():
        read_completions(source, stamp(Path(source)), known, vocabulary)
    else:
        check_table(source, config.store, known)


@functools.lru_cache(maxsize=4)
def read_completions(source: str, at: Stamp, known: frozenset[str] | None, vocabulary: int | None) -> None:
    rows = 0

    def see(row: dict[str, Any]) -> None:
        nonlocal rows
        rows += 1
        check_answered(source, rows, row.get("problem_id"), own=bool("question" in row and "gold" in row), known=known)
        tokens = row.get("tokens")
        if tokens is None and not row["completion"] and row.get("finish", "stop") != "stop":
            raise empty_completion(source, rows)
        if tokens is not None and vocabulary is not None and max(tokens) >= vocabulary:
            raise unknown_token(source, rows, max(tokens), vocabulary)

    scan_file(Path(source), see)


def check_table(source: str, store: Path, known: frozenset[str] | None) -> None:
    """The same of a table of the store, whose lines were checked when it was imported."""
    columns = Store(store).open(store / source).read()
    names = ("problem_id", "question", "gold")
    for name in names:
        if name not in columns.column_names:
            raise missing_column(source, name)
    row = 0
    for batch in columns.select(list(names)).to_batches():
        for name, question, gold in zip(*(batch[i].to_pylist() for i in range(3)), strict=True):
            row += 1
            check_answered(source, row, name, own=question is not None and gold is not None, known=known)


def check_answered(source: str, number: int, name: str | None, *, own: bool, known: frozenset[str] | None) -> None:
    if not own and known is not None and name not in known:
        raise unknown_problem(source, number, name)


def stamp(path: Path) -> Stamp:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns
