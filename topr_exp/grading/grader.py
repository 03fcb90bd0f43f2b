"""The grader: verdicts on completions against their golds, chunk by chunk.

Text and arithmetic are compared in this process; sympy and users' graders run in worker processes.
"""

import dataclasses
import functools
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.config.data import LARGEST_REWARD, Grading
from topr_exp.config.user_code import UserCodeError, import_user_module
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.extraction import FORMATS, extract
from topr_exp.grading.pool import WorkerPool
from topr_exp.grading.surroundings import is_number, without_words
from topr_exp.grading.worker import HAS_LINUX_LIMITS
from topr_exp.runtime.checksums import file_digest
from topr_exp.runtime.distributed import CPUS_PER_PROCESS
from topr_exp.runtime.files import find_module_file
from topr_exp.runtime.machine import usable_cpus
from topr_exp.runtime.terminal import warn
from topr_exp.schema import build
from topr_exp.types import VERDICTS, ConfigError, TOPRError, Verdict, has_half_pair

GRADER_VERSION = "14"  # part of store keys: raise it with every change that can change a verdict

NUMBER_FORMATS = ("gsm8k", "lenient")
SYMBOLIC = "topr_exp.grading.symbolic.equal"
DEADLINE = 1.0  # seconds for a symbolic comparison
PATIENCE = 10.0  # times as long, where other processes use the processors meanwhile
OWN_DEADLINE = 10.0  # seconds for a user's function
CHUNK = 256  # completions that are graded together, for each worker
MAX_CLASS_COMPARISONS = 64  # symbolic comparisons within one call of `classes`

Pair = tuple[str, str]  # (completion, gold)
Comparisons = dict[tuple[str, str], tuple[bool, str]]  # (gold, answer) -> (equal, what decided)


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
    usable = usable_cpus()
    cpus_per_process = int(os.environ.get(CPUS_PER_PROCESS, "0"))
    if usable <= cpus_per_process:  # bound to CPUs that the other processes don't have
        return usable
    processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, usable // processes_here)


