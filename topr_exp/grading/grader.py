"""Grades completions against golds in order, streaming: the fast paths here, the symbolic one in killable workers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.grading.equivalence import key, quick
from topr_exp.grading.extraction import FORMATS, extract
from topr_exp.grading.pool import Pool, Ticket
from topr_exp.store.files import file_digest
from topr_exp.types import VERDICTS, ConfigError, TOPRError, Verdict

GRADER_VERSION = "1"  # part of store keys: raise it with every change that can change a verdict

SYMBOLIC_TARGET = "topr_exp.grading.symbolic:equal"
DEADLINE, OWN_DEADLINE = 1.0, 10.0  # seconds
CACHED = 1 << 14  # verdicts of identical (gold, answer) pairs that are kept
CACHED_CHARS = 1000  # a longer pair is not kept
AHEAD = 64  # completions read ahead of the oldest open one, for each worker
MAX_CLASS_COMPARISONS = 64  # symbolic comparisons within one call of `classes`


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one completion.

    `answer` is the extracted text (None: invalid, or a user's own grader). `path` tells what decided: "string",
    "rational", "symbolic", "timeout" or "died" (a worker overran its deadline or a limit: incorrect), "none" (invalid),
    "user".
    """

    verdict: Verdict
    answer: str | None
    path: str


@dataclass(slots=True)
class _Open:
    """A completion whose outcome may still be on its way."""

    answer: str | None
    ticket: Ticket | None = None
    pair: tuple[str, str] | None = None
    outcome: Outcome | None = None


