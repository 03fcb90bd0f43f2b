"""One attempt at a run: which process has the run's folder, and what ended it.

A run may take several attempts (kills, time limits, errors that were mended). `run.claim` keeps a second process out
and shows others that the run is alive; `error.txt` holds the error that ended the last attempt, its message first.
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

ERROR = "error.txt"
LOG = "log.txt"  # what a run printed, over all attempts


def clear(path: Path) -> None:
    """Remove the error of the last attempt, and what it wrote by half when it was killed (checkpoints are large)."""
    with disk_errors(f"write in {path}"):
        (path / ERROR).unlink(missing_ok=True)
        for leftover in list(path.rglob(f"*{TEMPORARY}")):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            elif not leftover.name.startswith(LAUNCH):
                leftover.unlink(missing_ok=True)


def keep_log(folder: Path) -> None:
    """Keep what a command prints from now on in the run's folder, too, where that is not where it goes."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, LastingStream):
        try:
            log = io.FileIO(folder / LOG, "a", opener=open_own_file)
            if not os.path.samestat(os.fstat(log.fileno()), os.fstat(raw.fileno())):
                log.write(f"==== {timestamp()}, process {os.getpid()}\n".encode())
                LastingStream.append_to(log)
        except OSError as error:
            warn(f"{folder / LOG} can't be written ({error.strerror}): what this run prints is not kept")


def description(number: int) -> dict[str, str | int | None]:
    """Which attempt this is, where it runs, and since when."""
    job = os.environ.get(distributed.JOB_ID)
    return {"number": number, "host": socket.gethostname(), "pid": os.getpid(), "job": job, "began": timestamp()}


def record_error(path: Path, error: BaseException) -> None:
    """Write the error that ends an attempt, its message first and then the traceback."""
    tb = "".join(traceback.format_exception(error))
    with suppress(TOPRError):  # the disk is full, say: the error itself is what the user must see
        write_text(
            path / ERROR, f"{message(error)}\n\n{timestamp()}, process {os.getpid()} on {socket.gethostname()}\n{tb}"
        )


def last_error(path: Path) -> str:
    """The message of the error that ended the last attempt; "" where none did."""
    with suppress(OSError):
        return read_file(path / ERROR).decode(errors="replace").partition("\n")[0]
    return ""


def message(error: BaseException) -> str:
    """An error in one line; those that are no user's mistake with the name of their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TOPRError) else f"{type(error).__name__}: {text}".rstrip(": ")


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
