"""Grading processes: a server that imports and warms everything once, and the sandboxed workers that it forks.

A worker runs one function on one task after the other, under limits on what it may use and do. The server replaces a
lost worker in milliseconds. All of them end when the caller closes the socket or ends.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from numbers import Real
from typing import Any, NoReturn

from topr_exp.schema import build

PACKAGE = "topr_exp."  # the package's own modules have a `prepare` that warms their caches, and may have `prepare_rest`
# A caller that was killed with -9, but whose socket a forked child holds, is noticed so soon.
CALLER_CHECK_SECONDS = 0.5
MEMORY_BYTES = 768 << 20  # of address space above what the warmed server has: under 1 GiB in all
TASK_CPU_SECONDS = 30  # beyond any deadline; holds even if the caller is stopped
_OPEN_FILES = 24
_PR_SET_PDEATHSIG = 1
# macOS has no prctl and no /proc; whether it keeps a limit on memory has not been tried.
HAS_LINUX_LIMITS = sys.platform == "linux"

Task = Callable[..., Any]


# ---- the server


def serve(descriptor: int, caller_pid: int, target: str, settings: str) -> None:
    """Load `target` ("package.module.name"), then fork workers on request until the caller ends; kill them then.

    Where a module has `prepare_rest`, the first workers give up on a task that fails: what replaces one has the rest.
    descriptor: of the socket to the caller. settings: as JSON, of a target that is a dataclass.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.stderr is not None:
        relay_errors(descriptor)
    control = Connection(descriptor)
    module_name, _, name = target.rpartition(".")
    module = importlib.import_module(module_name)
    prepare_rest: Callable[[], None] | None = None
    if target.startswith(PACKAGE):
        module.prepare()
        prepare_rest = getattr(module, "prepare_rest", None)
    task: Task = getattr(module, name)
    if isinstance(task, type):
        task = build(task, json.loads(settings), "data.grader.")
    gc.collect()
    gc.freeze()  # what is shared with the workers stays shared
    server_pid = os.getpid()
    worker_pids: set[int] = set()  # until one is reaped here, its number cannot become another process's
    with contextlib.suppress(EOFError, ConnectionError):  # the caller closed the socket, or is gone
        while _caller_asks(control, caller_pid):
            replaced_pid = json.loads(control.recv_bytes())
            channel_descriptor = recv_handle(control)
            if replaced_pid is not None:
                os.kill(replaced_pid, signal.SIGKILL)
                os.waitpid(replaced_pid, 0)
                worker_pids.remove(replaced_pid)
                if prepare_rest is not None:
                    prepare_rest()
                    prepare_rest = None
            worker_pid = os.fork()
            if worker_pid == 0:
                control.close()
                lacks_rest = prepare_rest is not None
                _work(Connection(channel_descriptor), server_pid, task, gives_up=lacks_rest)  # does not return
            os.close(channel_descriptor)
            worker_pids.add(worker_pid)
    for pid in worker_pids:
        os.kill(pid, signal.SIGKILL)


def _caller_asks(control: Connection, caller_pid: int) -> bool:
    """Wait until the caller asks for a worker or closes the socket; False once it is gone."""
    while not control.poll(CALLER_CHECK_SECONDS):
        if os.getppid() != caller_pid:
            return False
    return True


def relay_errors(control_descriptor: int) -> None:
    """Redirect standard error through a pipe to a process that writes it where it goes.

    Workers may not write to files, and what a grader prints must not fail where a reader is gone or a disk is full.
    That process ends when the last writer ends. control_descriptor: of the socket to the caller, not to be kept open.
    """
    errors = sys.stderr.fileno()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.close(control_descriptor)
        while text := os.read(reader, 1 << 16):
            with contextlib.suppress(OSError):
                os.write(errors, text)
        os._exit(0)
    os.dup2(writer, errors)
    os.close(writer)
    os.close(reader)


