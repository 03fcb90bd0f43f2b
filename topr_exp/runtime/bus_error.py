"""SIGBUS as one line: a mapped file that is cut short, or whose disk fails, while it is read.

The kernel sends it in the middle of whatever reads the memory, which can't go on. Python's own signal handlers run
after that, so never: the handler here is the C library's, called by ctypes. (faulthandler prints a traceback instead,
and its process dies by the signal.) Only Linux's 64-bit layout of the structures is known; elsewhere nothing changes.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from topr_exp.types import TOPRError

MAPS = Path("/proc/self/maps")
MAP_COLUMNS = ("range", "rights", "offset", "device", "inode", "path")
SA_SIGINFO = 4  # the handler gets a siginfo_t
SI_ADDR_OFFSET = 16  # in siginfo_t
HANDLER_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
EXIT_STATUS = 1

Report = Callable[[TOPRError], bool]  # records the error; True if another process prints it

_reports: list[Report] = []


class SignalAction(ctypes.Structure):
    """The C library's `struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@contextlib.contextmanager
def one_line_for_bus_errors(report: Report = lambda error: False) -> Iterator[None]:
    """During the block, SIGBUS calls `report` (the innermost first), prints one line and exits with status 1.

    Afterwards SIGBUS is handled as before.
    """
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        yield
        return
    action = SignalAction(handler=ctypes.cast(_HANDLER, ctypes.c_void_p).value, flags=SA_SIGINFO)
    previous_action = SignalAction()
    library = ctypes.CDLL(None)
    library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(previous_action))
    _reports.append(report)
    try:
        yield
    finally:
        _reports.remove(report)
        library.sigaction(signal.SIGBUS, ctypes.byref(previous_action), None)


def describe(address: int) -> TOPRError:
    """Return the error of memory at `address` that can't be read, with the file that is mapped there."""
    path = mapped_file(address)
    if path is None:
        return TOPRError("memory can't be read (SIGBUS): the machine's is defective, or there is no room for a mapping")
    return TOPRError(f"cannot read {path}: it was cut short or its disk failed while it was mapped (SIGBUS)")


def mapped_file(address: int) -> str | None:
    """Return the path of the file that is mapped at an address; None for none."""
    try:
        lines = MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        columns = line.split(maxsplit=len(MAP_COLUMNS) - 1)
        start, _, end = columns[0].partition("-")
        is_mapped_here = int(start, 16) <= address < int(end, 16)
        if is_mapped_here and len(columns) == len(MAP_COLUMNS) and columns[-1].startswith("/"):
            return columns[-1]
    return None


def _handle(number: int, information: int, context: int) -> None:
    """End the process; whatever this raises, since to return is to read the same memory again.

    information: address of a siginfo_t.
    """
    try:
        address = ctypes.c_void_p.from_address(information + SI_ADDR_OFFSET).value or 0
        error = describe(address)
        printed_elsewhere = False
        for report in reversed(_reports):
            with contextlib.suppress(Exception):
                printed_elsewhere |= report(error)
        if not printed_elsewhere:
            print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(EXIT_STATUS)


_HANDLER = HANDLER_TYPE(_handle)  # never freed, since the C library calls it
