"""Progress of long work: a line that is rewritten on a terminal, or one every ten seconds in a file.

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
CLEAR_LINE = "\r\x1b[K"
SECONDS_OF_UNIT = {"s": 1, "min": 60, "h": 3600}

Kind = Literal["sampling", "grading", "scoring", "training"]


class Watcher(Protocol):
    """Observer of the progress of a run's work."""

    def note_progress(self, progress: "Progress") -> None:
        """Take note of the progress; called every few seconds, by the thread that works."""

    def end_progress(self, progress: "Progress") -> None:
        """Take note of work that is complete."""

    def seconds_left(self, under_way: Sequence["Progress"]) -> float | None:
        """Return the time that the whole run still takes; None if unknown."""


_watcher: Watcher | None = None
_under_way: list["Progress"] = []  # the last is the innermost, which alone is shown


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Notify a watcher of all progress during the block."""
    global _watcher
    _watcher = watcher
    try:
        yield
    finally:
        _watcher = None


def note_line(text: str) -> None:
    """Print a line beside the progress to standard error, once for all processes of a run."""
    if distributed.is_main_process():
        _print_line(printable(text), clears=sys.stderr.isatty(), end="\n")


def _print_line(line: str, *, clears: bool, end: str) -> None:
    start = CLEAR_LINE if clears else ""
    print(start + line, end=end, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Format a time for people, such as 95 s or 12 min."""
    unit = "s"
    for name, length in SECONDS_OF_UNIT.items():
        if seconds >= 2 * length:
            unit = name
    return f"{seconds / SECONDS_OF_UNIT[unit]:.0f} {unit}"


