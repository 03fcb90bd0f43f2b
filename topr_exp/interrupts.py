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

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Interrupted(BaseException):
    """A run was asked to stop, and stopped where it can go on. No Exception: nothing handles it on the way up."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}; the same command goes on from there")


_asked: int | None = None  # the first signal that came
_deferring = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Answer the signals while the block runs; outside the main thread, where Python forbids it, do nothing."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked = None
    before = {number: signal.signal(number, _answer) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Put the answer off while the block runs: whoever runs it saves, and calls `check`."""
    global _deferring
    _deferring = True
    try:
        yield
    finally:
        _deferring = False


def asked() -> bool:
    """Whether a signal asked the run to stop."""
    return _asked is not None


def check() -> None:
    """Stop here if a signal asked for it."""
    if _asked is not None:
        raise Interrupted(_asked)


def _answer(number: int, frame: FrameType | None) -> None:
    global _asked
    first, again = _asked is None, number == signal.SIGINT and _asked == signal.SIGINT
    _asked = _asked or number
    # Once only, so that a second signal can't break off the cleaning up; but a second Ctrl-C waits for no update.
    if (first and not _deferring) or (again and _deferring):
        raise Interrupted(number)
