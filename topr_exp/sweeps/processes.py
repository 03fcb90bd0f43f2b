"""Processes of this machine: a run as several processes, one per GPU, and the supervision of any process.

They are forked from a server that has imported torch and transformers, has no threads and has never touched a GPU; on
macOS each imports them itself. One that crashes takes nothing with it; one whose launcher is killed saves and ends.

Not torch's elastic launcher: 30 seconds after one process of a run ended it kills the others, which may still save.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.files import disk_errors, open_own_file
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.runtime.terminal import open_console, printable
from topr_exp.sweeps.imports import import_pipeline
from topr_exp.types import ConfigError, TOPRError

PRELOAD = ["topr_exp.sweeps.preload"]
START_ATTEMPTS = 3  # of a process
LONG_SOCKET_PATH = "AF_UNIX path too long"  # in Python's error, which has no number
POLL_SECONDS = 0.2  # between looks at the stop flag
GRACE_SECONDS = 5.0  # for the other processes of a run to end by themselves once one of them failed


class KilledError(TOPRError):
    """A process ended without sending its error; the message says how."""


class Child:
    """A process that does `work(*arguments)`. log: a file for its output; None leaves it where it goes."""

    def __init__(self, name: str, log: Path | None, work: Callable[..., None], *arguments: Any) -> None:
        context = process_context()
        self._receiver, sender = context.Pipe(duplex=False)
        self._messages: list[BaseException | None] = []  # how it ended; the first counts
        self.process = context.Process(target=_run, args=(log, work, arguments, sender), name=name)
        self._start()
        sender.close()

    def _start(self) -> None:
        """Start the process, by a new server if the one that forks it was killed just now."""
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                with hidden_main_module(), refused_long_tmpdir():
                    self.process.start()
                return
            except (EOFError, OSError) as error:
                if attempts_left == 0:
                    raise KilledError(
                        f"{self.process.name} can't be started: the server that forks it ended (out of memory?); the "
                        "same command goes on from there"
                    ) from error
            time.sleep(POLL_SECONDS)  # until the server is seen to be over

    def has_ended(self) -> bool:
        """True once the process is over; reads its message, without which one that fills the pipe would never end."""
        self._receive()
        return self.process.exitcode is not None

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # there is no more; OSError: killed while it sent
            while self._receiver.poll():
                self._messages.append(self._receiver.recv())

    def ending(self) -> BaseException | None:
        """Return the error that ended the process, KilledError if it sent none; None if its work is done."""
        with self._receiver:
            self._receive()
        if self._messages:
            return self._messages[0]
        exit_code = self.process.exitcode or 0
        name = self.process.name
        if exit_code < 0:
            killer = signal.Signals(-exit_code)
            guess = " (out of memory?)" if killer == signal.SIGKILL else ""
            return KilledError(f"{name} was killed by {killer.name}{guess}")
        return KilledError(f"{name} ended with exit code {exit_code}")


def process_context() -> ForkServerContext | SpawnContext:
    """Return how processes start here."""
    if sys.platform == "darwin":
        # Its system libraries may crash a fork of a process that has loaded them: Accelerate, Metal, urllib's proxies.
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@contextlib.contextmanager
def hidden_main_module() -> Iterator[None]:
    """Keep a new process from importing the caller's script, which may start the same sweep without a guard."""
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # without a file
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module


@contextlib.contextmanager
def refused_long_tmpdir() -> Iterator[None]:
    """Turn the error of a TMPDIR in which no socket can have a name (107 bytes in all) into a ConfigError."""
    try:
        yield
    except OSError as error:
        if LONG_SOCKET_PATH not in str(error):
            raise
        raise ConfigError(
            f"TMPDIR={tempfile.gettempdir()}: too long for the names of sockets; set a shorter one"
        ) from None


