"""Grades a stream of completions against their golds, in order.

What text and arithmetic decide is decided here; what needs sympy, or a user's grader, runs in worker processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import topr_exp
from topr_exp.grading.equivalence import compare_quickly, normal_form
from topr_exp.grading.extraction import FORMATS, extract
from topr_exp.grading.pool import Answer, WorkerPool
from topr_exp.grading.server import SYMBOLIC
from topr_exp.runtime.files import file_digest
from topr_exp.types import VERDICTS, ConfigError, TOPRError, Verdict

GRADER_VERSION = "2"  # part of store keys: raise it with every change that can change a verdict

DEADLINE, OWN_DEADLINE = 1.0, 10.0  # seconds
CACHED = 1 << 14  # verdicts of identical (gold, answer) pairs that are kept
CACHED_CHARS = 1000  # a longer pair is not kept
AHEAD = 64  # completions read ahead of the oldest open one, for each worker
MAX_CLASS_COMPARISONS = 64  # symbolic comparisons within one call of `classes`
LARGEST_REWARD = 3.4e38  # training computes in float32


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict on one completion.

    `answer` is the extracted text (None: invalid, or a user's own grader). `path` tells what decided: "string",
    "rational", "numeric", "symbolic", "timeout" or "died" (two workers overran their deadline or a limit: incorrect),
    "raised" (the comparison failed with an error: incorrect), "none" (invalid), "user". `reward` is the number that a
    user's own grader gave, None where there is none.
    """

    verdict: Verdict
    answer: str | None
    path: str
    reward: float | None = None


@dataclass(slots=True)
class _Open:
    """A completion whose outcome may still be on its way; its number counts from 1."""

    number: int
    answer: str | None
    future: Future[Answer] | None = None
    pair: tuple[str, str] | None = None
    outcome: Outcome | None = None


