"""The caller's side of the grading processes (worker.py): tasks in, answers out, whatever becomes of a worker.

Nothing is forked from the caller, who may run threads and torch, and no thread is started: `submit` waits for the
answers. Not pebble's ProcessPool: a worker that dies idle, or before its task is noted, breaks the whole pool.
"""

import contextlib
import itertools
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, NamedTuple

from topr_exp.grading.worker import HAS_LINUX_LIMITS, TASK_CPU_SECONDS
from topr_exp.types import TOPRError

CUT_OFF = ("timeout", "died")
MOST_RECEIVED = 1 << 24  # bytes of an answer
Answer = tuple[str, Any]  # ("ok", value), ("error", message), ("timeout", None), ("died", None)
Arguments = tuple[str, ...]


class _TaskAtWork(NamedTuple):
    """A task that a worker has not answered."""

    task_index: int
    start: float  # by time.monotonic
    processor_seconds: float  # that its worker had used by then


class _Worker:
    """A grading process and the beginning of the line that it is sending."""

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self.pid = 0
        self._received = bytearray()

    def read_pid(self) -> None:
        """Wait for the first line, which says the process's id."""
        while not self.pid:
            self.pid = self.receive() or 0

    def processor_seconds(self) -> float:
        """The processor time that the process has used, in hundredths of a second; infinite where it can't be read."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return math.inf
        fields = text.rpartition(")")[2].split()  # behind the name
        user_ticks, system_ticks = map(int, fields[11:13])
        return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")

    def receive(self) -> Any:
        """Read what has come: the line's value once it is complete, else None. Raises EOFError, OSError, ValueError."""
        received = os.read(self.channel.fileno(), MOST_RECEIVED)
        if not received:
            raise EOFError
        self._received += received
        if len(self._received) > MOST_RECEIVED:
            raise ValueError("a worker sent more than an answer has")
        if not received.endswith(b"\n"):
            return None
        line = self._received
        self._received = bytearray()
        return json.loads(line)


