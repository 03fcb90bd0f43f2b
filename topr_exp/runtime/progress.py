"""Progress of what takes long: a line that is rewritten on a terminal, one every ten seconds in a file.

A thread writes it, so that lines come while a single unit of work takes minutes.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, Self

from topr_exp.runtime import distributed
from topr_exp.runtime.terminal import printable

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REWRITES = 0.5
SECONDS_BETWEEN_NOTES = 2.0
CLEAR = "\r\x1b[K"  # from here the terminal's line is written anew
WORDS = {"s": 1, "min": 60, "h": 3600}  # seconds of each unit of time

Kind = Literal["sampling", "grading", "scoring", "training"]


class Watcher(Protocol):
    """What a run does with the progress of its work."""

    def note_progress(self, progress: "Progress") -> None:
        """Take notice of the progress; called every few seconds, by the thread that works."""

    def end_progress(self, progress: "Progress") -> None:
        """Take notice of work that is complete."""

    def seconds_left(self, under_way: Sequence["Progress"]) -> float | None:
        """Return the time that the whole run still takes, None where nothing tells."""


watcher: Watcher | None = None
_open: list["Progress"] = []  # the innermost, which alone is shown, last


def note_line(text: str) -> None:
    """Print a line beside the progress on standard error, once for all processes of a run."""
    if distributed.is_main_process():
        print((CLEAR if sys.stderr.isatty() else "") + printable(text), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time for people to read, such as 95 s or 12 min."""
    unit = "s"
    for name, length in WORDS.items():
        if seconds >= 2 * length:
            unit = name
    return f"{seconds / WORDS[unit]:.0f} {unit}"


class Progress:
    """Counts `total` units of work with rate (of `rate_unit`, as tokens) and time left, on standard error.

    done: units of an earlier attempt. Units without an amount, before any that has one, were there before, too.
    """

    def __init__(
        self, label: str, total: int, unit: str, kind: Kind, *, done: int = 0, rate_unit: str | None = None
    ) -> None:
        self.label, self.total, self.unit, self.kind, self.rate_unit = label, total, unit, kind, rate_unit or unit
        self.done = self.first = done
        self.amount, self.amount_under_way, self.of_completions = 0.0, 0.0, 0.0
        self.counts: dict[str, int] = {}  # tokens of other work of the unit under way, by what is done to them
        self.note = self.waits_for = ""
        self.start = time.monotonic()
        self.paused_since: float | None = None
        self.noted = -SECONDS_BETWEEN_NOTES
        self.shown = distributed.is_main_process()  # one line for all processes of a run
        self.terminal = self.shown and sys.stderr.isatty()
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_lines, daemon=True)

    # ---- counting

    def update(self, count: int, amount: float | None = None, note: str = "", *, of_completions: float = 0) -> None:
        """`count` more units are done; `amount` is what they add to the rate (default: `count`; 0: were made before).

        of_completions: the part of an amount of tokens that is not of prompts, where the amount has both.
        """
        made = count if amount is None else amount
        if made == 0 and self.done == self.first:
            self.first += count
        self.done += count
        self.amount += made
        self.of_completions += of_completions
        self.amount_under_way, self.counts, self.note = 0.0, {}, note
        self._tell_watcher()

    def advance(self, amount: float) -> None:
        """So much more is done of units under way."""
        self.amount_under_way += amount
        self._tell_watcher()

    def count(self, done_to_them: str, tokens: int) -> None:
        """So many more tokens are, say, sampled for the unit under way, which are no part of its rate."""
        self.counts[done_to_them] = self.counts.get(done_to_them, 0) + tokens
        self._tell_watcher()

    def _tell_watcher(self) -> None:
        now = time.monotonic()
        if watcher is not None and now - self.noted >= SECONDS_BETWEEN_NOTES:
            self.noted = now
            watcher.note_progress(self)

    @contextlib.contextmanager
    def paused(self, waits_for: str) -> Iterator[None]:
        """Leave the time of the block, in which it waits for something, out of the rate and of what is left."""
        self.waits_for, self.paused_since = waits_for, time.monotonic()
        try:
            yield
        finally:
            self.start += time.monotonic() - self.paused_since
            self.waits_for, self.paused_since = "", None

    # ---- what follows from the counts

    @property
    def seconds(self) -> float:
        """Seconds of work so far."""
        return (self.paused_since or time.monotonic()) - self.start

    @property
    def made(self) -> float:
        """Units made so far, those under way by the amount that the others had."""
        whole = self.done - self.first
        under_way = self.amount_under_way * whole / self.amount if self.amount else 0.0
        return min(whole + under_way, float(self.total - self.first))

    def left(self) -> float | None:
        """Seconds until the end, at the pace so far; None before the first unit is done."""
        if self.done == self.first:
            return None
        return self.seconds / self.made * (self.total - self.first - self.made)

    def rate(self) -> str:
        """Units (or what `rate_unit` names) a second so far."""
        amount, seconds = self.amount + self.amount_under_way, self.seconds
        if not amount or seconds <= 0:
            return ""
        if not self.of_completions:
            return f"{amount / seconds:,.0f} {self.rate_unit}/s"
        own = self.of_completions / self.amount * amount / seconds
        return f"{amount / seconds:,.0f} {self.rate_unit}/s with prompts, {own:,.0f} of completions"

    # ---- the line

    def line(self) -> str:
        """How far the work is, for people to read."""
        if self.waits_for:
            return f"{self.label:<12} {self.done}/{self.total} {self.unit}, {self.waits_for}"
        parts = [f"{self.done}/{self.total} {self.unit}"]
        left = self.left()
        parts.append(f"{duration(self.seconds)} so far" if left is None else f"{duration(left)} left")
        of_run = watcher.seconds_left(tuple(_open)) if watcher is not None else None
        if of_run is not None:
            parts.append(f"the run about {duration(of_run)}")
        if self.amount_under_way:
            parts.append(f"{self.amount_under_way:,.0f} {self.rate_unit} under way")
        parts += [f"{tokens:,} tokens {done_to_them}" for done_to_them, tokens in tuple(self.counts.items())]
        parts += [self.rate(), self.note]
        return f"{self.label:<12} " + ", ".join(part for part in parts if part)

    def message(self, text: str) -> None:
        """A line beside the progress, such as what this process waits for."""
        note_line(text)

    def _write_lines(self) -> None:
        """Write lines until the work ends or nobody can read them."""
        pause, start, end = SECONDS_BETWEEN_LINES, "", "\n"
        if self.terminal:
            pause, start, end = SECONDS_BETWEEN_REWRITES, CLEAR, ""
        with contextlib.suppress(OSError):
            while not self._ended.wait(pause):
                if _open[-1] is self:
                    print(start + self.line(), end=end, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        _open.append(self)
        if self.shown:
            self._writer.start()
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self.shown:
            self._writer.join()
        _open.remove(self)
        if kind is None:
            self._end()
        elif self.terminal:
            print(file=sys.stderr)

    def _end(self) -> None:
        if watcher is not None:
            watcher.end_progress(self)
        if self.shown:
            parts = [f"{self.done}/{self.total} {self.unit} in {self.seconds:.1f} s", self.rate(), self.note]
            text = f"{self.label:<12} " + ", ".join(part for part in parts if part)
            print((CLEAR if self.terminal else "") + text, file=sys.stderr, flush=True)
