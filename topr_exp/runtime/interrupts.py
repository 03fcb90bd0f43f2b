"""Signals that ask a run to stop: what is finished is kept, and the same command goes on from there.

SIGTERM (a preempted or cancelled job), SIGUSR1 and SIGUSR2 (a time limit is near), SIGINT (Ctrl-C) and SIGHUP (a closed
terminal) end a run at once, as an exception, wherever nothing would be lost: between two shards of the store, say.
Where all since the last checkpoint would be lost, `deferred` puts that off until `stop_if_requested`, which the
training loops call once they have saved. An evaluation within such a loop is `breakable`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from topr_exp.runtime import distributed

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
STOP = "stop"  # on the blackboard: the signal that broke a block off


class Interrupted(BaseException):
    """A run was asked to stop, and stopped where it can go on. No Exception: nothing handles it on the way up."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}; the same command goes on from there")

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (int(self.signal),)


class BrokenOff(Interrupted):
    """A signal broke a `breakable` block off, in every process of the run: save, then call `stop_if_requested`."""


_received: int | None = None  # the first signal that came
_agreed: int | None = None  # the same; while deferred, once every process of the run knows of it
_deferring = False


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Handle the signals while the block runs; outside the main thread, where Python forbids it, do nothing."""
    global _received, _agreed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received = _agreed = None
    nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, _handle) for number in SIGNALS if number not in nohup}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let the block run to its end: it saves, and calls `stop_if_requested`."""
    global _deferring, _agreed
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
        _agreed = _agreed or _received


@contextlib.contextmanager
def breakable() -> Iterator[None]:
    """Within `deferred`: raise BrokenOff once a signal comes to any process of the run; every process runs the block.

    The block must have no collectives: a process that the signal did not reach leaves it at the next `stop_early`.
    """
    global _deferring
    if not _deferring:
        yield
        return
    with contextlib.suppress(Interrupted):
        _deferring = False
        stop_early()
        yield
        _deferring = True
    _deferring = True
    if _received is not None and distributed.world_size() > 1:
        distributed.blackboard().set(STOP, str(_received))
    agree_on_stop()
    if _agreed is not None:
        raise BrokenOff(_agreed)


def stop_early() -> None:
    """Between two shards: stop if a signal came to this process, or broke the same block off in another one."""
    number = _received
    if number is None and distributed.world_size() > 1 and distributed.blackboard().check([STOP]):
        number = int(distributed.blackboard().get(STOP))
    if number is not None and not _deferring:
        raise Interrupted(number)


def agree_on_stop() -> None:
    """Within `deferred`: learn of signals that came to any process of the run, at the same point on each of them."""
    global _agreed
    received = max(distributed.all_gather(_received or 0))
    _agreed = _agreed or received or None


def stop_requested() -> bool:
    """True once all processes agree that a signal asked the run to stop."""
    return _agreed is not None


def stop_if_requested() -> None:
    """Stop here if a signal asked for it."""
    if _agreed is not None:
        raise Interrupted(_agreed)


def _handle(number: int, frame: FrameType | None) -> None:
    global _received, _agreed
    first, again = _received is None, number == signal.SIGINT and _received == signal.SIGINT
    _received = _received or number
    if not _deferring or distributed.world_size() == 1:
        _agreed = _agreed or _received
    # Once only, so that a second signal can't break off the cleaning up; but a second Ctrl-C waits for no update.
    if (first and not _deferring) or (again and _deferring):
        raise Interrupted(number)
