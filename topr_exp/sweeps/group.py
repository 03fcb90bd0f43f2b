"""One run as several processes of this machine, one a GPU: what torchrun would do, with a run's errors and signals.

The process that starts them computes nothing. It passes signals on, ends the others when one of them failed, and
raises what the run raises. Under torchrun and Slurm, which start the processes themselves, it is not needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from topr_exp import attempt, interrupts, world
from topr_exp.config import Config
from topr_exp.sweeps.config import check_parts
from topr_exp.types import ConfigError, TOPRError

WARM = "topr_exp.sweeps.warm"
POLL_SECONDS = 0.2  # between two looks at signals
GRACE_SECONDS = 5.0  # that the others have to end by themselves once one of them failed


def start(config: Config, log: Path | None = None) -> None:
    """A run: in this process, or in as many as `cluster.processes` says unless something else started them.

    log: the file that all of them print into; None leaves what they print where it goes. Raises what the run raises,
    Interrupted too; an error that is no TOPRError is printed by its process and raised as a line.
    """
    if world.announced() > 1:
        check(config)
    if config.cluster.world_size == 1 or world.announced() > 1:
        from topr_exp.pipeline import run

        run(config)
        return
    with interrupts.listening(), interrupts.deferred(), meeting() as place:
        endings = supervise(start_all(config, place, log))
    failed = [ending for ending in endings if isinstance(ending, Exception)]
    # One that says that another is gone explains nothing; a kill explains all that came after it.
    failed.sort(key=lambda one: (isinstance(one, world.Gone), not isinstance(one, Killed)))
    if failed and not (interrupts.asked() and isinstance(failed[0], Killed | world.Gone)):
        if isinstance(failed[0], Killed):
            attempt.record_error(config.folder, failed[0])  # the others wrote down their own
        raise failed[0]
    interrupts.check()  # names the signal that this process got, if it got one
    for ending in endings:
        if isinstance(ending, interrupts.Interrupted):
            raise ending


def check(config: Config) -> None:
    """Refuse a number of processes, started by something else, that does not go with the settings."""
    number = world.announced()
    if config.cluster.world_size not in (1, number):
        raise ConfigError(f"the settings ask for {config.cluster.world_size} processes, torchrun started {number}")
    try:
        check_parts("the number of processes", number, config.optim.batch_size)
    except ValueError as error:
        raise ConfigError(str(error)) from None


class Killed(TOPRError):
    """A process of a run ended without a word."""


@contextlib.contextmanager
def meeting() -> Iterator[dict[str, str]]:
    """Where processes of this machine find each other while the block runs, as the variables that torch reads.

    As under torchrun, torch's store is in the process that starts the others, so that nobody can take its port.
    """
    forkserver.set_forkserver_preload([WARM])
    forkserver.ensure_running()  # it imports torch at the same time
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def start_all(
    config: Config, place: dict[str, str], log: Path | None
) -> dict[ForkServerProcess, connection.Connection]:
    """The processes of a run, and where each will say how it ended."""
    context = multiprocessing.get_context("forkserver")
    size = config.cluster.world_size
    common = {**place, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # theirs is the fork server's environment, as it was when that started
        common["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    working = {}
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        place = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(target=work, args=(config, place, log, theirs))
        process.start()
        theirs.close()
        working[process] = ours
    return working


def supervise(working: dict[ForkServerProcess, connection.Connection]) -> list[Any]:
    """Wait for all processes; how each ended, by rank: None when it is done, else an exception.

    Once one failed the others get a few seconds, since they may wait for it for ever. Once one was told to stop, all
    are: they agree on the update after which they save.
    """
    processes, size = list(working), len(working)
    endings: dict[ForkServerProcess, Any] = {}
    deadline, told = float("inf"), False
    try:
        while working:
            connection.wait([process.sentinel for process in working], timeout=POLL_SECONDS)
            for process in [process for process in working if process.exitcode is not None]:
                name = f"process {processes.index(process)} of {size}"
                endings[process] = ending(process, working.pop(process), name)
                if isinstance(endings[process], Exception):
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            stop = interrupts.asked() or any(isinstance(one, interrupts.Interrupted) for one in endings.values())
            if stop and not told:
                told = True
                for process in working:
                    process.terminate()
            if time.monotonic() > deadline:
                for process in working:
                    process.kill()
    finally:
        for process in working:  # a second Ctrl-C
            process.kill()
    return [endings[process] for process in processes]


def ending(process: ForkServerProcess, messages: connection.Connection, name: str) -> Any:
    """How a process ended."""
    with messages:
        try:
            return messages.recv()
        except EOFError:
            pass
    code = process.exitcode or 0
    how = f"killed by {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"ended with exit code {code}"
    return Killed(f"{name} was {how}" if code < 0 else f"{name} {how}")


# ---- in a process of the run


def work(config: Config, place: dict[str, str], log: Path | None, messages: connection.Connection) -> None:
    """A process of a run; sends how it ended."""
    from topr_exp.sweeps.local import end_with_launcher, redirect, share_of_cores

    os.environ.update(place)
    if log is not None:
        redirect(log)
    end_with_launcher()
    threads = config.cluster.threads or share_of_cores(config.cluster.world_size)
    config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, threads=threads))
    try:
        from topr_exp.pipeline import run

        run(config)
        messages.send(None)
    except interrupts.Interrupted as stopped:
        messages.send(stopped)
    except Exception as raised:
        error = world.cause(raised)
        if not isinstance(error, TOPRError):
            traceback.print_exc()
            sys.stderr.flush()
        kind = next((kind for kind in (world.Gone, ConfigError) if isinstance(error, kind)), TOPRError)
        messages.send(kind(attempt.message(error)))
    finally:
        sys.stdout.flush()