def cores() -> int:
    """The CPUs that this process may use, its share where the run's other processes on this machine use the same."""
    allowed, asked = len(os.sched_getaffinity(0)), os.environ.get
    # Where each process is a task of Slurm's, it may have been bound to CPUs that the others don't have.
    is_task = asked("SLURM_NTASKS") == asked("WORLD_SIZE")
    if is_task and allowed <= int(asked("SLURM_CPUS_PER_TASK", "0")):
        return allowed
    return max(1, allowed // int(asked("LOCAL_WORLD_SIZE", "1")))


_graders: weakref.WeakSet[Grader] = weakref.WeakSet()


def _forget_pools() -> None:
    for grader in list(_graders):
        grader._after_fork()


os.register_at_fork(after_in_child=_forget_pools)


class Grader:
    """Decides correct / incorrect / invalid for (completion, gold) pairs.

    `name` is an answer format ("gsm8k", "math", "final") or "package.module:function", a function of your own
    (completion, gold) -> "correct" | "incorrect" | "invalid", or a number, which is correct from `threshold` on; or a
    tuple of that and the answer's text (which maj@K needs), or of verdict, answer and number; it runs in the same
    sealed workers. With `graded` it has to give a number. `workers` processes (default: `cores()`) start when first
    needed; a comparison gets `deadline` seconds (default: DEADLINE, a call of your own function OWN_DEADLINE).
    Thread-safe; a forked child and an unpickled copy start workers of their own. Use as a context manager, or `close`.

    Raises ConfigError for an unknown name, TOPRError if a user's function raises or returns anything else, a number
    that is not finite included.
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
        if deadline is None:
            deadline = OWN_DEADLINE if self._own else DEADLINE
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1; got {workers}")
        if not deadline > 0:
            raise ConfigError(f"deadline must be a positive number of seconds; got {deadline}")
        self.name, self.deadline, self.graded, self.threshold = name, deadline, graded, threshold
        self.workers = workers if workers is not None else cores()
        self.counters: Counter[str] = Counter()
        self._cache: OrderedDict[tuple[str, str], tuple[bool, str]] = OrderedDict()
        self._under_way: weakref.WeakValueDictionary[tuple[str, str], Future[Answer]] = weakref.WeakValueDictionary()
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()
        _graders.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grader, (self.name, self.workers, self.deadline, self.graded, self.threshold)

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the workers now (it takes 1 to 2 seconds), not with the first answer that needs them."""
        self._workers_pool()

    def close(self) -> None:
        """End the workers; the grader stays usable and would start new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def worker_pids(self) -> list[int]:
        """Process ids of the server and the workers; empty while none were needed."""
        with self._lock:
            pool = self._pool
        return pool.pids() if pool is not None else []

    def grade(self, pairs: Iterable[tuple[str, str] | None]) -> Iterator[Outcome]:
        """One Outcome for each (completion, gold), in order, while `pairs` is still being read.

        A None among the pairs says that the source has nothing more for now: all that is open is finished before the
        next pair is asked for. Identical answers to the same gold are compared once.
        """
        open_items: deque[_Open] = deque()
        limit, number = AHEAD * self.workers, 0
        for pair in pairs:
            if pair is not None:
                number += 1
                open_items.append(self._begin(number, *pair))
            while open_items and (pair is None or len(open_items) > limit or self._ready(open_items[0])):
                yield self._finish(open_items.popleft())
        while open_items:
            yield self._finish(open_items.popleft())

    def classes(self, answers: Sequence[str | None]) -> list[int]:
        """Equivalent answers share a number, counted from 0 in order of first appearance; None gets -1.

        At most MAX_CLASS_COMPARISONS comparisons are symbolic; of answers of a user's own grader, none is.
        """
        forms = [None if answer is None else normal_form(answer) for answer in answers]
        texts: dict[Any, str] = {}  # normal form -> the first answer that has it
        for form, answer in zip(forms, answers, strict=True):
            if form is not None and answer is not None:
                texts.setdefault(form, answer)
        counts = Counter(form for form in forms if form is not None)
        representative = self._merge_forms({form: texts[form] for form, _ in counts.most_common()})
        numbers: dict[Any, int] = {}
        return [-1 if form is None else numbers.setdefault(representative[form], len(numbers)) for form in forms]

    def _merge_forms(self, texts: dict[Any, str]) -> dict[Any, Any]:
        """Each form's representative: the first of the forms, in their order, whose text equals its own."""
        representative: dict[Any, Any] = {}
        budget = 0 if self._own else MAX_CLASS_COMPARISONS
        for form, text in texts.items():
            others = dict.fromkeys(representative.values())
            verdicts = {other: compare_quickly(texts[other], text)[0] for other in others}
            equal = [other for other in others if verdicts[other]]
            if not equal:
                open_ = [other for other in others if verdicts[other] is None][:budget]
                budget -= len(open_)
                futures = [(other, self._workers_pool().submit(texts[other], text)) for other in open_]
                equal = [other for other, future in futures if _answer(future) == ("ok", True)]
            representative[form] = equal[0] if equal else form
        return representative

    # ---- one completion ----

    def _begin(self, number: int, completion: str, gold: str) -> _Open:
        if self._own:
            return _Open(number, None, self._workers_pool().submit(completion, gold))
        answer = extract(completion, self.name)
        if answer is None:
            return _Open(number, None, outcome=Outcome("invalid", None, "none"))
        pair = (gold, answer)
        with self._lock:
            cached = self._cache.get(pair)
            if cached is not None:
                self._cache.move_to_end(pair)
        if cached is None:
            equal, path = compare_quickly(gold, answer)
            if equal is None:
                return _Open(number, answer, self._compare_in_worker(pair), pair)
            cached = (equal, path)
            self._remember(pair, cached)
        return _Open(number, answer, outcome=_outcome(answer, *cached))

    def _compare_in_worker(self, pair: tuple[str, str]) -> Future[Answer]:
        with self._lock:
            future = self._under_way.get(pair)
        if future is None:
            future = self._workers_pool().submit(*pair)
            with self._lock:
                self._under_way[pair] = future
        return future

    @staticmethod
    def _ready(item: _Open) -> bool:
        return item.outcome is not None or (item.future is not None and item.future.done())

    def _finish(self, item: _Open) -> Outcome:
        outcome = item.outcome
        if outcome is None:
            assert item.future is not None
            status, value = _answer(item.future)
            if self._own:
                outcome = self._user_outcome(item.number, status, value)
            else:  # no text of a model may end a run, not even where sympy has a bug: "raised" is counted and shown
                path = {"ok": "symbolic", "error": "raised"}.get(status, status)
                equal = status == "ok" and value is True
                assert item.answer is not None
                assert item.pair is not None
                self._remember(item.pair, (equal, path))
                outcome = _outcome(item.answer, equal, path)
        with self._lock:
            self.counters[outcome.path] += 1
            self.counters[outcome.verdict] += 1
        return outcome

    def _user_outcome(self, number: int, status: str, value: Any) -> Outcome:
        if status == "error":
            raise TOPRError(f"grader {self.name} raised {' '.join(value.split())} (completion {number})")
        if status != "ok":
            return Outcome("incorrect", None, status)
        verdict, answer, reward = _parts(value)
        if not _is_result(verdict, answer, reward):
            raise TOPRError(
                f"grader {self.name} must return one of {', '.join(VERDICTS)}, or a number, or one of these and the "
                f"answer's text, or a verdict, the answer and a number; got {value!r:.100} (completion {number})"
            )
        if reward is None and self.graded:
            raise TOPRError(
                f"grader {self.name} must give a number where data.reward=graded; got {value!r:.100} "
                f"(completion {number})"
            )
        if reward is not None and not abs(reward) <= LARGEST_REWARD:  # not-a-number, too
            raise TOPRError(f"grader {self.name} gave the reward {reward}, which is not finite (completion {number})")
        if verdict is None:
            verdict = "correct" if reward >= self.threshold else "incorrect"
        return Outcome(verdict, answer, "user", None if reward is None else float(reward))

    def _remember(self, pair: tuple[str, str], decided: tuple[bool, str]) -> None:
        if len(pair[0]) + len(pair[1]) > CACHED_CHARS:
            return
        with self._lock:
            self._cache[pair] = decided
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)

    def _workers_pool(self) -> WorkerPool:
        with self._lock:
            if self._pool is None:
                self._pool = WorkerPool(self.name if self._own else SYMBOLIC, self.workers, self.deadline)
            return self._pool

    def _after_fork(self) -> None:
        pool, self._pool, self._lock = self._pool, None, threading.Lock()
        self._under_way.clear()
        if pool is not None:
            pool.abandon()


