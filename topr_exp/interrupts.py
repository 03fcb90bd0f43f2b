"""Signals that ask a run to stop: what is finished is kept, and the same command goes on from there.

SIGTERM (a preempted or cancelled job), SIGUSR1 and SIGUSR2 (a time limit is near) and SIGINT (Ctrl-C) end a run at
once, as an exception, wherever nothing would be lost: between two shards of the store, say. Where work since the last
checkpoint would be lost, `deferred` puts the answer off until `check`, which the training loops call once they saved.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from topr_exp import world

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Interrupted(BaseException):
    """A run was asked to stop, and stopped where it can go on. No Exception: nothing handles it on the way up."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}; the same command goes on from there")

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (int(self.signal),)


_heard: int | None = None  # the first signal that came
_asked: int | None = None  # the same; while deferred, once every process of the run knows of it
_deferring = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Answer the signals while the block runs; outside the main thread, where Python forbids it, do nothing."""
    global _heard, _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _heard = _asked = None
    before = {number: signal.signal(number, _answer) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Put the answer off while the block runs: whoever runs it saves, and calls `check`."""
    global _deferring, _asked
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
        _asked = _asked or _heard


def agree() -> None:
    """Within `deferred`: learn of signals that came to any process of the run, at the same point on each of them."""
    global _asked
    _asked = _asked or max(world.gather(_heard or 0)) or None


def asked() -> bool:
    """Whether a signal asked the run to stop, as far as all its processes agreed on that."""
    return _asked is not None


def check() -> None:
    """Stop here if a signal asked for it."""
    if _asked is not None:
        raise Interrupted(_asked)


def _answer(number: int, frame: FrameType | None) -> None:
    global _heard, _asked
    first, again = _heard is None, number == signal.SIGINT and _heard == signal.SIGINT
    _heard = _heard or number
    if not _deferring or world.size() == 1:
        _asked = _asked or _heard
    # Once only, so that a second signal can't break off the cleaning up; but a second Ctrl-C waits for no update.
    if (first and not _deferring) or (again and _deferring):
        raise Interrupted(number)
