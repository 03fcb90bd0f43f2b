"""A pool of worker processes that are killed when a task overruns its deadline: the caller's side.

The workers are forked by one small server process (server.py) that has imported and warmed everything, so that
replacing a killed worker costs milliseconds, and so that nothing is ever forked from the caller, who may run threads
and torch. Each worker has a thread here, which hands it one task after the other and waits for the answer: the
caller's signals, alarms and threads do not matter.

pebble's ProcessPool was tried in place of this: a worker that dies before the busy caller has noted which task it
took breaks the whole pool, and so does one that dies while it is idle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from topr_exp.types import TOPRError

START_SECONDS = 600.0  # of patience with a slow disk or a crowded machine; it takes 1 to 2 seconds
LATE = f"the grading processes did not answer within {START_SECONDS:g} s; give the command again on a freer machine"

CUT_OFF = ("timeout", "died")
Answer = tuple[str, Any]  # ("ok", value), ("error", message), ("timeout", None), ("died", None), ("failed", message)


class _Worker(NamedTuple):
    pid: int
    channel: Connection


class WorkerPool:
    """`workers` processes that each run `target` ("package.module:function") on the strings of one task at a time.

    A worker that has not answered `deadline` seconds after it began a task is killed: "timeout". One that ends by
    itself (out of memory or CPU limit, crash): "died". Either is replaced at once, and the task tried once more while
    no other is: something else may have stopped or killed the first. Workers can't execute text, write files or start
    processes (worker.py). Use from any thread; not across fork (see Grader).
    """

    def __init__(self, target: str, workers: int, deadline: float) -> None:
        assert workers >= 1
        assert deadline > 0
        self._deadline = deadline
        self._tasks: SimpleQueue[tuple[Future[Answer], tuple[str, ...]] | None] = SimpleQueue()
        self._ended: str | None = None  # why no task is taken any more
        self._ending = threading.Lock()
        self._asking = threading.Lock()  # one request to the server at a time
        self._at_work = threading.Semaphore(workers)
        self._begin = threading.Lock()  # no task begins while it is held
        self._server, self._control = _start_server(target)
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(workers):
                self._workers.append(self._new_worker())
        except BaseException:
            self.close()
            raise
        for place in range(workers):
            thread = threading.Thread(target=self._run, args=(place,), name=f"grading-pool-{place}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, *arguments: str) -> Future[Answer]:
        """Queue one task; never blocks. Raises TOPRError if the pool has failed or is closed."""
        future: Future[Answer] = Future()
        with self._ending:
            if self._ended is not None:
                raise TOPRError(self._ended)
            self._tasks.put((future, arguments))
        return future

    def pids(self) -> list[int]:
        """Process ids of the server and of the current workers."""
        return [self._server.pid, *(worker.pid for worker in self._workers)]

    def close(self) -> None:
        """Kill all workers and the server, let open tasks fail, and wait until all is gone."""
        self._end("the grading pool is closed")
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets without touching the parent's workers."""
        for channel in (self._control, *(worker.channel for worker in self._workers)):
            channel.close()
        self._server.returncode = 0  # not our child: Popen must not wait for it

    def _end(self, reason: str) -> None:
        with self._ending:
            if self._ended is not None:
                return
            self._ended = reason
        for _ in self._workers:
            self._tasks.put(None)
        with self._asking:
            self._control.close()  # the server kills the workers, whose threads find their channels closed
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    # ---- the thread of one worker ----

    def _run(self, place: int) -> None:
        while (task := self._tasks.get()) is not None:
            future, arguments = task
            with self._begin:
                self._at_work.acquire()
            answer = self._answer(place, arguments)
            self._at_work.release()
            if answer[0] in CUT_OFF:
                answer = self._answer_alone(place, arguments)
            future.set_result(answer)
        self._workers[place].channel.close()

    def _answer_alone(self, place: int, arguments: tuple[str, ...]) -> Answer:
        with self._begin:
            for _ in self._workers:
                self._at_work.acquire()
            answer = self._answer(place, arguments)
            self._at_work.release(len(self._workers))
        return answer

    def _answer(self, place: int, arguments: tuple[str, ...]) -> Answer:
        try:
            if self._workers[place].channel.poll(0):  # it never speaks unasked: it ended while it was idle
                self._replace(place)
            answer, worn_out = self._ask(self._workers[place].channel, arguments)
            if worn_out:
                self._replace(place)
        except Exception as error:  # the pool was closed, the server died, or no process can be made
            self._end(f"the grading workers failed: {error}")
            return "failed", self._ended
        return answer

    def _ask(self, channel: Connection, arguments: tuple[str, ...]) -> tuple[Answer, bool]:
        """A task's answer, and whether the worker has to be replaced."""
        try:
            channel.send_bytes(json.dumps(arguments).encode())
            if not channel.poll(self._deadline):
                return ("timeout", None), True
            status, value, worn_out = json.loads(channel.recv_bytes())
        except (EOFError, OSError):
            return ("died", None), True
        return (status, value), worn_out

    def _replace(self, place: int) -> None:
        old = self._workers[place]
        old.channel.close()
        self._workers[place] = self._new_worker(old.pid)

    def _new_worker(self, replaced: int | None = None) -> _Worker:
        ours, theirs = Pipe()
        with self._asking, theirs:
            try:
                self._control.send_bytes(json.dumps(replaced).encode())
                send_handle(self._control, theirs.fileno(), self._server.pid)
                reply = json.loads(_receive(self._control))
            except (EOFError, OSError) as error:
                raise TOPRError("the grading server ended unexpectedly") from error
        if "error" in reply:
            raise TOPRError(reply["error"])
        try:
            _receive(ours)
        except (EOFError, OSError) as error:
            message = "a worker process ended before its first task (its message is on standard error)"
            raise TOPRError(message) from error
        return _Worker(reply["pid"], ours)


def _receive(channel: Connection) -> bytes:
    if not channel.poll(START_SECONDS):
        raise TOPRError(LATE)
    return channel.recv_bytes()


def _start_server(target: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """A fresh interpreter with this one's import path; it inherits one socket and no other descriptor."""
    ours, theirs = Pipe()
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
            start_new_session=True,  # Ctrl-C is the caller's to handle
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy's order of terms depends on it
        )
    return server, ours