class Progress:
    """Counter of `total` units of work, shown with its rate (in `rate_unit`, such as tokens) and the time left.

    done: units of an earlier attempt. Units without an amount, before any that has one, count as done before, too.
    """

    def __init__(
        self, label: str, total: int, unit: str, *, kind: Kind, done: int = 0, rate_unit: str | None = None
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.kind = kind
        self.rate_unit = rate_unit or unit
        self.done = done
        self.done_before = done
        self.amount = 0.0  # of done units, in `rate_unit`
        self.amount_under_way = 0.0
        self.completion_amount = 0.0  # the part of `amount` that is not of prompts
        self.token_counts: dict[str, int] = {}  # of other work of the unit under way, by a participle
        self.note = ""
        self.waits_for = ""
        self.start = time.monotonic()
        self.paused_seconds = 0.0
        self.paused_since: float | None = None
        self.nested_seconds = 0.0  # of other progress within this one, as evaluations between updates
        self._noted_at = -SECONDS_BETWEEN_NOTES
        self._is_shown = distributed.is_main_process()
        self._on_terminal = self._is_shown and sys.stderr.isatty()
        self._end = threading.Event()
        self._writer = threading.Thread(target=self._write_lines, daemon=True)

    # ---- counting

    def update(self, count: int, amount: float | None = None, note: str = "", *, of_completions: float = 0) -> None:
        """Count units as done; `amount` adds to the rate (default: `count`; 0: the units existed before).

        of_completions: the part of an amount of tokens that is not of prompts, where the amount has both.
        """
        if amount is None:
            amount = count
        if amount == 0 and self.done == self.done_before:
            self.done_before += count
        self.done += count
        self.amount += amount
        self.completion_amount += of_completions
        self.amount_under_way = 0.0
        self.token_counts = {}
        self.note = note
        if amount == 0 and self.amount:  # the note is on these units, the line on all
            self.note = ""
        self._notify_watcher()

    def advance(self, amount: float) -> None:
        """Count an amount as done of units under way."""
        self.amount_under_way += amount
        self._notify_watcher()

    def count_tokens(self, participle: str, tokens: int) -> None:
        """Count tokens that are, say, "sampled" for the unit under way and are no part of its rate."""
        self.token_counts[participle] = self.token_counts.get(participle, 0) + tokens
        self._notify_watcher()

    def add_nested(self, seconds: float) -> None:
        """Add the seconds of other progress within this one, which leave its rate as it is."""
        self.nested_seconds += seconds

    def _notify_watcher(self) -> None:
        time_now = time.monotonic()
        if _watcher is not None and time_now - self._noted_at >= SECONDS_BETWEEN_NOTES:
            self._noted_at = time_now
            _watcher.note_progress(self)

    @contextlib.contextmanager
    def paused(self, waits_for: str) -> Iterator[None]:
        """Exclude the time of the block, in which the work waits for something, from the rate and the time left."""
        pause_start = time.monotonic()
        self.waits_for = waits_for
        self.paused_since = pause_start
        try:
            yield
        finally:
            self.paused_seconds += time.monotonic() - pause_start
            self.paused_since = None
            self.waits_for = ""  # last: until then the thread that writes lines computes no times

    # ---- pace

    @property
    def seconds(self) -> float:
        """Seconds of work so far."""
        return (self.paused_since or time.monotonic()) - self.start - self.paused_seconds

    @property
    def own_seconds(self) -> float:
        """Seconds of work so far without nested progress, which the time left includes."""
        return self.seconds - self.nested_seconds

    @property
    def units_made(self) -> float:
        """Units of this attempt; those under way count by the mean amount of the others."""
        finished_units = self.done - self.done_before
        units_under_way = 0.0
        if self.amount:
            units_under_way = self.amount_under_way * finished_units / self.amount
        return min(finished_units + units_under_way, float(self.total - self.done_before))

    def seconds_left(self) -> float | None:
        """Seconds until the end, at the pace so far; None before the first unit is done."""
        if self.done == self.done_before:
            return None
        return self.seconds / self.units_made * (self.total - self.done_before - self.units_made)

    def rate(self) -> str:
        """Units (or what `rate_unit` names) per second so far; "" before the first."""
        amount = self.amount + self.amount_under_way
        seconds = self.own_seconds
        if not amount or seconds <= 0:
            return ""
        rate = f"{amount / seconds:,.0f} {self.rate_unit}/s"
        if self.kind != "training" and distributed.world_size() > 1:  # updates alone are counted for all processes
            rate += " by this process"
        if not self.completion_amount:
            return rate
        completion_share = self.completion_amount / self.amount
        completion_rate = completion_share * amount / seconds
        return f"{rate} with prompts, {completion_rate:,.0f} of completions"

    # ---- the line

    def line(self) -> str:
        """Format how far the work is."""
        position = f"{self.done}/{self.total} {self.unit}"
        if self.waits_for:
            return self._format([position, self.waits_for])
        seconds_left = self.seconds_left()
        if seconds_left is None:
            parts = [position, f"{duration(self.seconds)} so far"]
        else:
            parts = [position, f"{duration(seconds_left)} left"]
        run_seconds = _watcher.seconds_left(tuple(_under_way)) if _watcher is not None else None
        if run_seconds is not None:
            parts.append(f"the run about {duration(run_seconds)}")
        if self.amount_under_way:
            parts.append(f"{self.amount_under_way:,.0f} {self.rate_unit} under way")
        for participle, tokens in tuple(self.token_counts.items()):
            parts.append(f"{tokens:,} tokens {participle}")
        return self._format([*parts, self.rate(), self.note])

    def _format(self, parts: list[str]) -> str:
        return f"{self.label:<12} " + ", ".join(filter(None, parts))

    def _write_lines(self) -> None:
        """Write lines until the work ends or nobody can read them."""
        pause = SECONDS_BETWEEN_LINES
        end = "\n"
        if self._on_terminal:
            pause = SECONDS_BETWEEN_REWRITES
            end = ""
        with contextlib.suppress(OSError):
            while not self._end.wait(pause):
                if _under_way[-1] is self:
                    _print_line(self.line(), clears=self._on_terminal, end=end)

    # ---- the block in which the work is done

    def __enter__(self) -> Self:
        _under_way.append(self)
        if self._is_shown:
            self._writer.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end.set()
        if self._is_shown:
            self._writer.join()
        _under_way.remove(self)
        if _under_way:
            _under_way[-1].add_nested(time.monotonic() - self.start)
        if error is not None:
            if self._on_terminal:
                print(file=sys.stderr)
            return
        if _watcher is not None:
            _watcher.end_progress(self)
        if self._is_shown:
            summary = f"{self.done}/{self.total} {self.unit} in {self.own_seconds:.1f} s"
            _print_line(self._format([summary, self.rate(), self.note]), clears=self._on_terminal, end="\n")