def cores() -> int:
    """The CPUs that this process may use, shared with the run's other processes on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


_graders: weakref.WeakSet[Grader] = weakref.WeakSet()


def _forget_pools() -> None:
    for grader in list(_graders):
        grader._after_fork()


os.register_at_fork(after_in_child=_forget_pools)


class Grader:
    """Decides correct / incorrect / invalid for (completion, gold) pairs.

    `name` is an answer format ("gsm8k", "math", "final") or "package.module:function", a function of your own
    (completion, gold) -> "correct" | "incorrect" | "invalid", or a tuple of that and the answer's text (which maj@K
    needs); it runs in the workers too. `workers` processes (default: `cores()`) start when first needed; a
    comparison gets `deadline` seconds (default: DEADLINE, a call of your own function OWN_DEADLINE).
    Thread-safe; a forked child and an unpickled copy start workers of their own. Use as a context manager, or `close`.

    Raises ConfigError for an unknown name, TOPRError if a user's function raises or returns anything else.
    """

    def __init__(self, name: str, workers: int | None = None, deadline: float | None = None) -> None:
        check_name(name)
        self._own = name not in FORMATS
        if deadline is None:
            deadline = OWN_DEADLINE if self._own else DEADLINE
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1; got {workers}")
        if not deadline > 0:
            raise ConfigError(f"deadline must be a positive number of seconds; got {deadline}")
        self.name, self.deadline = name, deadline
        self.workers = workers if workers is not None else cores()
        self.counters: Counter[str] = Counter()
        self._cache: OrderedDict[tuple[str, str], tuple[bool, str]] = OrderedDict()
        self._under_way: weakref.WeakValueDictionary[tuple[str, str], Ticket] = weakref.WeakValueDictionary()
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        _graders.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Grader, (self.name, self.workers, self.deadline)

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
        limit = AHEAD * self.workers
        for pair in pairs:
            if pair is not None:
                open_items.append(self._begin(*pair))
            while open_items and (pair is None or len(open_items) > limit or self._ready(open_items[0])):
                yield self._finish(open_items.popleft())
        while open_items:
            yield self._finish(open_items.popleft())

    def classes(self, answers: Sequence[str | None]) -> list[int]:
        """Equivalent answers share a number, counted from 0 in order of first appearance; None gets -1.

        Equal normal forms need no comparison; the remaining forms are compared most frequent first, at most
        MAX_CLASS_COMPARISONS times symbolically. For a user's own grader, answers are equal as normal forms only.
        """
        keys = [None if answer is None else key(answer) for answer in answers]
        counts = Counter(k for k in keys if k is not None)
        example: dict[Any, str] = {}
        for k, answer in zip(keys, answers, strict=True):
            if k is not None and answer is not None:
                example.setdefault(k, answer)
        chief: dict[Any, Any] = {}  # normal form -> the form that stands for its class
        budget = 0 if self._own else MAX_CLASS_COMPARISONS
        for form, _ in counts.most_common():
            chief[form] = form
            verdicts = [
                (other, quick(example[other], example[form])[0])
                for other in dict.fromkeys(chief.values())
                if other != form
            ]
            known = [other for other, verdict in verdicts if verdict]
            if known:
                chief[form] = known[0]
                continue
            unsure = [other for other, verdict in verdicts if verdict is None][:budget]
            budget -= len(unsure)
            tickets = [(other, self._workers_pool().submit(example[other], example[form])) for other in unsure]
            equal = [other for other, ticket in tickets if ticket.result() == ("ok", True)]
            if equal:
                chief[form] = equal[0]
        numbers: dict[Any, int] = {}
        return [-1 if k is None else numbers.setdefault(chief[k], len(numbers)) for k in keys]

    # ---- one completion ----

    def _begin(self, completion: str, gold: str) -> _Open:
        if self._own:
            return _Open(None, self._workers_pool().submit(completion, gold))
        answer = extract(completion, self.name)
        if answer is None:
            return _Open(None, outcome=Outcome("invalid", None, "none"))
        pair = (gold, answer)
        with self._lock:
            cached = self._cache.get(pair)
            if cached is not None:
                self._cache.move_to_end(pair)
        if cached is None:
            equal, path = quick(gold, answer)
            if equal is None:
                return _Open(answer, self._symbolic(pair), pair)
            cached = (equal, path)
            self._remember(pair, cached)
        return _Open(answer, outcome=_outcome(answer, *cached))

    def _symbolic(self, pair: tuple[str, str]) -> Ticket:
        with self._lock:
            ticket = self._under_way.get(pair)
        if ticket is None:
            ticket = self._workers_pool().submit(*pair)
            with self._lock:
                self._under_way[pair] = ticket
        return ticket

    @staticmethod
    def _ready(item: _Open) -> bool:
        return item.outcome is not None or (item.ticket is not None and item.ticket.done())

    def _finish(self, item: _Open) -> Outcome:
        outcome = item.outcome
        if outcome is None:
            assert item.ticket is not None
            status, value = item.ticket.result()
            if status == "failed" or (status == "error" and not self._own):
                raise TOPRError(f"grading failed: {value}")
            if self._own:
                outcome = self._user_outcome(status, value)
            else:
                path = "symbolic" if status == "ok" else status
                equal = status == "ok" and value is True
                assert item.answer is not None
                assert item.pair is not None
                self._remember(item.pair, (equal, path))
                outcome = _outcome(item.answer, equal, path)
        with self._lock:
            self.counters[outcome.path] += 1
            self.counters[outcome.verdict] += 1
        return outcome

    def _user_outcome(self, status: str, value: Any) -> Outcome:
        if status == "error":
            raise TOPRError(f"grader {self.name} raised {' '.join(value.split())}")
        if status != "ok":
            return Outcome("incorrect", None, status)
        verdict, answer = value if isinstance(value, list) and len(value) == 2 else (value, None)
        if verdict not in VERDICTS or not (answer is None or isinstance(answer, str)):
            raise TOPRError(
                f"grader {self.name} must return one of {', '.join(VERDICTS)}, or a verdict and the answer's text; "
                f"got {value!r:.100}"
            )
        return Outcome(verdict, answer, "user")

    def _remember(self, pair: tuple[str, str], decided: tuple[bool, str]) -> None:
        if len(pair[0]) + len(pair[1]) > CACHED_CHARS:
            return
        with self._lock:
            self._cache[pair] = decided
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)

    def _workers_pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self.name if self._own else SYMBOLIC_TARGET, self.workers, self.deadline)
            return self._pool

    def _after_fork(self) -> None:
        pool, self._pool, self._lock = self._pool, None, threading.Lock()
        self._under_way.clear()
        if pool is not None:
            pool.abandon()


def _outcome(answer: str, equal: bool, path: str) -> Outcome:
    return Outcome("correct" if equal else "incorrect", answer, path)


def version(name: str) -> str:
    """What store keys know a grader by, so that a changed one grades again: its version, or your file's content."""
    path = source_file(name)
    return GRADER_VERSION if path is None else f"{GRADER_VERSION} {file_digest(path)}"


def source_file(name: str) -> Path | None:
    """Where a function of your own is written; None for an answer format."""
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
            found = getattr(importlib.import_module(module), function)
        except Exception as error:
            if isinstance(error, AttributeError) and not isinstance(error, ImportError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
    if not callable(found):
        raise ConfigError(f"grader {name} cannot be loaded ({reason}); it must be {allowed}")
