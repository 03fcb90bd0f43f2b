"""One run as several processes of this machine, one a GPU: what torchrun would do, with a run's errors and signals.

The process that starts them computes nothing. It passes signals on, ends the others when one of them failed, and
raises what the run raises. Under torchrun and Slurm, which start the processes themselves, it is not needed.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from topr_exp.config.cluster import check_parts
from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import child
from topr_exp.sweeps.child import Child, Killed
from topr_exp.types import ConfigError, TOPRError

POLL_SECONDS = 0.2  # until it is asked again whether a signal came
GRACE_SECONDS = 5.0  # that the others have to end by themselves once one of them failed


def run_processes(config: Config, log: Path | None = None) -> None:
    """A run: in this process, or in as many as `cluster.processes` says unless something else started them.

    log: the file that all of them print into; None leaves what they print where it goes. Raises what the run raises,
    Interrupted too; an error that is no TOPRError is printed by its process and raised as a line.
    """
    if distributed.launched_processes() > 1:
        check_launched(config)
    if config.cluster.world_size == 1 or distributed.launched_processes() > 1:
        from topr_exp.pipeline import run

        run(config)
        return
    stop = StopFlag()
    with stop.listening(), rendezvous() as place:
        endings = supervise(start_all(config, place, log), stop)
    raise_first(config, endings, stop)


def raise_first(config: Config, endings: list[Any], stop: StopFlag) -> None:
    """Raise what ended a run, if anything did: the error that came before the others, or the signal."""
    failed = [ending for ending in endings if isinstance(ending, Exception)]
    # One that says that another is gone explains nothing; a kill explains all that came after it.
    failed.sort(key=lambda one: (isinstance(one, distributed.PeerGone), not isinstance(one, Killed)))
    if failed and not (stop.requested() and isinstance(failed[0], Killed | distributed.PeerGone)):
        if isinstance(failed[0], Killed):
            attempt.record_error(config.folder, failed[0])  # the others wrote down their own
        raise failed[0]
    stop.check()  # names the signal that this process got, if it got one
    for ending in endings:
        if isinstance(ending, Interrupted):
            raise ending


def check_launched(config: Config) -> None:
    """Refuse a number of processes, started by something else, that does not go with the settings."""
    number = distributed.launched_processes()
    if config.cluster.world_size not in (1, number):
        raise ConfigError(f"the settings ask for {config.cluster.world_size} processes, torchrun started {number}")
    try:
        check_parts("the number of processes", number, config.optim.batch_size)
    except ValueError as error:
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """Set the variables by which torch finds the processes of this machine, while the block runs.

    As under torchrun, torch's store is in the process that starts the others, so that nobody can take its port.
    """
    child.warm_up()  # it imports torch at the same time
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def start_all(config: Config, place: dict[str, str], log: Path | None) -> list[Child]:
    """The processes of a run, by rank."""
    size = config.cluster.world_size
    common = {**place, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # theirs is the fork server's environment, as it was when that started
        common["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return [
        Child(run_rank, config, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log) for rank in range(size)
    ]


def supervise(children: Sequence[Child], stop: StopFlag) -> list[Any]:
    """Wait for all processes; how each ended, by rank: None when it is done, else an exception.

    Once one failed the others get a few seconds, since they may wait for it for ever. Once one was told to stop, all
    are: they agree on the update after which they save.
    """
    working, endings = list(children), dict[Child, Any]()
    deadline, told = float("inf"), False
    try:
        while working:
            for each in child.wait(working, POLL_SECONDS):
                working.remove(each)
                endings[each] = ending_of_rank(each, children.index(each), len(children))
                if isinstance(endings[each], Exception):
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            stopping = stop.requested() or any(isinstance(one, Interrupted) for one in endings.values())
            if stopping and not told:
                told = True
                for each in working:
                    each.process.terminate()
            if time.monotonic() > deadline:
                for each in working:
                    each.process.kill()
    finally:
        for each in working:  # a second Ctrl-C
            each.process.kill()
    return [endings[each] for each in children]


def ending_of_rank(process: Child, rank: int, size: int) -> Any:
    """Describe the end of a process of the run; a kill names its rank."""
    ending = process.ending()
    if isinstance(ending, Killed):
        was = "was " if (process.process.exitcode or 0) < 0 else ""
        return Killed(f"process {rank} of {size} {was}{ending}")
    return ending


# ---- in a process of the run


def run_rank(config: Config, place: dict[str, str], log: Path | None) -> None:
    """One process of a run, which prints the traceback of an error that is no TOPRError."""
    os.environ.update(place)
    if log is not None:
        child.redirect(log)
    child.take_share(child.threads_per_run(config.cluster.world_size))
    try:
        from topr_exp.pipeline import run

        run(config)
    except Exception as error:
        if not isinstance(distributed.root_cause(error), TOPRError):
            traceback.print_exc()
        raise
