"""The caller's side of the grading processes (worker.py): tasks in, answers out, whatever becomes of a worker.

Nothing is forked from the caller, who may run threads and torch, and no thread is started: who submits tasks waits for
the answers. Not pebble's ProcessPool: a worker that dies idle, or before its task is noted, breaks the whole pool.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from topr_exp.types import TOPRError

CUT_OFF = ("timeout", "died")
MOST_RECEIVED = 1 << 24  # bytes of an answer
Answer = tuple[str, Any]  # ("ok", value), ("error", message), ("timeout", None), ("died", None)
Arguments = tuple[str, ...]


class _Worker:
    """A process that grades, and what it sent so far of its next line."""

    def __init__(self, channel: Connection) -> None:
        self.channel, self.pid = channel, 0
        self._received = bytearray()

    def receive(self) -> Any:
        """Read what is there; the value of a line once that is whole, before it None. EOFError, OSError, ValueError."""
        received = os.read(self.channel.fileno(), MOST_RECEIVED)
        if not received:
            raise EOFError
        self._received += received
        if len(self._received) > MOST_RECEIVED:
            raise ValueError("a worker sent more than an answer has")
        if not received.endswith(b"\n"):
            return None
        line, self._received = self._received, bytearray()
        return json.loads(line)


class WorkerPool:
    """`workers` processes that each run `target` ("package.module:function") on the strings of one task at a time.

    A worker without an answer `deadline` seconds after it began a task is killed: "timeout". One that ends by itself
    (memory or CPU limit, crash): "died". Either is replaced at once. Use from any thread; not in a forked child.
    """

    def __init__(self, target: str, workers: int, deadline: float) -> None:
        self.closed, self._deadline = False, deadline
        self._process, self._at_work = os.getpid(), threading.Lock()
        self._server, self._control = _start_server(target)
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(self._new_worker())
        except BaseException:
            self._end()
            raise

    def submit(self, tasks: Sequence[Arguments]) -> list[Answer]:
        """The answers to all tasks, in their order.

        What was cut off is tried once more at the end, alone in a fresh worker: something else may have stopped the
        first, or it had grown. An exception (a signal's, or TOPRError where the processes fail) ends the pool.
        """
        with self._at_work:
            if self.closed:
                raise TOPRError("the grading pool is closed")
            try:
                answers = self._run(tasks)
                for index in [index for index, answer in answers.items() if answer[0] in CUT_OFF]:
                    self._replace(-1)  # the one that `_run` takes first
                    answers[index] = self._run([tasks[index]])[0]
            except BaseException:
                self._end()
                raise
        return [answers[index] for index in range(len(answers))]

    @property
    def usable(self) -> bool:
        return not self.closed and self._process == os.getpid()

    def close(self) -> None:
        """Kill all workers and the server, once no task is under way."""
        with self._at_work:
            self._end()

    def _end(self) -> None:
        self.closed = True
        for channel in (self._control, *(worker.channel for worker in self._workers)):
            channel.close()  # the server then kills the workers and ends
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _run(self, tasks: Sequence[Arguments]) -> dict[int, Answer]:
        """The answers by the tasks' numbers. A worker has one at a time."""
        left, answers, idle = [*range(len(tasks))][::-1], dict[int, Answer](), [*range(len(self._workers))]
        busy: dict[int, tuple[int, float]] = {}  # a worker's place -> its task's number, and when it is due
        while True:
            while idle and left:
                if self._workers[place := idle.pop()].channel.poll(0):  # unasked: it ended while it was idle
                    self._replace(place)
                with contextlib.suppress(OSError):  # where it ended just now, its channel says so
                    self._workers[place].channel.send_bytes(json.dumps(tasks[left[-1]]).encode())
                busy[place] = left.pop(), time.monotonic() + self._deadline
            if not busy:
                return answers
            wait_for = min(due for _, due in busy.values()) - time.monotonic()
            ready = wait([self._workers[place].channel for place in busy], max(0.0, wait_for))
            for place, (number, due) in [*busy.items()]:
                worker = self._workers[place]
                answer = answer_of(worker) if worker.channel in ready else None
                if answer is None and time.monotonic() < due:
                    continue
                answers[number] = answer if answer is not None else ("timeout", None)
                if answers[number][0] in CUT_OFF:
                    self._replace(place)
                del busy[place]
                idle.append(place)

    def _replace(self, place: int) -> None:
        old = self._workers[place]
        old.channel.close()
        self._workers[place] = self._new_worker(old.pid)

    def _new_worker(self, replaced: int | None = None) -> _Worker:
        ours, theirs = Pipe()
        try:
            with theirs:
                self._control.send_bytes(json.dumps(replaced).encode())
                send_handle(self._control, theirs.fileno(), self._server.pid)
            worker = _Worker(ours)
            limit_sending(ours, self._deadline)
            while not worker.pid:
                worker.pid = worker.receive() or 0  # its first line
            return worker
        except (EOFError, OSError, ValueError) as error:
            raise TOPRError("the grading processes ended unexpectedly (see standard error for a message)") from error


def answer_of(worker: _Worker) -> Answer | None:
    """A worker's answer, None while a part of it is missing; "died" for what is none."""
    try:
        answer = worker.receive()
    except (EOFError, OSError, ValueError, RecursionError):
        return "died", None
    if answer is None:
        return None
    is_answer = isinstance(answer, list) and len(answer) == 2 and answer[0] in ("ok", "error")
    return (answer[0], answer[1]) if is_answer else ("died", None)


def limit_sending(channel: Connection, seconds: float) -> None:
    """Have a send fail after so long that nobody read what was sent before: a worker may be stopped."""
    with socket.socket(fileno=os.dup(channel.fileno())) as end:
        whole = int(seconds)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, int(1e6 * (seconds - whole))))


def _start_server(target: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """A fresh interpreter with this one's import path; it inherits one socket and no other descriptor."""
    ours, theirs = Pipe()
    paths = [os.path.abspath(path) for path in (*sys.path, str(Path(__file__).resolve().parents[2]))]
    code = (
        f"import sys; sys.path[:] = {paths!r}\n"
        f"from topr_exp.grading.worker import serve; serve({theirs.fileno()}, {os.getpid()}, {target!r})"
    )
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the caller's to handle
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's order of terms depends on it
        )
    return server, ours
