"""Grades completions against their golds, chunk by chunk.

What text and arithmetic decide is decided here; what needs sympy, or a user's grader, runs in worker processes.
"""

import os
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import topr_exp
from topr_exp.config.data import LARGEST_REWARD
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.extraction import FORMATS, extract
from topr_exp.grading.pool import WorkerPool
from topr_exp.grading.surroundings import is_number, without_words
from topr_exp.runtime.checksums import file_digest
from topr_exp.runtime.files import find_module_file
from topr_exp.types import VERDICTS, ConfigError, TOPRError, Verdict, has_half_pair

GRADER_VERSION = "8"  # part of store keys: raise it with every change that can change a verdict

NUMBER_FORMATS = ("gsm8k", "lenient")
SYMBOLIC = "topr_exp.grading.symbolic:equal"
DEADLINE, OWN_DEADLINE = 1.0, 10.0  # seconds
CHUNK = 256  # completions that are graded together, for each worker
MAX_CLASS_COMPARISONS = 64  # symbolic comparisons within one call of `classes`

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict on one completion.

    `answer` is the extracted text (None: invalid, or a user's own grader). `path` tells what decided: "string",
    "rational", "numeric", "symbolic", "timeout" or "died" (two workers overran their deadline or a limit: incorrect),
    "raised" (the comparison failed: incorrect), "none" (invalid), "user". `reward`: of a user's own grader, or None.
    """

    verdict: Verdict
    answer: str | None
    path: str
    reward: float | None = None


def cores() -> int:
    """The CPUs that this process may use, its share where the run's other processes on this machine use the same."""
    allowed, asked = len(os.sched_getaffinity(0)), os.environ.get
    # Where each process is a task of Slurm's, it may have been bound to CPUs that the others don't have.
    is_task = asked("SLURM_NTASKS") == asked("WORLD_SIZE")
    if is_task and allowed <= int(asked("SLURM_CPUS_PER_TASK", "0")):
        return allowed
    return max(1, allowed // int(asked("LOCAL_WORLD_SIZE", "1")))


class Grader(AbstractContextManager["Grader"]):
    """Decides correct / incorrect / invalid for (completion, gold) pairs.

    `name` is an answer format ("gsm8k", "lenient", "math", "final") or "package.module:function", your function
    (completion, gold) -> "correct" | "incorrect" | "invalid", or a number, correct from `threshold` on; or a tuple of
    that and the answer's text (for maj@K), or of verdict, answer and number. With `graded` it has to give a number.
    `workers` sealed processes (default: `cores()`) start when first needed; a comparison gets `deadline` seconds
    (default: DEADLINE, your function OWN_DEADLINE). Thread-safe; a forked child starts its own. A context manager.

    Raises ConfigError for an unknown name, TOPRError if your function raises or returns anything else, NaN or ∞ too.
    """

    def __init__(
        self,
        name: str,
        workers: int | None = None,
        deadline: float | None = None,
        graded: bool = False,
        threshold: float = 1.0,
    ) -> None:
        check_name(name)
        self._own = name not in FORMATS
        self.name, self.graded, self.threshold = name, graded, threshold
        self.workers = cores() if workers is None else workers
        self.deadline = deadline if deadline is not None else OWN_DEADLINE if self._own else DEADLINE
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> WorkerPool:
        """The workers, started now (it takes 1 to 2 seconds) unless they run."""
        with self._lock:
            if self._pool is None or not self._pool.usable:
                self._pool = WorkerPool(self.name if self._own else SYMBOLIC, self.workers, self.deadline)
            return self._pool

    def close(self) -> None:
        """End the workers; the grader stays usable and would start new ones."""
        with self._lock:
            if self._pool is not None and self._pool.usable:
                self._pool.close()

    def grade(self, pairs: Iterable[Pair]) -> Iterator[Outcome]:
        """One Outcome for each (completion, gold), in order; `pairs` is read and graded chunk by chunk.

        Identical answers to the same gold are compared once.
        """
        pairs, number = iter(pairs), 0
        while chunk := list(islice(pairs, CHUNK * self.workers)):
            yield from self._grade_own(chunk, number) if self._own else self._grade_answers(chunk)
            number += len(chunk)

    def classes(self, answers: Sequence[str | None]) -> list[int]:
        """Equivalent answers share a number, counted from 0 in order of first appearance; None gets -1.

        At most MAX_CLASS_COMPARISONS comparisons are symbolic; of answers of a user's own grader, none is.
        """
        budget = 0 if self._own else MAX_CLASS_COMPARISONS
        representative: dict[str, str] = {}  # of an answer: the most frequent one that equals it
        for answer, _ in Counter(each for each in answers if each is not None).most_common():
            others = dict.fromkeys(representative.values())
            verdicts = {other: compare_quickly(other, answer)[0] for other in others}
            equal = [other for other in others if verdicts[other]]
            if not equal and (undecided := [other for other in others if verdicts[other] is None][:budget]):
                budget -= len(undecided)
                found = self.start().submit([(other, answer) for other in undecided])
                equal = [other for other, said in zip(undecided, found, strict=True) if said == ("ok", True)]
            representative[answer] = equal[0] if equal else answer
        numbers: dict[str, int] = {}
        return [-1 if each is None else numbers.setdefault(representative[each], len(numbers)) for each in answers]

    def _grade_answers(self, chunk: Sequence[Pair]) -> Iterator[Outcome]:
        pairs = [(gold, self._answer(completion, gold)) for completion, gold in chunk]
        stated = dict.fromkeys((gold, answer) for gold, answer in pairs if answer is not None)
        decided = {pair: compare_quickly(*pair) for pair in stated}
        undecided = [pair for pair, (equal, _) in decided.items() if equal is None]
        for pair, (status, value) in zip(undecided, self.start().submit(undecided) if undecided else (), strict=True):
            # No text of a model may end a run, not even where sympy has a bug: "raised" is counted and shown.
            path = {"ok": "symbolic", "error": "raised"}.get(status, status)
            decided[pair] = (status == "ok" and value is True, path)
        for gold, answer in pairs:
            if answer is None:
                yield Outcome("invalid", None, "none")
            else:
                equal, path = decided[gold, answer]
                yield Outcome("correct" if equal else "incorrect", answer, path)

    def _answer(self, completion: str, gold: str) -> str | None:
        """The answer of a completion; where the gold is one number, without the words that describe a number."""
        answer = extract(completion, self.name)
        if answer is None or self.name not in NUMBER_FORMATS or not is_number(gold):
            return answer
        return without_words(answer)

    def _grade_own(self, chunk: Sequence[Pair], before: int) -> Iterator[Outcome]:
        for number, (status, value) in enumerate(self.start().submit(chunk), before + 1):
            if status == "error":
                raise TOPRError(f"grader {self.name} raised {' '.join(value.split())} (completion {number})")
            yield self._own_outcome(value, number) if status == "ok" else Outcome("incorrect", None, status)

    def _own_outcome(self, value: Any, number: int) -> Outcome:
        """Of what a user's function returned, as JSON gives it back."""
        parts = value if isinstance(value, list) else [value]
        verdict, answer, reward = (*parts, None, None, None)[:3]
        if _is_number(verdict) and reward is None:
            verdict, reward = None, verdict
        judged = verdict in VERDICTS if verdict is not None else reward is not None
        given = isinstance(answer, str | None) and (reward is None or _is_number(reward)) and len(parts) <= 3
        mistake = ""
        if not (judged and given):
            mistake = (
                f"must return one of {', '.join(VERDICTS)}, or a number, or one of these and the answer's text, or a "
                f"verdict, the answer and a number; got {value!r:.100}"
            )
        elif isinstance(answer, str) and has_half_pair(answer):
            mistake = f"gave an answer with half of a surrogate pair, which is no character: {answer!a:.100}"
        elif reward is None and self.graded:
            mistake = f"must give a number where data.reward=graded; got {value!r:.100}"
        elif reward is not None and not abs(reward) <= LARGEST_REWARD:  # not-a-number, too
            mistake = f"gave the reward {reward}, which is not finite"
        if mistake:
            raise TOPRError(f"grader {self.name} {mistake} (completion {number})")
        if verdict is None:
            verdict = "correct" if reward >= self.threshold else "incorrect"
        return Outcome(verdict, answer, "user", None if reward is None else float(reward))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def version(name: str) -> str:
    """Identify a grader in store keys, so that a changed one grades again: its version, or your file's content."""
    path = source_file(name)
    return GRADER_VERSION if path is None else f"{GRADER_VERSION} {file_digest(path)}"


def source_file(name: str) -> Path | None:
    """Find the file of a user's function; None for an answer format."""
    return None if name in FORMATS else find_module_file(name.partition(":")[0])


def check_name(name: str) -> None:
    """Raises ConfigError unless `name` is an answer format or an importable "package.module:function"."""
    if name in FORMATS:
        return
    module_name, _, function_name = name.partition(":")
    allowed = f"one of {', '.join(FORMATS)} or package.module:function"
    if not (module_name and function_name):
        raise ConfigError(f"grader must be {allowed}; got {name}")
    try:
        module = topr_exp.import_own(module_name, runs_here=False)
    except (Exception, SystemExit) as error:  # whatever the user's code raises when it is imported
        message = error.msg if isinstance(error, SyntaxError) else error
        reason = " ".join(f"{type(error).__name__}: {message}".split())
        place = _line_of(error)
        if place is not None:
            raise ConfigError(f"grader {name} cannot be loaded: {place} raised {reason}") from error
        raise ConfigError(f"grader {name} cannot be loaded ({reason}); it must be {allowed}") from error
    if not callable(getattr(module, function_name, None)):
        raise ConfigError(f"grader {name} cannot be loaded (it has no such function); it must be {allowed}")


def _line_of(error: BaseException) -> str | None:
    """The line of the user's file at which its import failed; None where no file was found to import."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno},"
    package = Path(topr_exp.__file__).parent
    own_lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_file() and package not in path.parents and path.parent.name != "importlib":
            own_lines.append(f"{path.name}, line {frame.lineno},")
    return own_lines[-1] if own_lines else None
