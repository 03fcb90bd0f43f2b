"""Stop signals of a run: what is finished is kept, and the same command goes on from there.

SIGTERM (preemption, cancel), SIGUSR1 and SIGUSR2 (time limit), SIGINT (Ctrl-C) and SIGHUP (closed terminal) set a flag.
Within `immediate`, where nothing is lost, they raise Interrupted at once; training asks after each update, and saves.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from topr_exp.runtime import distributed

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """A run was asked to stop, and stopped where it can go on. A BaseException: no `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}; the same command goes on from there")

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        return Interrupted, (int(self.signal),)


class StopFlag:
    """The first stop signal that came to a run; made in `run` and handed down."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._immediate = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the block runs; outside the main thread, where Python forbids it, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        before = {number: signal.signal(number, self._handle) for number in SIGNALS if number not in nohup}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise Interrupted as soon as a signal comes within the block, or came before it."""
        outside, self._immediate = self._immediate, True
        try:
            self.check()
            yield
        finally:
            self._immediate = outside

    @contextlib.contextmanager
    def leaving_together(self) -> Iterator[None]:
        """As `immediate`; in training all processes leave the block, which has no collectives, before all raise."""
        if self._immediate:
            yield
            return
        with contextlib.suppress(Interrupted), self.immediate():
            yield
        self.share()
        self.check()

    def share(self) -> bool:
        """Tell all processes of the run of a signal that came to any, at the same point on each; True if one did."""
        came = max(distributed.all_gather(self._signal or 0))
        if came:  # a signal that comes meanwhile is of the next time: all processes answer alike
            self._signal = self._signal or came
        return came != 0

    def requested(self) -> bool:
        """True once a signal came to this process, or was shared."""
        return self._signal is not None

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self._signal is not None:
            raise Interrupted(self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, again = self._signal is None, number == signal.SIGINT == self._signal
        self._signal = self._signal or number
        # Once only, so that a second signal can't break off the cleaning up; but a second Ctrl-C waits for no update.
        if (first and self._immediate) or (again and not self._immediate):
            raise Interrupted(number)