def _run(
    log: Path | None, work: Callable[..., None], arguments: tuple[Any, ...], sender: connection.Connection
) -> None:
    """Do the work and send how it ended: None, or an exception of this package's."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    open_console(lasting=True)
    error: BaseException | None = None

    def send_bus_error(bus_error: TOPRError) -> bool:
        sender.send(bus_error)
        return log is None  # then the parent prints it

    try:
        if log is not None:
            redirect(log)
        with one_line_for_bus_errors(send_bus_error):
            work(*arguments)
    except Interrupted as stop:
        error = stop
    except Exception as exception:
        error = distributed.recognize_gone_peer(exception)
        if not isinstance(error, TOPRError):
            traceback.print_exc()
            error = TOPRError(attempt.error_line(error))
    if error is not None and log is not None:
        print(printable(str(error)), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    sender.send(error)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(
    starts: Sequence[Callable[[int], Child]],
    stop: StopFlag,
    report: Callable[[Child, BaseException | None], None],
    *,
    slots: int,
    is_one_run: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Start processes, one per slot at a time, each with its slot's number, and report how each ended.

    After a stop signal no more start, and all get SIGTERM. is_one_run: they are the processes of one run, which agree
    on the update after which they save, so all get SIGTERM once one was stopped; once one failed, the others, which
    may wait for it for ever, are killed after a few seconds. tick: called several times a second.
    """
    waiting_starts = list(reversed(starts))
    free_slots = list(reversed(range(slots)))
    slot_by_child: dict[Child, int] = {}
    deadline = math.inf  # when the other processes of a failed run are killed
    was_stopped = False  # a process of the one run
    is_stopping = False
    try:
        while waiting_starts or slot_by_child:
            while waiting_starts and free_slots:
                slot = free_slots.pop()
                start = waiting_starts.pop()
                child = start(slot)
                slot_by_child[child] = slot
            connection.wait([child.process.sentinel for child in slot_by_child], POLL_SECONDS)
            tick()
            ended_children = [child for child in slot_by_child if child.has_ended()]
            for child in ended_children:
                free_slots.append(slot_by_child.pop(child))
                error = child.ending()
                report(child, error)
                if is_one_run and isinstance(error, Exception):
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                if is_one_run and isinstance(error, Interrupted):
                    was_stopped = True
            if not is_stopping and (was_stopped or stop.requested()):
                is_stopping = True
                waiting_starts = []
                for child in slot_by_child:
                    child.process.terminate()
            if time.monotonic() > deadline:
                break
    finally:
        for child in slot_by_child:  # after a second Ctrl-C, too
            child.process.kill()
    for child in slot_by_child:
        child.process.join()
        report(child, child.ending())


def redirect(log: Path) -> None:
    """Append the output of this process and its children to a file; TOPRError if it can't be written."""
    with disk_errors(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"write {log}"), open(log, "ab", opener=open_own_file) as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    print(f"==== {attempt.timestamp()}, process {os.getpid()}", flush=True)


def share_threads(process_count: int) -> None:
    """Divide the CPU threads of torch, and of child processes, by default; `cluster.threads` overrides it."""
    if process_count > 1:
        import torch

        threads = max(1, torch.get_num_threads() // process_count)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


# ---- a run as several processes


def run_in_processes(config: Config, log: Path | None = None) -> None:
    """Do a run in this process, or in as many as its cluster settings ask for; raises the run's error."""
    world_size = config.cluster.world_size
    launched_count = distributed.launched_processes()
    if launched_count > 1 and world_size != launched_count:
        raise ConfigError(
            f"{config.cluster.processes_are} must be {launched_count}, as many as were started; got {world_size}"
        )
    if world_size == launched_count:
        import_pipeline().run(config)
        return
    stop = StopFlag()
    with stop.listening(), rendezvous() as variables:
        errors = run_ranks(config, log, stop, variables)
    causes = [error for error in errors if isinstance(error, Exception)]  # no stop
    causes.sort(key=lambda error: isinstance(error, distributed.PeerGoneError))  # last: it explains nothing
    if stop.requested():
        causes = [error for error in causes if not isinstance(error, KilledError | distributed.PeerGoneError)]
    if causes:
        if isinstance(causes[0], KilledError):
            attempt.record_error(config.folder, causes[0])  # the others recorded their own
        raise causes[0]
    stop.check()  # names the signal that this process got, if it got one
    if errors:
        raise errors[0]


def run_ranks(config: Config, log: Path | None, stop: StopFlag, variables: dict[str, str]) -> list[BaseException]:
    """Run all ranks of a run to their end; returns the errors that ended them. variables: of their environment."""
    world_size = config.cluster.world_size
    for name in ("CUDA_VISIBLE_DEVICES", distributed.RUNS_PER_GPU):
        if name in os.environ:  # the fork server has it as it was when that started
            variables[name] = os.environ[name]
    errors: list[BaseException] = []

    def start(rank: int, slot: int) -> Child:
        return Child(f"process {rank} of {world_size}", log, run_rank, config, rank, variables)

    def collect_error(child: Child, error: BaseException | None) -> None:
        if error is not None:
            errors.append(error)

    starts = [partial(start, rank) for rank in range(world_size)]
    supervise(starts, stop, collect_error, slots=world_size, is_one_run=True)
    return errors


@contextlib.contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """Keep torch's store in this process, as torchrun does, so that its port stays; yields variables that name it."""
    if process_context().get_start_method() == "forkserver":
        with refused_long_tmpdir():
            forkserver.ensure_running()  # it imports torch at the same time
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def run_rank(config: Config, rank: int, variables: dict[str, str]) -> None:
    """Be one process of a run."""
    world_size = config.cluster.world_size
    os.environ.update(
        variables, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    share_threads(world_size)
    import_pipeline().run(config)
