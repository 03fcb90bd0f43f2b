"""One attempt at a run: its log, its description, and the error that ended it.

A run may take several attempts (kills, time limits, errors that were mended).
"""

import io
import os
import shutil
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from topr_exp.runs.run_files import LAUNCH
from topr_exp.runtime import distributed
from topr_exp.runtime.files import TEMPORARY, disk_errors, open_own_file, read_file, write_text
from topr_exp.runtime.terminal import LastingStream, warn
from topr_exp.types import TOPRError

ERROR = "error.txt"  # the error that ended the last attempt, its message first
LOG = "log.txt"  # the output of all attempts


def remove_partial_files(folder: Path) -> None:
    """Remove the error of the last attempt, and files that a kill left half-written (checkpoints are large)."""
    with disk_errors(f"write in {folder}"):
        (folder / ERROR).unlink(missing_ok=True)
        for path in list(folder.rglob(f"*{TEMPORARY}")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif not path.name.startswith(LAUNCH):  # a launcher may be writing it now
                path.unlink(missing_ok=True)


def keep_log(folder: Path) -> None:
    """Also append output to the run's log.txt from now on, unless standard output is that file."""
    buffer = getattr(sys.stdout, "buffer", None)
    stream = getattr(buffer, "raw", None)
    if not isinstance(stream, LastingStream):  # a caller in Python, who has the output
        return
    try:
        log = io.FileIO(folder / LOG, "a", opener=open_own_file)
        if not os.path.samestat(os.fstat(log.fileno()), os.fstat(stream.fileno())):
            log.write(f"==== {timestamp()}, process {os.getpid()}\n".encode())
            stream.append_to(log)
    except OSError as error:
        warn(f"{folder / LOG} can't be written ({error.strerror}): what this run prints is not kept")


def describe_attempt(number: int) -> dict[str, str | int | None]:
    """Return the number of an attempt, its process and its start, as `run_files.Attempt`."""
    return {
        "number": number,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": os.environ.get(distributed.JOB_ID),
        "began": timestamp(),
    }


def record_error(folder: Path, error: BaseException) -> None:
    """Write the error that ends an attempt, its message first and then the traceback."""
    trace = "".join(traceback.format_exception(error))
    origin = f"{timestamp()}, process {os.getpid()} on {socket.gethostname()}"
    with suppress(TOPRError):  # on a full disk; the user must see the error itself
        write_text(folder / ERROR, f"{error_line(error)}\n\n{origin}\n{trace}")


def last_error(folder: Path) -> str:
    """Return the message of the error that ended the last attempt; "" for none."""
    with suppress(OSError):
        return read_file(folder / ERROR).decode(errors="replace").partition("\n")[0]
    return ""


def error_line(error: BaseException) -> str:
    """Format an error in one line, a bug with the name of its class."""
    text = " ".join(str(error).split())
    if isinstance(error, TOPRError):
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")  # the class alone, for an error without a text


def timestamp() -> str:
    """Return the local time with its offset, such as 2026-01-31T09:30:00+0100."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