class WorkerPool:
    """`workers` processes that each run `target` ("package.module.name") on the strings of one task at a time.

    A worker without an answer `deadline` seconds after it began a task is killed: "timeout"; up to `patience` times as
    late where it had less than `deadline` of processor time, since other processes use the processors, too. A worker
    that ends by itself (memory or CPU limit, crash): "died". Either is replaced at once. Use from any thread; not in a
    forked child.
    """

    def __init__(
        self,
        target: str,
        workers: int,
        deadline: float,
        settings: Mapping[str, Any] | None = None,
        *,
        patience: float = 1.0,
    ) -> None:
        """settings: of a target that is a dataclass."""
        self.closed = False
        self._deadline = deadline
        self._patience = patience
        # Without /proc this process can't read a worker's processor time: the worker's own timer ends it.
        self._cpu_seconds = TASK_CPU_SECONDS if HAS_LINUX_LIMITS else deadline
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._server, self._control = _start_server(target, settings or {})
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(self._new_worker())
        except BaseException:
            self._end()
            raise

    def submit(self, tasks: Sequence[Arguments]) -> list[Answer]:
        """The answers to all tasks, in their order.

        A task that was cut off is tried once more at the end, alone in a fresh worker: its first worker may have grown,
        or have been stopped from outside. An exception (a signal's, or TOPRError where the processes fail) ends the
        pool.
        """
        with self._lock:
            if self.closed:
                raise TOPRError("the grading pool is closed")
            try:
                answers = self._run(tasks)
                for index, (status, _) in enumerate(answers):
                    if status in CUT_OFF:
                        self._replace(-1)  # `_run` takes the last worker first
                        (answers[index],) = self._run([tasks[index]])
            except BaseException:
                self._end()
                raise
        return answers

    @property
    def usable(self) -> bool:
        return not self.closed and self._owner_pid == os.getpid()

    def close(self) -> None:
        """Kill all workers and the server, once no task is under way."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._control.close()  # the server then kills the workers and ends
        for worker in self._workers:
            worker.channel.close()
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _run(self, tasks: Sequence[Arguments]) -> list[Answer]:
        """The answers in the tasks' order. A worker has one task at a time."""
        answers: list[Any] = [None] * len(tasks)
        waiting = list(reversed(range(len(tasks))))
        idle = list(range(len(self._workers)))
        busy: dict[int, _TaskAtWork] = {}  # by the worker's index
        while True:
            while idle and waiting:
                slot = idle.pop()
                task_index = waiting.pop()
                self._assign(slot, tasks[task_index])
                busy[slot] = _TaskAtWork(task_index, time.monotonic(), self._workers[slot].processor_seconds())
            if not busy:
                return answers
            seconds_left = min(itertools.starmap(self._seconds_left, busy.items()))
            channels = [self._workers[slot].channel for slot in busy]
            ready = wait(channels, seconds_left)
            for slot, task in list(busy.items()):
                worker = self._workers[slot]
                answer = answer_of(worker) if worker.channel in ready else None
                if answer is None and self._seconds_left(slot, task) <= 0:
                    answer = ("timeout", None)
                if answer is None:
                    continue
                answers[task.task_index] = answer
                if answer[0] in CUT_OFF:
                    self._replace(slot)
                del busy[slot]
                idle.append(slot)

    def _seconds_left(self, slot: int, task: _TaskAtWork) -> float:
        """The time until a worker's task may have to be cut off."""
        seconds = time.monotonic() - task.start
        if seconds < self._deadline:
            return self._deadline - seconds
        if not HAS_LINUX_LIMITS:
            return self._patience * self._deadline - seconds  # its own timer counts its processor time
        processor_seconds = self._workers[slot].processor_seconds()
        if math.isinf(processor_seconds):
            return 0.0
        processor_seconds_left = self._deadline - (processor_seconds - task.processor_seconds)
        return min(processor_seconds_left, self._patience * self._deadline - seconds)

    def _assign(self, slot: int, task: Arguments) -> None:
        """Send a task to an idle worker."""
        if self._workers[slot].channel.poll(0):  # unasked: it ended while it was idle
            self._replace(slot)
        channel = self._workers[slot].channel
        with contextlib.suppress(OSError):  # where it ended just now, its channel says so
            channel.send_bytes(json.dumps([self._cpu_seconds, task]).encode())

    def _replace(self, slot: int) -> None:
        worker = self._workers[slot]
        worker.channel.close()
        self._workers[slot] = self._new_worker(replaced_pid=worker.pid)

    def _new_worker(self, replaced_pid: int | None = None) -> _Worker:
        channel, channel_of_worker = Pipe()
        try:
            with channel_of_worker:
                self._control.send_bytes(json.dumps(replaced_pid).encode())
                send_handle(self._control, channel_of_worker.fileno(), self._server.pid)
            worker = _Worker(channel)
            set_send_timeout(channel, self._deadline)
            worker.read_pid()
            return worker
        except (EOFError, OSError, ValueError) as error:
            raise TOPRError("the grading processes ended unexpectedly (see standard error for a message)") from error


def answer_of(worker: _Worker) -> Answer | None:
    """A worker's answer, None while it is incomplete; "died" where the line is no answer."""
    try:
        answer = worker.receive()
    except (EOFError, OSError, ValueError, RecursionError):
        return ("died", None)
    match answer:
        case None:
            return None
        case [("ok" | "error") as status, value]:
            return (status, value)
        case _:
            return ("died", None)


def set_send_timeout(channel: Connection, seconds: float) -> None:
    """Limit how long a send may wait: a stopped worker reads nothing."""
    microseconds = int(1e6 * (seconds % 1))
    timeval = struct.pack("ll", int(seconds), microseconds)
    duplicate = os.dup(channel.fileno())  # for the socket to close
    with socket.socket(fileno=duplicate) as channel_socket:
        channel_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


def _start_server(target: str, settings: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start an interpreter with this one's import path; it inherits one socket and no other descriptor."""
    control, control_of_server = Pipe()
    repository = str(Path(__file__).resolve().parents[2])
    paths = [os.path.abspath(path) for path in (*sys.path, repository)]
    code = (
        f"import sys; sys.path[:] = {paths!r}\n"
        "from topr_exp.grading.worker import serve; "
        f"serve({control_of_server.fileno()}, {os.getpid()}, {target!r}, {json.dumps(settings)!r})"
    )
    with control_of_server:
        server = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[control_of_server.fileno()],
            start_new_session=True,  # Ctrl-C is the caller's to handle
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's order of terms depends on it
        )
    return server, control
