"""Limit on the processor time of a block that does what a stranger's file asks for, such as a chat template."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def processor_time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer; no limit outside the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end_block(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} s of processor time")

    previous_handler = signal.signal(signal.SIGPROF, end_block)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous_handler)
