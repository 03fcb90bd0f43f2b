"""Processes of this machine: runs of a sweep, several at once, and a run as several processes, one a GPU.

They are forked from a server that has imported torch and transformers, has no threads and has never touched a GPU. One
that crashes takes nothing with it; one whose launcher is killed saves and ends.

Not torch's elastic launcher: 30 seconds after one process of a run ended it kills the others, which may still save.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.bus_error import one_line_for_bus_errors
from topr_exp.runtime.files import disk_errors, open_own_file
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.runtime.terminal import open_console, printable
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
        try:
            self.process.start()
        except (EOFError, OSError) as error:
            raise Killed(f"{name} can't be started: the server that forks it ended (out of memory?)") from error
        theirs.close()

    def ending(self) -> BaseException | None:
        """Describe the end of a process: None when its work is done, else the exception, Killed if it sent none."""
        with self._messages, contextlib.suppress(EOFError, OSError):  # OSError: killed while it sent
            ending: BaseException | None = self._messages.recv()
            return ending
        code, name = self.process.exitcode or 0, self.process.name
        if code < 0:
            return Killed(f"{name} was killed by {signal.Signals(-code).name} (out of memory?)")
        return Killed(f"{name} ended with exit code {code}")


def _run(log: Path | None, work: Callable[..., None], arguments: tuple[Any, ...], pipe: connection.Connection) -> None:
    """Do the work and send how it ended: None, or an exception of ours."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    open_console(lasting=True)
    ending: BaseException | None = None

    def send_bus_error(error: TOPRError) -> bool:
        pipe.send(error)
        return log is None  # then who started this process prints it

    try:
        if log is not None:
            redirect(log)
        with one_line_for_bus_errors(send_bus_error):
            work(*arguments)
    except Interrupted as stopped:
        ending = stopped
    except Exception as error:
        ending = distributed.root_cause(error)
        if not isinstance(ending, TOPRError):
            traceback.print_exc()
            ending = TOPRError(attempt.message(ending))
    if ending is not None and log is not None:
        print(printable(str(ending)), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(ending)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(
    starts: Iterable[Callable[[int], Child]],
    at_once: int,
    stop: StopFlag,
    report: Callable[[Child, BaseException | None], None],
    *,
    one_run: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Start processes, so many at once, each with the number of its slot, and report the ending of each.

    After a stop signal none starts any more, and all are told. one_run: also when one of them was told, since they
    agree on the update after which they save; once one failed, the others get a few seconds: they may wait for ever.
    """
    waiting, slots, working = list(starts)[::-1], list(range(at_once))[::-1], dict[Child, int]()
    deadline, stopped, told = float("inf"), False, False
    try:
        while waiting or working:
            while waiting and slots:
                slot = slots.pop()
                working[waiting.pop()(slot)] = slot
            connection.wait([child.process.sentinel for child in working], POLL_SECONDS)
            tick()
            for child in [child for child in working if child.process.exitcode is not None]:
                slots.append(working.pop(child))
                report(child, ending := child.ending())
                if one_run and isinstance(ending, Exception):
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                stopped = stopped or (one_run and isinstance(ending, Interrupted))
            if not told and (stopped or stop.requested()):
                waiting, told = [], True
                for child in working:
                    child.process.terminate()
            if time.monotonic() > deadline:
                break
    finally:
        for child in working:  # after a second Ctrl-C, too
            child.process.kill()
    for child in working:
        child.process.join()
        report(child, child.ending())


def redirect(log: Path) -> None:
    """Append what this process and its children print to a file; TOPRError where that can't be written."""
    with disk_errors(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"write {log}"), open(log, "ab", opener=open_own_file) as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    print(f"==== {attempt.timestamp()}, process {os.getpid()}", flush=True)


def share_threads(processes: int) -> None:
    """Take a part of the CPU threads by default, child processes too; `cluster.threads` goes before."""
    if processes > 1:
        import torch

        threads = max(1, torch.get_num_threads() // processes)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


# ---- runs of a sweep


def run_locally(
    runs: Sequence[Run],
    jobs: int,
    stop: StopFlag,
    report: Callable[[Run, BaseException | None], None],
    tick: Callable[[], None],
) -> None:
    """Run these, `jobs` at once; `report(run, error)` after each, `tick` again and again meanwhile.

    A stop signal ends them, and no other starts.
    """
    of = dict[Child, Run]()

    def start(run: Run, slot: int) -> Child:
        log = run.folder.resolve() / LOG
        child = Child("the run", log, run_one, run, log, min(jobs, len(runs)), slot)
        of[child] = run
        return child

    starts = [partial(start, run) for run in runs]
    supervise(starts, jobs, stop, lambda child, error: report(of[child], error), tick=tick)


def run_one(run: Run, log: Path, jobs: int, slot: int) -> None:
    choose_gpus(slot, run.settings["cluster"]["processes"], jobs)
    share_threads(jobs)
    run_processes(run.enter(), log)


def choose_gpus(slot: int, count: int, jobs: int) -> None:
    """Spread `jobs` runs over the GPUs, `count` for each, before the first use of one; note how many share one."""
    names = distributed.visible_gpus()
    places = max(1, len(names) // count)
    os.environ[distributed.RUNS_PER_GPU] = str(math.ceil(jobs / places))
    if len(names) > count:
        first = slot % (len(names) // count) * count
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + count])


# ---- a run as several processes


def run_processes(config: Config, log: Path | None = None) -> None:
    """A run in this process, or in as many as `cluster.processes` says; raises what the run raises."""
    size, launched = config.cluster.world_size, distributed.launched_processes()
    if launched > 1 and size != launched:
        raise ConfigError(f"{config.cluster.processes_are} must be {launched}, as many as were started; got {size}")
    if size == launched:
        from topr_exp.pipeline import run

        run(config)
        return
    stop, endings = StopFlag(), list[BaseException]()
    with stop.listening(), rendezvous() as place:
        for name in ("CUDA_VISIBLE_DEVICES", distributed.RUNS_PER_GPU):
            if name in os.environ:  # the fork server has it as it was when that started
                place[name] = os.environ[name]

        def start(rank: int, slot: int) -> Child:
            return Child(f"process {rank} of {size}", log, run_rank, config, rank, place)

        def note(child: Child, ending: BaseException | None) -> None:
            endings.extend([ending] if ending else [])

        supervise([partial(start, rank) for rank in range(size)], size, stop, note, one_run=True)
    endings.sort(key=lambda ending: isinstance(ending, distributed.PeerGone))  # which explains nothing
    for ending in endings:
        if isinstance(ending, Exception) and not (
            stop.requested() and isinstance(ending, Killed | distributed.PeerGone)
        ):
            if isinstance(ending, Killed):
                attempt.record_error(config.folder, ending)  # the others wrote down their own
            raise ending
    stop.check()  # names the signal that this process got, if it got one
    for ending in endings:
        raise ending


@contextlib.contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """Variables by which processes find torch's store, kept here as under torchrun so that nobody takes its port."""
    forkserver.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()  # it imports torch at the same time
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def run_rank(config: Config, rank: int, place: dict[str, str]) -> None:
    size = config.cluster.world_size
    os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    share_threads(size)
    from topr_exp.pipeline import run

    run(config)
