"""Output and exit of every command: control characters escaped, an error as one line, no traceback."""

import errno
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import NoReturn

from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import FULL, Output, discard, open_console, print_error, printable
from topr_exp.types import ConfigError, TOPRError

FAILING = {errno.EIO, errno.ESTALE, errno.ENOLCK}  # disks and network file systems
USERS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, *FULL, *FAILING}  # for the user to mend


class CommandParser(ArgumentParser):
    """A command line whose errors, which show what was given (names of files), are `printable`."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, keep=""))


def command_parser(module: str, doc: str | None) -> CommandParser:
    """A parser for `python -m MODULE` whose help is the module's docstring."""
    summary, _, details = (doc or "").partition("\n\n")
    return CommandParser(prog=f"python -m {module}", description=summary.split(": ", 1)[-1], epilog=details)


def exit_status(command: Callable[[], int], *, resumes: bool = False) -> int:
    """Run `command`; return its status, 2 for a mistake in the settings, 1 for another error, 128 + N after signal N.

    resumes: the same command continues where it was stopped, and the message after Ctrl-C says so. Such a command goes
    on where nobody reads its output any more (| head, a closed terminal); another one ends with status 1.
    """
    open_console(goes_on=resumes)
    try:
        with one_line_for_bus_errors():
            status = command()
        if sys.stdout is not None:  # closed before the command began
            sys.stdout.flush()
        return status
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
    except BrokenPipeError:
        if resumes:
            raise
        discard(sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in USERS or (error.filename is None and error.errno not in FULL | FAILING):
            raise
        if error.filename is None and isinstance(sys.stdout, Output):  # it may be standard output's file
            discard(sys.stdout.fileno())
        what = "cannot write" if error.errno in FULL else "cannot read or write a file"
        if error.filename is not None:
            what = f"cannot open {error.filename!s:.300}"
        print_error(f"{what}: {os.strerror(error.errno).lower()}")
        return 1
