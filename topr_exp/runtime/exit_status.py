"""Exit status of a command: an error is one line and a status, never a traceback, unless it is a bug."""

import errno
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import DISK_FULL, Output, discard, open_console, print_error, printable
from topr_exp.types import ConfigError, TOPRError

DISK_FAILING = {errno.EIO, errno.ESTALE, errno.ENOLCK}  # also of network file systems
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}


class CommandParser(ArgumentParser):
    """A command line whose errors, which quote names of files, are `printable`."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, keep=""))


def command_parser(module: str, doc: str | None) -> CommandParser:
    """Return a parser for `python -m MODULE` whose help is the module's docstring."""
    summary, _, details = (doc or "").partition("\n\n")
    description = summary.split(": ", 1)[-1]  # without the command itself, with which it begins
    return CommandParser(prog=f"python -m {module}", description=description, epilog=details)


def user_path(text: str) -> Path:
    """Parse a path of the command line; `~` is expanded, which a shell leaves as it is in --out=~/x."""
    return Path(os.path.expanduser(text))


def exit_status(command: Callable[[], int], *, resumes: bool = False) -> int:
    """Run `command`; return its status, 2 for a mistake in the settings, 1 for another error, 128 + N after signal N.

    resumes: the same command continues where it stopped; the line after Ctrl-C says so, and the command goes on when
    nobody reads its output any more (| head, a closed terminal). Others then end with status 1.
    """
    open_console(lasting=resumes)
    try:
        with one_line_for_bus_errors():
            status = command()
        if sys.stdout is not None:  # None where it was closed before the command began
            sys.stdout.flush()
        return status
    except TOPRError as error:
        print_error(error)
        if isinstance(error, ConfigError):
            return 2
        return 1
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
        line = describe_os_error(error)
        if line is None:
            raise
        if error.filename is None and isinstance(sys.stdout, Output):  # it may be standard output's file
            discard(sys.stdout.fileno())
        print_error(line)
        return 1


def describe_os_error(error: OSError) -> str | None:
    """Describe an error that the user can mend, in one line; None for a bug."""
    number = error.errno
    if number is None:
        return None
    if error.filename is not None and number in FORBIDDEN | DISK_FULL | DISK_FAILING:
        action = f"cannot open {error.filename!s:.300}"
    elif number in DISK_FULL:
        action = "cannot write"
    elif number in DISK_FAILING:
        action = "cannot read or write a file"
    else:
        return None
    return f"{action}: {os.strerror(number).lower()}"
