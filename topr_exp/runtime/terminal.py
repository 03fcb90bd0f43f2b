"""Terminal output: lines for the user, once per run, and streams that escape control characters and outlive readers."""

import contextlib
import errno
import functools
import io
import os
import re
import select
import sys
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from topr_exp.runtime import distributed

DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
READER_GONE = {errno.EPIPE, errno.EIO}
# Characters that a terminal obeys, or shows in another order or not at all: control characters, direction marks and
# other invisible format characters (but not the two joiners, which words and emoji use), line separators, surrogates.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\ud800-\udfff]"
)
# Progress bars return to the beginning of a line, or move up, and clear it.
CURSOR_MOVE = re.compile(r"(\r|\x1b\[\d*[AK])")


# ---- lines for the user


def say(text: str) -> None:
    """Print a line at once, also into a pipe, and once for all processes of a run."""
    if distributed.is_main_process():
        print(printable(text), flush=True)


def warn(text: str, *, of_any_process: bool = False) -> None:
    """Print a warning to standard error, once for all processes of a run, or from any of them."""
    if of_any_process or distributed.is_main_process():
        print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


@functools.cache
def warn_once(text: str, *, of_any_process: bool = False) -> None:
    """Warn as `warn` does, and not again of the same in this process."""
    warn(text, of_any_process=of_any_process)


def print_error(error: object) -> None:
    print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)


def printable(text: str, keep: str = "\n\t") -> str:
    """Escape the control characters of a text, except those in `keep`."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if character in keep:
            return character
        return character.encode("unicode_escape").decode()

    return CONTROL.sub(escape, text)


def one_line(error: BaseException, limit: int) -> str:
    """The message of an error in one line, cut to so many characters."""
    return " ".join(str(error).split())[:limit]


def plural(count: int, noun: str) -> str:
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def readable_size(byte_count: int) -> str:
    """Format a number of bytes for people, such as 2.7 MB."""
    if byte_count >= 1e9:
        return f"{byte_count / 1e9:,.1f} GB"
    return f"{byte_count / 1e6:,.1f} MB"


COMBINING_TILDE = "\u0303"  # of p̃, which takes no column


def align_columns(rows: Sequence[Sequence[str]], *, numeric: Collection[int] = ()) -> list[str]:
    """Format rows of cells as lines, each column as wide as its widest cell. numeric: columns to align to the right."""
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(cell) - cell.count(COMBINING_TILDE) for cell in column))
    lines = []
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            align = cell.rjust if index in numeric else cell.ljust
            cells.append(align(width + cell.count(COMBINING_TILDE)))
        lines.append("  ".join(cells).rstrip())
    return lines


# ---- streams


class Output(io.TextIOWrapper):
    """Standard output with control characters escaped."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)


class ErrorOutput(io.TextIOWrapper):
    """Standard error with control characters escaped, except the cursor moves of progress bars."""

    def write(self, text: str) -> int:
        pieces = []
        for piece in CURSOR_MOVE.split(text):
            if not CURSOR_MOVE.fullmatch(piece):
                piece = printable(piece)
            pieces.append(piece)
        super().write("".join(pieces))
        return len(text)


class LastingStream(io.FileIO):
    """Stream that discards output once its reader or terminal is gone, or its disk is full; a run goes on.

    It also appends to the run's log, once there is one.
    """

    log: ClassVar[io.FileIO | None] = None

    def write(self, data: Any) -> int:
        byte_count = self._write_or_discard(data)
        if self.log is not None:
            with contextlib.suppress(OSError):
                self.log.write(memoryview(data)[:byte_count])  # the others are written again
        return byte_count

    def _write_or_discard(self, data: Any) -> int:
        try:
            byte_count = super().write(data)
            while byte_count is None:  # another program that uses the terminal has made it non-blocking
                select.select([], [self], [])
                byte_count = super().write(data)
        except OSError as error:
            if error.errno in READER_GONE:
                discard(self.fileno())
            elif error.errno not in DISK_FULL:
                raise
            return len(data)
        return byte_count

    @classmethod
    def append_to(cls, log: io.FileIO) -> None:
        """Also append output to a log from now on."""
        cls.log = log


def discard(descriptor: int) -> None:
    """Discard writes to a descriptor from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def open_console(*, lasting: bool) -> None:
    """Replace standard output and error by escaping streams, unless a test has replaced them already.

    lasting: go on without output when its reader is gone.
    """
    if sys.stdout is not None and sys.stdout is sys.__stdout__:
        sys.stdout = reopen(sys.stdout, Output, lasting=lasting)
    if sys.stderr is not None and sys.stderr is sys.__stderr__:
        sys.stderr = reopen(sys.stderr, ErrorOutput, lasting=lasting)


def reopen(stream: Any, text_class: type[io.TextIOWrapper], *, lasting: bool) -> io.TextIOWrapper:
    """Return a stream of another class to the same file."""
    file_class = LastingStream if lasting else io.FileIO
    file = io.BufferedWriter(file_class(stream.fileno(), "w", closefd=False))
    return text_class(file, stream.encoding, errors="backslashreplace", line_buffering=stream.line_buffering)
