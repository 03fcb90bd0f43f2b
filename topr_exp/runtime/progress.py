"""Progress of what takes long: a line that is rewritten on a terminal, one every ten seconds in a file."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import printable

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_NOTES = 2.0
CLEAR = "\r\x1b[K"  # from here the terminal's line is written anew

# Called every few seconds with the progress: the run's folder notes it, so that others can see it.
listener: Callable[[dict[str, Any]], None] | None = None


def note_line(text: str) -> None:
    """Print a line beside the progress on standard error, once for all processes of a run."""
    if distributed.is_main_process():
        print((CLEAR if sys.stderr.isatty() else "") + printable(text), file=sys.stderr, flush=True)


class Progress:
    """Counts `total` units of work with rate (of `rate_unit`, as tokens) and time left, on standard error."""

    def __init__(self, label: str, total: int, unit: str, *, done: int = 0, rate_unit: str | None = None) -> None:
        self.label, self.total, self.unit, self.rate_unit = label, total, unit, rate_unit or unit
        self.done = self.first = done
        self.amount, self.note = 0.0, ""
        self.start = self.printed = time.monotonic()
        self.noted = -SECONDS_BETWEEN_NOTES
        self.shown = distributed.is_main_process()  # one line for all processes of a run
        self.terminal = self.shown and sys.stderr.isatty()

    def update(self, count: int, amount: float | None = None, note: str = "") -> None:
        """`count` more units are done; `amount` is what they add to the rate (default: `count`)."""
        self.done += count
        self.amount += count if amount is None else amount
        self.note = note
        now = time.monotonic()
        if self.terminal or (now - self.printed >= SECONDS_BETWEEN_LINES and self.done < self.total):
            self.print(f", {self.left():.0f} s left")
            self.printed = now
        if listener is not None and now - self.noted >= SECONDS_BETWEEN_NOTES:
            self.noted = now
            listener({"done": self.done, "total": self.total, "unit": self.unit, "seconds_left": round(self.left(), 1)})

    def message(self, text: str) -> None:
        """A line beside the progress, such as what this process waits for."""
        note_line(text)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out of the rate and of what is left."""
        began = time.monotonic()
        yield
        self.start += time.monotonic() - began

    def left(self) -> float:
        """Seconds until the end, at the pace so far."""
        return (time.monotonic() - self.start) / max(self.done - self.first, 1) * (self.total - self.done)

    def rate(self) -> str:
        """Units (or what `rate_unit` names) a second so far."""
        seconds = time.monotonic() - self.start
        return f"{self.amount / seconds:,.0f} {self.rate_unit}/s" if self.amount and seconds > 0 else ""

    def print(self, when: str, *, ends: bool = False) -> None:
        if self.shown:
            parts = [f"{self.done}/{self.total} {self.unit}{when}", self.rate(), self.note]
            text = f"{self.label:<12} " + ", ".join(part for part in parts if part)
            start, end = (CLEAR, "\n" if ends else "") if self.terminal else ("", "\n")
            print(start + text, end=end, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if kind is None:
            self.print(f" in {time.monotonic() - self.start:.1f} s", ends=True)
        elif self.terminal:
            print(file=sys.stderr)
