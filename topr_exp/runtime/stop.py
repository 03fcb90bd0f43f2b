"""Stop signals of a run: finished work is kept, and the same command resumes it.

SIGTERM (preemption, cancel), SIGUSR1 and SIGUSR2 (time limit), SIGINT (Ctrl-C) and SIGHUP (closed terminal) set a flag.
Within `immediate`, where nothing is lost, they raise Interrupted at once; training checks the flag after each update,
and saves.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from topr_exp.runtime import distributed

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """A stop signal ended a run where it can resume. A BaseException, so that no `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name}; the same command goes on from there")

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        return Interrupted, (int(self.signal),)


class StopFlag:
    """The first stop signal that came to a run; made once per run and passed down."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._raises_at_once = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals during the block; outside the main thread, where Python forbids it, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous_handlers = {}
        for number in SIGNALS:
            ignored_by_nohup = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
            if not ignored_by_nohup:
                previous_handlers[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise Interrupted as soon as a signal comes during the block, or if one came before it."""
        outer_value = self._raises_at_once
        self._raises_at_once = True
        try:
            self.check()
            yield
        finally:
            self._raises_at_once = outer_value

    @contextlib.contextmanager
    def leaving_together(self) -> Iterator[None]:
        """As `immediate`; in training all processes leave the block, which has no collectives, before all raise."""
        if self._raises_at_once:
            yield
            return
        with contextlib.suppress(Interrupted), self.immediate():
            yield
        self.share()
        self.check()

    def share(self) -> bool:
        """Exchange signals among the processes of the run, at the same point on each; return True if any had one."""
        number = max(distributed.all_gather(self._signal or 0))
        if number and self._signal is None:  # one that comes meanwhile counts next time: all processes answer alike
            self._signal = number
        return number != 0

    def requested(self) -> bool:
        """True once a signal came to this process, or was shared."""
        return self._signal is not None

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self._signal is not None:
            raise Interrupted(self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; raise at most once, so that a second signal can't break off the cleaning up.

        But a second Ctrl-C does not wait for the end of an update.
        """
        is_first = self._signal is None
        is_second_ctrl_c = number == signal.SIGINT and self._signal == signal.SIGINT
        if is_first:
            self._signal = number
        if (is_first and self._raises_at_once) or (is_second_ctrl_c and not self._raises_at_once):
            raise Interrupted(number)
