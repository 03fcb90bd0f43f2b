"""Processes of this machine: runs of a sweep, several at once, and a run as several processes, one a GPU.

They are forked from a server that has imported torch and transformers, has no threads and has never touched a GPU. One
that crashes takes nothing with it; one whose launcher is killed saves and ends.

Not torch's elastic launcher: 30 seconds after one process of a run ended it kills the others, which may still save.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from topr_exp.config.cluster import check_parts
from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import open_console
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps.sweep import LOG, Run
from topr_exp.types import ConfigError, TOPRError

PRELOAD = ["topr_exp.sweeps.preload"]
POLL_SECONDS = 0.2  # until it is asked again whether a signal came
GRACE_SECONDS = 5.0  # for the other processes of a run to end by themselves once one of them failed


class Killed(TOPRError):
    """A process ended without a word; the message says how."""


class Child:
    """A process that does `work(*arguments)`. log: a file that takes what it prints; None leaves it where it goes."""

    def __init__(self, name: str, log: Path | None, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._messages, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(log, work, arguments, theirs), name=name)
        self.process.start()
        theirs.close()

    def ending(self) -> Any:
        """Describe the end of a process: None when its work is done, else the exception, Killed if it sent none."""
        with self._messages, contextlib.suppress(EOFError):
            return self._messages.recv()
        code, name = self.process.exitcode or 0, self.process.name
        if code < 0:
            return Killed(f"{name} was killed by {signal.Signals(-code).name} (out of memory?)")
        return Killed(f"{name} ended with exit code {code}")


def _run(log: Path | None, work: Callable[..., None], arguments: tuple[Any, ...], pipe: connection.Connection) -> None:
    """Do the work and send how it ended: None, or an exception with its message in one line."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    open_console(goes_on=True)
    if log is not None:
        redirect(log)
    ending: BaseException | None = None
    try:
        work(*arguments)
    except Interrupted as stopped:
        ending = stopped
    except Exception as raised:
        error = distributed.root_cause(raised)
        if not isinstance(error, TOPRError):
            traceback.print_exc()
        kind = next((kind for kind in (distributed.PeerGone, ConfigError) if isinstance(error, kind)), TOPRError)
        ending = kind(attempt.message(error))
    if ending is not None and log is not None:
        print(ending, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(ending)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def ended(children: Iterable[Child], seconds: float | None = None) -> list[Child]:
    """Those that are over, once one is or so many seconds have passed."""
    listed = list(children)
    connection.wait([child.process.sentinel for child in listed], timeout=seconds)
    return [child for child in listed if child.process.exitcode is not None]


def redirect(log: Path) -> None:
    """Append what this process and its children print to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    print(f"==== {attempt.now()}, process {os.getpid()}", flush=True)


def threads_per_run(jobs: int) -> int | None:
    """CPU threads of a run when so many run at once; None leaves torch's choice to the only one."""
    if jobs == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // jobs, int(asked) if asked.isdecimal() else cores))


def limit_threads(threads: int | None) -> None:
    """Set the default number of CPU threads (None: torch's), of child processes too; `cluster.threads` goes before."""
    if threads is not None:
        import torch

        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


# ---- runs of a sweep


def run_locally(runs: Sequence[Run], jobs: int, report: Callable[[Run, Any], None]) -> None:
    """Run these, `jobs` at once; `report(run, error)` after each. A signal stops them, and Interrupted is raised."""
    processes = max(run.settings["cluster"]["processes"] for run in runs)
    share = threads_per_run(min(jobs, len(runs)) * processes)
    waiting, slots = list(reversed(runs)), list(reversed(range(jobs)))
    working: dict[Child, tuple[Run, int]] = {}
    try:
        while waiting or working:
            while waiting and slots:
                run, slot = waiting.pop(), slots.pop()
                log = run.folder.resolve() / LOG
                working[Child("the run", log, run_one, run, log, share, slot)] = run, slot
            for each in ended(working):
                run, slot = working.pop(each)
                slots.append(slot)
                report(run, each.ending())
    except (Interrupted, KeyboardInterrupt):
        with _killing(working):  # by a second Ctrl-C
            for each in working:
                each.process.terminate()
            for each in working:
                each.process.join()
        raise


@contextlib.contextmanager
def _killing(children: Iterable[Child]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in children:
            each.process.kill()


def run_one(run: Run, log: Path, share: int | None, slot: int) -> None:
    choose_gpus(slot, run.settings["cluster"]["processes"])
    limit_threads(share)
    run_processes(run.enter(), log)


def choose_gpus(slot: int, count: int) -> None:
    """Spread the runs over the GPUs, `count` for each, before the first use of one."""
    names = distributed.visible_gpus()
    if len(names) > count:
        first = slot % (len(names) // count) * count
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + count])


# ---- a run as several processes


def run_processes(config: Config, log: Path | None = None) -> None:
    """A run in this process, or in as many as `cluster.processes` says; raises what the run raises."""
    size, launched = config.cluster.world_size, distributed.launched_processes()
    if launched > 1:
        if size not in (1, launched):
            raise ConfigError(f"the settings ask for {size} processes, torchrun started {launched}")
        try:
            check_parts("the number of processes", launched, config.optim.batch_size)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if size == 1 or launched > 1:
        from topr_exp.pipeline import run

        run(config)
        return
    stop = StopFlag()
    with stop.listening(), rendezvous() as place:
        if "CUDA_VISIBLE_DEVICES" in os.environ:  # the fork server has it as it was when that started
            place["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        ranks = [Child(f"process {rank} of {size}", log, run_rank, config, rank, place) for rank in range(size)]
        endings = supervise(ranks, stop)
    errors = [ending for ending in endings if isinstance(ending, Exception)]
    errors.sort(key=lambda error: isinstance(error, distributed.PeerGone))  # which explains nothing
    if errors and not (stop.requested() and isinstance(errors[0], Killed | distributed.PeerGone)):
        if isinstance(errors[0], Killed):
            attempt.record_error(config.folder, errors[0])  # the others wrote down their own
        raise errors[0]
    stop.check()  # names the signal that this process got, if it got one
    for ending in filter(None, endings):
        raise ending


@contextlib.contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """Variables by which processes find torch's store, kept here as under torchrun so that nobody takes its port."""
    forkserver.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()  # it imports torch at the same time
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def supervise(children: Sequence[Child], stop: StopFlag) -> list[Any]:
    """Wait for all processes of a run; returns their endings, the first one first.

    Once one failed the others get a few seconds, since they may wait for it for ever. Once one was told to stop, all
    are: they agree on the update after which they save.
    """
    working, endings = list(children), list[Any]()
    deadline, told = float("inf"), False
    with _killing(working):  # after a second Ctrl-C
        while working:
            for each in ended(working, POLL_SECONDS):
                working.remove(each)
                endings.append(each.ending())
                if isinstance(endings[-1], Exception):
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if not told and (stop.requested() or any(isinstance(one, Interrupted) for one in endings)):
                told = True
                for each in working:
                    each.process.terminate()
            if time.monotonic() > deadline:
                for each in working:
                    each.process.kill()
    return endings


def run_rank(config: Config, rank: int, place: dict[str, str]) -> None:
    size = config.cluster.world_size
    os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    limit_threads(threads_per_run(size))
    from topr_exp.pipeline import run

    run(config)
