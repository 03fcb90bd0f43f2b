"""Waits for other processes that make shards."""

import time
from collections.abc import Callable

PAUSE_SECONDS = 0.1  # between two attempts at another process's lock, at first
MAX_PAUSE_SECONDS = 5.0
PAUSE_SHARE = 0.1  # of the time waited so far: hundreds of waiting processes must not keep a file server busy


class Wait:
    """Wait for other processes' shards, in pauses that grow; says what for."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._message = ""  # shown last
        self._began: float | None = None

    def pause(self, message: str) -> None:
        """Sleep until the next look; show the message if it is new."""
        if message != self._message:
            self._show(message)
            self._message = message
        if self._began is None:
            self._began = time.monotonic()
        pause = max(PAUSE_SECONDS, PAUSE_SHARE * (time.monotonic() - self._began))
        time.sleep(min(pause, MAX_PAUSE_SECONDS))

    def reset(self) -> None:
        """Begin with short pauses again."""
        self._began = None
