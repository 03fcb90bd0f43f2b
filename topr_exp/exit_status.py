"""How every command ends: an error is one line on standard error and an exit status, never a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from topr_exp.interrupts import Interrupted
from topr_exp.types import ConfigError, TOPRError


def exit_status(work: Callable[[], int], *, resumes: bool = False) -> int:
    """What `work` returns; 2 for a mistake in the settings, 1 for another error, 128 + N where signal N stopped it.

    resumes: the same command goes on where it was stopped, and Ctrl-C says so.
    """
    try:
        return work()
    except TOPRError as error:
        complain(error)
        return 2 if isinstance(error, ConfigError) else 1
    except Interrupted as stop:
        complain(stop)
        return 128 + stop.signal
    except KeyboardInterrupt:
        if resumes:
            complain("interrupted; the same command goes on where this one stopped")
        return 130


def complain(error: object) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Exit with status 1 and no word where nobody reads what the block prints any more (| head)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
