"""The process that forks the workers, and the workers: imports and warms once, then forks on request in milliseconds.

The server never looks at a task. It ends, and all workers with it, when its parent closes the socket or dies.
A worker runs one function on one task after the other under limits on memory, CPU time, files and processes.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from topr_exp.grading.pool import receive, send

SYMBOLIC = "topr_exp.grading.symbolic:equal"
PARENT_CHECK_SECONDS = 0.5  # a parent killed with -9 whose socket lives on in a forked child is noticed after this
RETIRE_BYTES = 400 << 20  # a worker whose memory ever grew beyond this asks to be replaced
TASK_CPU_SECONDS = 30  # beyond any deadline; holds even if the parent is stopped
_OPEN_FILES = 24
_PR_SET_PDEATHSIG = 1

Task = Callable[..., Any]


def main(descriptor: int, parent: int, target: str) -> None:
    """Serve fork requests on the inherited socket until the parent says exit, closes it or is gone."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    try:
        _serve(control, parent, target, children)
    finally:
        for pid in children:
            _kill(pid)


def _serve(control: socket.socket, parent: int, target: str, children: set[int]) -> None:
    try:
        task = load(target)
        gc.collect()
        gc.freeze()  # what is shared with the workers stays shared
    except Exception as error:
        receive(control)
        send(control, {"error": f"grader {target} cannot be loaded: {type(error).__name__}: {error}"})
        return
    while True:
        readable, _, _ = select.select([control], [], [], PARENT_CHECK_SECONDS)
        if not readable:
            if os.getppid() != parent:
                return
            continue
        request, descriptors = _receive_with_descriptors(control)
        if request is None or request["op"] == "exit":
            return
        reply: dict[str, Any] = {}
        if request["op"] == "fork":
            reply["pid"] = _fork(control, descriptors[0], task, request["memory"], target == SYMBOLIC)
            children.add(reply["pid"])
        elif request["op"] == "reap":
            children.discard(request["pid"])
            _kill(request["pid"])
        send(control, reply)


def load(target: str) -> Task:
    """The function that a worker runs; the symbolic one comes with warm parser caches."""
    module, _, function = target.partition(":")
    task: Task = getattr(importlib.import_module(module), function)
    if target == SYMBOLIC:
        importlib.import_module(module).prepare()
    return task


def _receive_with_descriptors(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    header, descriptors, _, _ = socket.recv_fds(control, 4, 1)
    if not header:
        return None, descriptors
    while len(header) < 4:
        header += control.recv(4 - len(header))
    size = struct.unpack("!I", header)[0]
    data = b""
    while len(data) < size:
        data += control.recv(size - len(data))
    return json.loads(data), descriptors


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _fork(control: socket.socket, descriptor: int, task: Task, memory: int, sealed: bool) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        control.close()
        channel = socket.socket(fileno=descriptor)
        _die_with(server)
        _limit(memory)
        if sealed:
            _seal()
        send(channel, {"op": "hello"})  # a worker that cannot start must not pass for one that died of its task
        _work(channel, task)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _die_with(server: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # it died before the call
        os._exit(1)


def _limit(memory: int) -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    for what, amount in (
        (resource.RLIMIT_AS, mapped + memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),  # root is exempt: there the seal refuses processes
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(what, (amount, amount))


_REFUSED = ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.", "signal.", "urllib.", "http.", "ftplib.")
_ALLOWED = ("os.listdir", "os.scandir")  # the import system looks into folders


def _seal() -> None:
    """From here on this process compiles no source text, opens no file for writing and starts no process.

    latex2sympy2 and sympy have paths that would execute text (sympify, lambdify); none is reachable with the tokens
    that we admit, and this makes sure of it.
    """

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "compile":
            if not (len(arguments) > 1 and isinstance(arguments[1], str | bytes) and os.path.exists(arguments[1])):
                raise RuntimeError("a grading worker executes no text")
        elif event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise RuntimeError("a grading worker writes no file")
        elif event.startswith(_REFUSED) and event not in _ALLOWED:
            raise RuntimeError(f"a grading worker does not call {event}")

    sys.addaudithook(refuse)


def _work(channel: socket.socket, task: Task) -> NoReturn:
    while (request := receive(channel)) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + TASK_CPU_SECONDS, hard))
        reply: dict[str, Any]
        try:
            reply = {"status": "ok", "value": task(*request["arguments"])}
        except (MemoryError, RecursionError):
            os._exit(2)  # its heap or caches are in an unknown state: died
        except Exception as error:
            reply = {"status": "error", "value": f"{type(error).__name__}: {error}"[:500]}
        reply["retire"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > RETIRE_BYTES
        send(channel, reply)
    os._exit(0)