class Grader(AbstractContextManager["Grader"]):
    """Decides correct / incorrect / invalid for (completion, gold) pairs.

    `name` is an answer format ("gsm8k", "lenient", "math", "final") or "package.module.name", your function
    (completion, gold) -> "correct" | "incorrect" | "invalid", or a number, correct from `threshold` on; or a tuple of
    that and the answer's text (for maj@K), or of verdict, answer and number. With `graded` it has to give a number.
    A dataclass whose instances are such functions has `settings`.
    `workers` sealed processes (default: `cores()`) start when first needed; a comparison gets `deadline` seconds
    (default: DEADLINE, your function OWN_DEADLINE), and up to PATIENCE times as long while other processes keep it from
    computing (not your function). Thread-safe; a forked child starts its own. A context manager.

    Raises ConfigError for an unknown name, TOPRError if your function raises or returns anything else, NaN or ∞ too.
    """

    def __init__(
        self,
        name: str,
        workers: int | None = None,
        deadline: float | None = None,
        graded: bool = False,
        threshold: float = 1.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = dict(settings or {})
        check_grader(name, self.settings)
        self._is_users = name not in FORMATS
        self.name = name
        self.graded = graded
        self.threshold = threshold
        self.workers = cores() if workers is None else workers
        default_deadline = OWN_DEADLINE if self._is_users else DEADLINE
        self.deadline = default_deadline if deadline is None else deadline
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()

    @property
    def grading(self) -> Grading:
        """The settings that decide its outcomes."""
        return Grading(self.name, self.graded, self.threshold, json.dumps(self.settings, sort_keys=True))

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> WorkerPool:
        """The workers, started now (it takes 1 to 2 seconds) unless they run."""
        with self._lock:
            if self._pool is None or not self._pool.usable:
                _warn_of_unlimited_memory()
                target = self.name if self._is_users else SYMBOLIC
                patience = 1.0 if self._is_users else PATIENCE  # a user's may sleep
                self._pool = WorkerPool(target, self.workers, self.deadline, self.settings, patience=patience)
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
        pairs = iter(pairs)
        count = 0
        while chunk := list(itertools.islice(pairs, CHUNK * self.workers)):
            if self._is_users:
                yield from self._outcomes_by_user(chunk, first_number=count + 1)
            else:
                yield from self._outcomes_by_answer(chunk)
            count += len(chunk)

    def classes(self, answers: Sequence[str | None]) -> list[int]:
        """Number the classes of equivalent answers from 0, in order of first appearance; None gets -1.

        At most MAX_CLASS_COMPARISONS comparisons are symbolic; with a user's grader, none is.
        """
        representatives = self._representatives(answers)
        class_numbers: dict[str, int] = {}  # by representative
        classes: list[int] = []
        for answer_or_none in answers:
            if answer_or_none is None:
                classes.append(-1)
            else:
                representative = representatives[answer_or_none]
                classes.append(class_numbers.setdefault(representative, len(class_numbers)))
        return classes

    def _representatives(self, answers: Sequence[str | None]) -> dict[str, str]:
        """For each answer the most frequent one that equals it."""
        budget = 0 if self._is_users else MAX_CLASS_COMPARISONS
        counts = Counter(answer for answer in answers if answer is not None)
        representatives: dict[str, str] = {}
        for answer, _ in counts.most_common():
            equal_candidates: list[str] = []
            undecided_candidates: list[str] = []
            for candidate in dict.fromkeys(representatives.values()):
                equality, _ = compare_quickly(candidate, answer)
                if equality is None:
                    undecided_candidates.append(candidate)
                elif equality:
                    equal_candidates.append(candidate)
            if not equal_candidates:
                compared_candidates = undecided_candidates[:budget]
                budget -= len(compared_candidates)
                equal_candidates = self._symbolically_equal(compared_candidates, answer)
            representatives[answer] = equal_candidates[0] if equal_candidates else answer
        return representatives

    def _symbolically_equal(self, candidates: Sequence[str], answer: str) -> list[str]:
        """Those candidates that sympy finds equal to the answer."""
        if not candidates:
            return []
        pairs = [(candidate, answer) for candidate in candidates]
        results = self.start().submit(pairs)
        is_equal = [result == ("ok", True) for result in results]
        return list(itertools.compress(candidates, is_equal))

    def _outcomes_by_answer(self, chunk: Sequence[Pair]) -> Iterator[Outcome]:
        golds_and_answers = [(gold, self._answer(completion, gold)) for completion, gold in chunk]
        comparisons = self._compare(golds_and_answers)
        for gold, answer in golds_and_answers:
            if answer is None:
                yield Outcome("invalid", None, "none")
            else:
                is_equal, path = comparisons[gold, answer]
                verdict: Verdict = "correct" if is_equal else "incorrect"
                yield Outcome(verdict, answer, path)

    def _compare(self, golds_and_answers: Iterable[tuple[str, str | None]]) -> Comparisons:
        """Compare each pair once, but for those without an answer."""
        comparisons: Comparisons = {}
        undecided: list[tuple[str, str]] = []
        for gold, answer in dict.fromkeys(golds_and_answers):
            if answer is None:
                continue
            equality, path = compare_quickly(gold, answer)
            if equality is None:
                undecided.append((gold, answer))
            else:
                comparisons[gold, answer] = equality, path
        if not undecided:
            return comparisons
        results = self.start().submit(undecided)
        for pair, (status, value) in zip(undecided, results, strict=True):
            # No text of a model may end a run, not even where sympy has a bug: "raised" is counted and shown.
            path = {"ok": "symbolic", "error": "raised"}.get(status, status)
            is_equal = status == "ok" and value is True
            comparisons[pair] = is_equal, path
        return comparisons

    def _answer(self, completion: str, gold: str) -> str | None:
        """The answer of a completion; where the gold is one number, without the words that describe a number."""
        answer = extract(completion, self.name)
        if answer is None or self.name not in NUMBER_FORMATS or not is_number(gold):
            return answer
        return without_words(answer)

    def _outcomes_by_user(self, chunk: Sequence[Pair], first_number: int) -> Iterator[Outcome]:
        results = self.start().submit(chunk)
        for number, (status, value) in enumerate(results, first_number):
            if status == "error":
                raise TOPRError(f"grader {self.name} raised {' '.join(value.split())} (completion {number})")
            if status == "ok":
                yield self._outcome_of_value(value, number)
            else:
                yield Outcome("incorrect", None, status)

    def _outcome_of_value(self, value: Any, number: int) -> Outcome:
        """The outcome that a user's function returned, as JSON gives it back; number: of the completion."""
        parts = value if isinstance(value, list) else [value]
        padded_parts = [*parts, None, None, None]  # what the function left out is None
        verdict, answer, reward = padded_parts[:3]
        if _is_json_number(verdict) and reward is None:  # a number in the place of the verdict
            reward = verdict
            verdict = None
        mistake = ""
        if len(parts) > 3 or not _is_outcome(verdict, answer, reward):
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
        if reward is not None:
            reward = float(reward)
        return Outcome(verdict, answer, "user", reward)


@functools.cache
def _warn_of_unlimited_memory() -> None:
    """Say once, where grading starts, which part of the workers' seal is Linux's alone."""
    if not HAS_LINUX_LIMITS:
        warn("only Linux limits a grading worker's memory: here its deadline alone bounds what an answer may take")


def open_grader(grading: Grading) -> Grader:
    """Open the grader that the settings name."""
    settings = json.loads(grading.settings)
    return Grader(grading.grader, graded=grading.graded, threshold=grading.threshold, settings=settings)


def _is_outcome(verdict: Any, answer: Any, reward: Any) -> bool:
    """Check the parts of a user's outcome: a verdict, a number or both, and an answer that is a text or None."""
    if verdict is None and reward is None:
        return False
    is_verdict = verdict is None or verdict in VERDICTS
    is_reward = reward is None or _is_json_number(reward)
    return is_verdict and is_reward and isinstance(answer, str | None)


def _is_json_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def version(name: str) -> str:
    """Identify a grader in store keys, so that a changed one grades again: its version, or your file's content."""
    path = source_file(name)
    if path is None:
        return GRADER_VERSION
    return f"{GRADER_VERSION} {file_digest(path)}"


def source_file(name: str) -> Path | None:
    """Find the file of a user's function; None for an answer format."""
    if name in FORMATS:
        return None
    return find_module_file(name.rpartition(".")[0])


def check_grader(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError unless `name` is an answer format or importable, as package.module.name, with the settings."""
    if name in FORMATS:
        refuse_settings(settings, f"{name} is an answer format")
        return
    module_name, _, attribute = name.rpartition(".")
    allowed = f"one of {', '.join(FORMATS)} or package.module.name"
    if not (module_name and attribute) or ":" in name:
        hint = f" (write {name.replace(':', '.')})" if ":" in name else ""
        raise ConfigError(f"grader must be {allowed}; got {name}{hint}")
    try:
        module = import_user_module(module_name, runs_here=False)
    except UserCodeError as error:
        if error.line is not None:
            raise ConfigError(f"grader {name} cannot be loaded: {error}") from error
        raise ConfigError(f"grader {name} cannot be loaded ({error}); it must be {allowed}") from error
    grader = getattr(module, attribute, None)
    if dataclasses.is_dataclass(grader) and "__call__" in vars(grader):
        build(grader, settings, "data.grader.")
    elif not callable(grader) or isinstance(grader, type):
        kinds = "function or dataclass with `__call__`"
        raise ConfigError(f"grader {name} cannot be loaded (it has no such {kinds}); it must be {allowed}")
    else:
        refuse_settings(settings, f"{name} is a function")


def refuse_settings(settings: Mapping[str, Any], reason: str) -> None:
    if settings:
        raise ConfigError(f"nothing reads data.grader.{min(settings)} here: {reason}, only a dataclass has settings")
