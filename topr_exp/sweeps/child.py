"""A process that the launcher of a sweep or of a group forks: how it starts, where it prints, what it reports.

Importing torch and transformers takes seconds, so a fork server does it once and each process is forked from it: it has
no threads and has never touched a GPU. A process that crashes takes nothing with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import open_console
from topr_exp.runtime.stop import Interrupted
from topr_exp.types import ConfigError, TOPRError

WARM = "topr_exp.sweeps.warm"  # what the fork server imports


class Killed(TOPRError):
    """A process ended without a word; the message says how."""


class Child:
    """A process that does `work(*arguments)`; it is told to stop when the process that forked it is killed."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([WARM])
        self._messages, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(work, arguments, theirs))
        self.process.start()
        theirs.close()

    def ending(self) -> Any:
        """Describe the end of a process: None when its work is done, else the exception, Killed if it sent none."""
        with self._messages:
            try:
                return self._messages.recv()
            except EOFError:
                pass
        code = self.process.exitcode or 0
        if code < 0:
            return Killed(f"killed by {signal.Signals(-code).name} (out of memory?)")
        return Killed(f"ended with exit code {code}")


def warm_up() -> None:
    """Start the fork server, which imports what runs need while its caller goes on."""
    forkserver.set_forkserver_preload([WARM])
    forkserver.ensure_running()


def wait(children: Iterable[Child], seconds: float) -> list[Child]:
    """Those that are over, once one is or so many seconds have passed."""
    listed = list(children)
    connection.wait([child.process.sentinel for child in listed], timeout=seconds)
    return [child for child in listed if child.process.exitcode is not None]


def threads_per_run(jobs: int) -> int | None:
    """CPU threads of a run when so many run at once; None leaves torch's choice to the only one."""
    if jobs == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // jobs, int(asked) if asked.isdecimal() else cores))


# ---- in the process


def take_share(threads: int | None) -> None:
    """Compute with so many CPU threads, in processes that this one starts too; None leaves torch's choice.

    It is a default: `cluster.threads` and what a run noted when it was begun decide over it.
    """
    if threads is not None:
        import torch

        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


def _run(work: Callable[..., None], arguments: tuple[Any, ...], messages: connection.Connection) -> None:
    """Do the work and send how it ended: None, or an exception with its message in one line."""
    _stop_with_parent()
    open_console(goes_on=True)
    try:
        work(*arguments)
        messages.send(None)
    except Interrupted as stopped:
        messages.send(stopped)
    except Exception as raised:
        error = distributed.root_cause(raised)
        kind = next((kind for kind in (distributed.PeerGone, ConfigError) if isinstance(error, kind)), TOPRError)
        messages.send(kind(attempt.message(error)))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _stop_with_parent() -> None:
    """Have this process sent SIGTERM when its parent is killed: nobody would start the rest or see the end."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def redirect(log: Path) -> None:
    """Append what this process and its children print to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def redirect_attempt(log: Path) -> None:
    """The same for a run that starts, whose file may hold earlier attempts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    redirect(log)
    print(f"==== {attempt.now()}, process {os.getpid()}", flush=True)