def _answer(future: Future[Answer]) -> Answer:
    status, value = future.result()
    if status == "failed":
        raise TOPRError(f"grading failed: {value}")
    return status, value


def _parts(value: Any) -> tuple[Any, Any, Any]:
    """Verdict, answer and reward of what a user's function returned, as JSON gives it back; None where it gave none."""
    parts = value if isinstance(value, list) and len(value) in (2, 3) else [value]
    first, answer, reward = (*parts, None, None)[:3]
    return (None, answer, first) if _is_number(first) and len(parts) < 3 else (first, answer, reward)


def _is_result(verdict: Any, answer: Any, reward: Any) -> bool:
    judged = verdict in VERDICTS if verdict is not None else reward is not None
    return judged and (answer is None or isinstance(answer, str)) and (reward is None or _is_number(reward))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _outcome(answer: str, equal: bool, path: str) -> Outcome:
    return Outcome("correct" if equal else "incorrect", answer, path)


def version(name: str) -> str:
    """Identify a grader in store keys, so that a changed one grades again: its version, or your file's content."""
    path = source_file(name)
    return GRADER_VERSION if path is None else f"{GRADER_VERSION} {file_digest(path)}"


def source_file(name: str) -> Path | None:
    """Find the file of a user's function; None for an answer format."""
    spec = None if name in FORMATS else importlib.util.find_spec(name.partition(":")[0])
    return Path(spec.origin) if spec is not None and spec.origin is not None and Path(spec.origin).is_file() else None


def check_name(name: str) -> None:
    """Raises ConfigError unless `name` is an answer format or an importable "package.module:function"."""
    if name in FORMATS:
        return
    module, colon, function = name.partition(":")
    allowed = f"one of {', '.join(FORMATS)} or package.module:function"
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"grader must be {allowed}; got {name}")
    found: Callable[..., Any] | None = None
    reason = "it has no such function"
    with contextlib.suppress(AttributeError):
        try:
            found = getattr(topr_exp.import_own(module), function)
        except Exception as error:
            if isinstance(error, AttributeError) and not isinstance(error, ImportError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
    if not callable(found):
        raise ConfigError(f"grader {name} cannot be loaded ({reason}); it must be {allowed}")
