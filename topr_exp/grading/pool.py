"""A pool of killable worker processes with a deadline for each task; the parent's side.

Workers are forked by one small server process (server.py) that has imported and warmed everything, so that replacing a
killed worker costs milliseconds, and so that nothing is ever forked from the caller, who may run threads and torch.
A dispatcher thread of the pool's own does all waiting: the caller's signals, alarms and threads do not matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from topr_exp.types import TOPRError

MEMORY_BYTES = 768 << 20  # of address space above what the warmed server has: under 1 GiB in all
START_SECONDS = 600.0  # of patience with a slow disk or a crowded machine; it takes 1 to 2 seconds
LATE = f"the grading processes did not answer within {START_SECONDS:g} s; give the command again on a freer machine"
_HEADER = struct.Struct("!I")


class Ticket:
    """A task on its way: `result` waits for (status, value); status is "ok", "timeout", "died" or "error"."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.arguments = arguments
        self._done = threading.Event()
        self._status = ""
        self._value: Any = None

    def done(self) -> bool:
        return self._done.is_set()

    def finish(self, status: str, value: Any = None) -> None:
        self._status, self._value = status, value
        self._done.set()

    def result(self) -> tuple[str, Any]:
        self._done.wait()
        return self._status, self._value


class _Worker:
    """One worker process: idle, or busy with a ticket until its deadline."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.ticket: Ticket | None = None
        self.deadline = 0.0
        self.buffer = bytearray()


class Pool:
    """`workers` processes that each run `target` ("package.module:function") on the strings of one task at a time.

    A task that has no result `deadline` seconds after a worker began it is killed and its status is "timeout"; a worker
    that ends by itself (out of memory or CPU limit, crash) gives "died". Either is replaced at once. Use from any
    thread; not across fork (see Grader).
    """

    def __init__(self, target: str, workers: int, deadline: float) -> None:
        assert workers >= 1
        assert deadline > 0
        self.target, self.deadline = target, deadline
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._closing = False
        self._failure: str | None = None
        self._server, self._control = _start_server(target)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._workers: list[_Worker] = []
        try:
            self._ask_server({"op": "ready"})
            for _ in range(workers):
                self._add_worker()
        except BaseException:
            self._shut_down()
            raise
        self._thread = threading.Thread(target=self._run, name="grading-pool", daemon=True)
        self._thread.start()

    def submit(self, *arguments: str) -> Ticket:
        """Queue one task; never blocks. Raises TOPRError if the pool has failed or is closed."""
        ticket = Ticket(arguments)
        with self._lock:
            if self._failure or self._closing:
                raise TOPRError(self._failure or "the grading pool is closed")
            self._waiting.append(ticket)
        self._wake()
        return ticket

    def pids(self) -> list[int]:
        """Process ids of the server and of the current workers."""
        with self._lock:
            return [self._server.pid, *(worker.pid for worker in self._workers)]

    def close(self) -> None:
        """Kill all workers and the server, finish open tickets as died, and wait until all is gone."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake()
        self._thread.join()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets without touching the parent's workers."""
        for channel in (self._control, self._wake_in, self._wake_out, *(worker.channel for worker in self._workers)):
            channel.close()
        self._selector.close()
        self._server.returncode = 0  # not our child: Popen must not wait for it

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: a wake-up is pending already; closed: the pool is gone
            self._wake_in.send(b"w")

    # ---- the dispatcher thread ----

    def _run(self) -> None:
        try:
            while not self._closing:
                self._assign()
                for event, _ in self._selector.select(self._patience()):
                    if event.data is None:
                        self._drain_wakes()
                    else:
                        self._receive(event.data)
                self._enforce_deadlines()
        except Exception as error:  # the server died, or no process can be made: tell every waiting caller
            with self._lock:
                self._failure = f"the grading workers failed: {error}"
        finally:
            self._shut_down()

    def _patience(self) -> float | None:
        busy = [worker.deadline for worker in self._workers if worker.ticket]
        return max(0.0, min(busy) - time.monotonic()) if busy else None

    def _drain_wakes(self) -> None:
        try:
            while self._wake_out.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _assign(self) -> None:
        for worker in list(self._workers):
            if worker.ticket is None:
                with self._lock:
                    if not self._waiting:
                        return
                    worker.ticket = self._waiting.popleft()
                worker.deadline = time.monotonic() + self.deadline
                try:
                    send(worker.channel, {"arguments": worker.ticket.arguments})
                except OSError:
                    self._replace(worker, "died")

    def _receive(self, worker: _Worker) -> None:
        try:
            chunk = worker.channel.recv(1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            self._replace(worker, "timeout" if time.monotonic() >= worker.deadline else "died")
            return
        worker.buffer += chunk
        if len(worker.buffer) < _HEADER.size:
            return
        (size,) = _HEADER.unpack_from(worker.buffer)
        if len(worker.buffer) < _HEADER.size + size:
            return
        reply = json.loads(worker.buffer[_HEADER.size :])
        worker.buffer.clear()
        ticket, worker.ticket = worker.ticket, None
        assert ticket is not None
        ticket.finish(reply["status"], reply.get("value"))
        if reply["retire"]:  # it has grown large: a fresh one is cheaper than the memory
            self._replace(worker, "died")

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.ticket and now >= worker.deadline:
                self._replace(worker, "timeout")

    def _replace(self, worker: _Worker, status: str) -> None:
        os.kill(worker.pid, 9)  # the server has not reaped it, so the number cannot be another process's
        if worker.ticket:
            worker.ticket.finish(status)
            worker.ticket = None
        self._selector.unregister(worker.channel)
        worker.channel.close()
        with self._lock:
            self._workers.remove(worker)
        self._ask_server({"op": "reap", "pid": worker.pid})
        self._add_worker()

    def _add_worker(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reply = self._ask_server({"op": "fork", "memory": MEMORY_BYTES}, theirs)
        ours.settimeout(START_SECONDS)
        try:
            ready = receive(ours)
        except TimeoutError:
            raise TOPRError(LATE) from None
        if ready is None:
            raise TOPRError("a worker process ended before its first task (its message is on standard error)")
        worker = _Worker(reply["pid"], ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with self._lock:
            self._workers.append(worker)

    def _ask_server(self, request: dict[str, Any], pass_on: socket.socket | None = None) -> dict[str, Any]:
        self._control.settimeout(START_SECONDS)
        try:
            if pass_on is None:
                send(self._control, request)
            else:
                data = json.dumps(request).encode()
                socket.send_fds(self._control, [_HEADER.pack(len(data)) + data], [pass_on.fileno()])
            reply = receive(self._control)
        except TimeoutError:
            raise TOPRError(LATE) from None
        if reply is None:
            raise TOPRError("the grading server ended unexpectedly")
        if "error" in reply:
            raise TOPRError(reply["error"])
        return reply

    def _shut_down(self) -> None:
        with self._lock:
            self._closing = True
            tickets = [*self._waiting, *(worker.ticket for worker in self._workers if worker.ticket)]
            self._waiting.clear()
        with contextlib.suppress(OSError):
            send(self._control, {"op": "exit"})
        self._control.close()
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        for worker in self._workers:
            worker.channel.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
        for ticket in tickets:
            ticket.finish("failed", self._failure or "the grading pool was closed")


def _start_server(target: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A fresh interpreter with this one's import path; it inherits one socket and no other descriptor."""
    ours, theirs = socket.socketpair()
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [os.path.abspath(path) if path else os.getcwd() for path in sys.path]
    if package_root not in paths:
        paths.append(package_root)
    code = (
        f"import sys; sys.path[:] = {paths!r}\n"
        f"from topr_exp.grading.server import main; main({theirs.fileno()}, {os.getpid()}, {target!r})"
    )
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the parent's to handle
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's order of terms depends on it
        )
    return server, ours


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """One length-prefixed JSON message."""
    data = json.dumps(message).encode()
    channel.sendall(_HEADER.pack(len(data)) + data)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None at the end of the stream."""
    header = _read(channel, _HEADER.size)
    if header is None:
        return None
    data = _read(channel, _HEADER.unpack(header)[0])
    if data is None:
        return None
    message: dict[str, Any] = json.loads(data)
    return message


def _read(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
