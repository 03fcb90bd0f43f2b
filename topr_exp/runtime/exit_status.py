"""How every command ends: an error is one line on standard error and an exit status, never a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from topr_exp.runtime.interrupts import Interrupted
from topr_exp.types import ConfigError, TOPRError


def exit_status(command: Callable[[], int], *, resumes: bool = False) -> int:
    """What `command` returns; 2 for a mistake in the settings, 1 for another error, 128 + N where signal N stopped it.

    resumes: the same command continues where it was stopped, and the message after Ctrl-C says so.
    """
    try:
        return command()
    except TOPRError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    except Interrupted as stop:
        print_error(stop)
        return 128 + stop.signal
    except KeyboardInterrupt:
        if resumes:
            print_error("interrupted; the same command goes on where this one stopped")
        return 130


def print_error(error: object) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def exit_without_reader() -> Iterator[None]:
    """Exit with status 1 and no message where nobody reads what the block prints any more (| head)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
