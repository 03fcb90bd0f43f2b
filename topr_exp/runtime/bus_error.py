"""SIGBUS: a mapped file that becomes shorter, or whose disk fails, while it is read ends the process with one line.

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
WITH_ADDRESS = 4  # SA_SIGINFO: the handler gets a siginfo_t
ADDRESS_OFFSET = 16  # of si_addr in siginfo_t
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
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
    """While the block runs, SIGBUS prints one line, calls `report` (of nested blocks, the innermost first) and exits.

    The exit status is 1. Afterwards SIGBUS is handled as before.
    """
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        yield
        return
    action, before = SignalAction(flags=WITH_ADDRESS), SignalAction()
    action.handler = ctypes.cast(_HANDLER, ctypes.c_void_p).value
    library = ctypes.CDLL(None)
    library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
    _reports.append(report)
    try:
        yield
    finally:
        _reports.remove(report)
        library.sigaction(signal.SIGBUS, ctypes.byref(before), None)


def describe(address: int) -> TOPRError:
    """The error of memory at `address` that can't be read, with the file that is mapped there."""
    path = mapped_file(address)
    if path is None:
        return TOPRError("memory can't be read (SIGBUS): the machine's is defective, or there is no room for a mapping")
    return TOPRError(f"cannot read {path}: it was cut short or its disk failed while it was mapped (SIGBUS)")


def mapped_file(address: int) -> str | None:
    """The path of the file that is mapped at an address; None where none is."""
    with contextlib.suppress(OSError):
        for line in MAPS.read_text(errors="replace").splitlines():
            fields = line.split(maxsplit=5)  # range, rights, offset, device, inode, path
            start, _, end = fields[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return fields[5] if len(fields) == 6 and fields[5].startswith("/") else None
    return None


def _handle(number: int, information: int, context: int) -> None:
    """End the process; whatever this raises, since to return is to read the same memory again."""
    try:
        error = describe(ctypes.c_void_p.from_address(information + ADDRESS_OFFSET).value or 0)
        printed_elsewhere = False
        for report in reversed(_reports):
            with contextlib.suppress(Exception):
                printed_elsewhere |= report(error)
        if not printed_elsewhere:
            print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(EXIT_STATUS)


_HANDLER = HANDLER(_handle)
