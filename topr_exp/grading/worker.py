"""A worker process: runs one function on one task after the other, under limits on what it may use and do."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any, NoReturn

MEMORY_BYTES = 768 << 20  # of address space above what the warmed server has: under 1 GiB in all
RETIRE_BYTES = 400 << 20  # a worker whose memory ever grew beyond this asks to be replaced
TASK_CPU_SECONDS = 30  # beyond any deadline; holds even if the caller is stopped
_OPEN_FILES = 24
_PR_SET_PDEATHSIG = 1

Task = Callable[..., Any]


def run(channel: Connection, server: int, task: Task) -> NoReturn:
    """Everything that a freshly forked worker does, until its caller closes the channel; never returns."""
    try:
        _die_with(server)
        _limit()
        _seal()
        channel.send_bytes(b"ready")  # a worker that cannot start must not pass for one that died of its task
        while True:
            _work(channel, task)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _die_with(server: int) -> None:
    """The kernel kills this process when the server ends, whatever ends it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # it ended before the call
        os._exit(1)


def _limit() -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    for what, amount in (
        (resource.RLIMIT_AS, mapped + MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),  # root is exempt: there the seal refuses processes
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(what, (amount, amount))


_REFUSED = (
    *("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.", "signal.", "urllib.", "http.", "ftplib."),
    "sqlite3.",  # it opens files below Python
)
LITERAL = "<unknown>"  # what ast.parse names its text
_ALLOWED = ("os.listdir", "os.scandir")  # the import system looks into folders


def _seal() -> None:
    """From here on this process compiles no source text, opens no file for writing and starts no process.

    latex2sympy2 and sympy have paths that would execute text (sympify, lambdify); none is reachable with the tokens
    that we admit, and this makes sure of it. A user's grader may read text as a literal (ast.literal_eval, which
    makes a tree of it), not run it.
    """
    sys.dont_write_bytecode = True  # what a grader imports late

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if (what := refused(event, arguments)) is not None:
            raise RuntimeError(f"a grading worker {what}")

    sys.addaudithook(refuse)


def refused(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Name the action that a sealed worker refuses, if this audit event is one."""
    if event == "compile":
        name = arguments[1] if len(arguments) > 1 else None
        harmless = isinstance(name, str | bytes) and (name == LITERAL or os.path.exists(name))
        return None if harmless else "executes no text"
    if event == "exec":
        return "executes no text" if arguments[0].co_filename == LITERAL else None
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        return "writes no file" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) else None
    return f"does not call {event}" if event.startswith(_REFUSED) and event not in _ALLOWED else None


def _work(channel: Connection, task: Task) -> None:
    """Takes one task and answers it."""
    arguments = json.loads(channel.recv_bytes())
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + TASK_CPU_SECONDS, hard))
    try:
        answer = _answer("ok", task(*arguments))
    except (MemoryError, RecursionError):
        os._exit(2)  # its heap or caches are in an unknown state: died
    except Exception as error:
        answer = _answer("error", f"{type(error).__name__}: {error}"[:500])
    channel.send_bytes(answer)


def _answer(status: str, value: Any) -> bytes:
    """Status, value, and whether this worker has grown so large that a fresh one is cheaper."""
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > RETIRE_BYTES
    return json.dumps([status, value, grown], default=_as_json).encode()


def _as_json(value: Any) -> Any:
    """A number of a library's as a plain one; anything else in words, for a message."""
    return float(value) if isinstance(value, Real) else repr(value)
