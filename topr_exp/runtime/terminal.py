"""Terminal output: lines for the user, with control characters escaped."""

import contextlib
import errno
import io
import os
import re
import sys
from typing import Any, ClassVar

from topr_exp.runtime import distributed

FULL = {errno.ENOSPC, errno.EDQUOT}
# What a terminal obeys or shows in another order or not at all: control characters, direction marks and other unseen
# format characters (but not the two joiners, which words and emoji have), separators of lines, halves of characters.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\ud800-\udfff]"
)
# Progress bars go back to the beginning of a line, or up, and clear it.
CURSOR = re.compile(r"(\r|\x1b\[\d*[AK])")


def print_error(error: object) -> None:
    print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)


def say(text: str = "") -> None:
    """A line for the user, at once also when piped; once for all processes of a run."""
    if distributed.is_main_process():
        print(printable(text), flush=True)


def warn(text: str, *, of_any_process: bool = False) -> None:
    """A line that must not be lost among results; once for all processes of a run, or from whichever process has it."""
    if of_any_process or distributed.is_main_process():
        print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str, keep: str = "\n\t") -> str:
    """Text from a file as a terminal may show it: the characters of CONTROL but those of `keep` are escaped."""
    return CONTROL.sub(lambda match: match[0] if match[0] in keep else escaped(match[0]), text)


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Output(io.TextIOWrapper):
    """Standard output, all of it `printable`."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)


class ErrorOutput(io.TextIOWrapper):
    """Standard error, `printable` but for the cursor's moves of progress bars."""

    def write(self, text: str) -> int:
        parts = CURSOR.split(text)
        parts[::2] = map(printable, parts[::2])  # every second one is a move
        super().write("".join(parts))
        return len(text)


class Lasting(io.FileIO):
    """A stream that goes on into nothing once its reader or terminal is gone; what is written is kept in `log`, too.

    What finds no room in its file is lost: the runs go on.
    """

    log: ClassVar[io.FileIO | None] = None

    def write(self, data: Any) -> int:
        if self.log is not None:
            with contextlib.suppress(OSError):
                self.log.write(data)
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                discard(self.fileno())
            elif error.errno not in FULL:
                raise
            return len(data)


def discard(descriptor: int) -> None:
    """Have what is written to a descriptor go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def open_console(*, goes_on: bool) -> None:
    """Put such streams in the place of standard output and error, unless a test has put others there."""
    for name, kind in (("stdout", Output), ("stderr", ErrorOutput)):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            raw = (Lasting if goes_on else io.FileIO)(stream.fileno(), "w", closefd=False)
            how = {"encoding": stream.encoding, "errors": "backslashreplace", "line_buffering": stream.line_buffering}
            setattr(sys, name, kind(io.BufferedWriter(raw), **how))


def readable_size(count: int) -> str:
    """A number of bytes for people to read."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