# ---- a worker


def _work(channel: Connection, server_pid: int, task: Task, *, gives_up: bool) -> NoReturn:
    """Report readiness, then answer one task after the other; gives_up: end on the first that fails."""
    try:
        if HAS_LINUX_LIMITS:  # the kernel kills this process when the server ends, whatever ends that
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == server_pid:  # else the server ended before the call
            _limit()
            _seal(gives_up=gives_up)
            _send(channel, os.getpid())
            while True:
                _answer(channel, task, gives_up=gives_up)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _limit() -> None:
    """Limit this process's files and child processes, on Linux its memory, too."""
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_NPROC: 0,  # root is exempt: there the seal refuses processes
        resource.RLIMIT_CORE: 0,
    }
    if HAS_LINUX_LIMITS:
        with open("/proc/self/statm") as statm:
            mapped_pages = int(statm.read().split()[0])
        limits[resource.RLIMIT_AS] = mapped_pages * resource.getpagesize() + MEMORY_BYTES
    for kind, amount in limits.items():
        _, hard_limit = resource.getrlimit(kind)
        if hard_limit != resource.RLIM_INFINITY:
            amount = min(amount, hard_limit)
        resource.setrlimit(kind, (amount, amount))


def _answer(channel: Connection, task: Task, *, gives_up: bool) -> None:
    cpu_seconds, arguments = json.loads(channel.recv_bytes())
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        status = "ok"
        value = task(*arguments)
    except (MemoryError, RecursionError):
        os._exit(2)  # its heap or caches are in an unknown state: died
    except Exception as error:
        if gives_up:
            os._exit(1)
        status = "error"
        value = f"{type(error).__name__}: {error}"[:500]
    _send(channel, [status, value])


def _send(channel: Connection, value: Any) -> None:
    """Send a line of JSON. The caller does not wait for the line's end: a worker may stop in the middle."""
    data = memoryview(json.dumps(value, default=_as_json).encode() + b"\n")
    while data:
        sent_bytes = os.write(channel.fileno(), data)
        data = data[sent_bytes:]


def _as_json(value: Any) -> float | str:
    """Numbers such as numpy's and Fraction as floats; anything else as its repr."""
    if isinstance(value, Real):
        return float(value)
    return repr(value)


# ---- the seal

# sqlite3 opens files below Python.
_REFUSED = re.compile(r"(?:os|subprocess|socket|ctypes|shutil|pty|signal|urllib|http|ftplib|sqlite3)\.")
LITERAL = "<unknown>"  # the file name that ast.parse gives its text
_ALLOWED = ("os.listdir", "os.scandir")  # the import system looks into folders


def _seal(*, gives_up: bool = False) -> None:
    """Refuse from here on to compile source text, to open files for writing and to start processes; or end on it.

    latex2sympy2 and sympy have paths that would execute text (sympify, lambdify); the admitted tokens reach none of
    them, and this makes sure of it. A user's grader may read text as a literal (ast.literal_eval), not run it.
    """
    sys.dont_write_bytecode = True  # for late imports of a grader

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if (refusal := refused(event, arguments)) is not None:
            if gives_up:
                os._exit(1)
            raise RuntimeError(f"a grading worker {refusal}")

    sys.addaudithook(refuse)


def refused(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Name the action that a sealed worker refuses, if this audit event is one."""
    if event == "compile":  # source, file name
        name = arguments[1] if len(arguments) > 1 else None
        is_literal_or_file = isinstance(name, str | bytes) and (name == LITERAL or os.path.exists(name))
        if is_literal_or_file:
            return None
        return "executes no text"
    if event == "exec":
        return "executes no text" if arguments[0].co_filename == LITERAL else None
    if event == "open":  # path, mode, flags
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        writing_flags = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return "writes no file" if writing_flags else None
    if _REFUSED.match(event) and event not in _ALLOWED:
        return f"does not call {event}"
    return None
