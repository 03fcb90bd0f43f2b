"""The process that forks the workers: imports and warms everything once, then forks on request in milliseconds.

It never sees a task. It ends, and all workers with it, when the caller closes the socket or is gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from topr_exp.grading import worker

PACKAGE = "topr_exp."  # functions of the package, whose modules are prepared
SYMBOLIC = "topr_exp.grading.symbolic:equal"
CALLER_CHECK_SECONDS = 0.5  # a caller killed with -9 whose socket lives on in a forked child is noticed after this


def main(descriptor: int, caller: int, target: str) -> None:
    """Serve on the inherited socket, then end all workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers: set[int] = set()
    try:
        _serve(Connection(descriptor), caller, target, workers)
    except (EOFError, ConnectionError):
        pass  # the caller closed the socket, or is gone
    finally:
        for pid in workers:
            _kill(pid)


def _serve(control: Connection, caller: int, target: str, workers: set[int]) -> None:
    """A request is the number of a worker to be replaced, or null, and the new worker's end of its channel."""
    try:
        task = load(target)
        gc.collect()
        gc.freeze()  # what is shared with the workers stays shared
    except Exception as error:
        control.recv_bytes()
        _reply(control, error=f"grader {target} cannot be loaded: {type(error).__name__}: {error}")
        return
    while True:
        while not control.poll(CALLER_CHECK_SECONDS):
            if os.getppid() != caller:
                return
        replaced = json.loads(control.recv_bytes())
        channel = recv_handle(control)
        if replaced is not None:
            workers.discard(replaced)
            _kill(replaced)
        pid = _fork(control, channel, task)
        workers.add(pid)
        _reply(control, pid=pid)


def load(target: str) -> worker.Task:
    """The function that a worker runs; the package's come with all imported, and warm caches (`prepare`)."""
    name, _, function = target.partition(":")
    module = importlib.import_module(name)
    task: worker.Task = getattr(module, function)
    if target.startswith(PACKAGE):
        module.prepare()
    return task


def _reply(control: Connection, **content: Any) -> None:
    control.send_bytes(json.dumps(content).encode())


def _fork(control: Connection, channel: int, task: worker.Task) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        worker.run(Connection(channel), server, task)
    os.close(channel)
    return pid


def _kill(pid: int) -> None:
    """Until it is reaped here, the number cannot become another process's."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
