"""The processes of a run, one a GPU: which of them this one is, and what all of them have to agree on.

Every process runs the same program; process 0 alone writes the run's folder and talks to the user. The variables that
torchrun sets say who a process is. Without them a run is one process, and nothing here imports torch.
"""

import contextlib
import datetime
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from topr_exp.types import ConfigError, Tensor, TOPRError

T = TypeVar("T")
P = ParamSpec("P")

# Longer than any stage lets a process wait for the others: who ends early is noticed by those who started it.
TIMEOUT = datetime.timedelta(hours=2)

_rank, _size = 0, 1


def launched_processes() -> int:
    """The number of processes of this run, by the environment."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Be one of the processes of a run while the block runs; ConfigError where one would have no GPU to itself."""
    global _rank, _size
    if launched_processes() == 1:
        yield
        return
    import torch

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    _rank, _size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        yield
        torch.distributed.destroy_process_group()  # after an error it could wait for processes that are gone
    finally:
        _rank, _size = 0, 1


def take_gpu(local_rank: int) -> None:
    """Leave one GPU for this process to see, so that what it starts computes there too."""
    import torch

    names = visible_gpus()
    if len(names) == 1 and os.environ.get("SLURM_LOCALID") == str(local_rank):
        return  # Slurm chose one for each task
    if local_rank >= len(names):
        raise ConfigError(f"process {local_rank + 1} of this machine has no GPU to itself: torch sees {len(names)}")
    os.environ["CUDA_VISIBLE_DEVICES"] = names[local_rank]
    if torch.cuda.device_count() != 1:  # without NVML torch has asked the driver, which looks at the variable once
        raise TOPRError(
            f"process {local_rank + 1} of this machine can't leave the other GPUs alone: NVML is missing; "
            "start each process with CUDA_VISIBLE_DEVICES set to its own"
        )


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


RUNS_PER_GPU = "TOPR_RUNS_PER_GPU"  # set by the launcher of a sweep


def runs_per_gpu() -> int:
    """How many runs of a sweep share this process's GPU at a time."""
    return int(os.environ.get(RUNS_PER_GPU, "1"))


def rank() -> int:
    return _rank


def world_size() -> int:
    return _size


def is_main_process() -> bool:
    """True on rank 0, which writes and prints."""
    return _rank == 0


def main_process_only(function: Callable[P, None]) -> Callable[P, None]:
    """A function that the other processes of a run may call too: in them it does nothing."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> None:
        if is_main_process():
            function(*arguments, **named)

    return call


def all_gather(value: T) -> list[T]:
    """Gather `value` of every process, by rank; any picklable value, tensors on the CPU only."""
    if _size == 1:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * _size
    distributed.all_gather_object(values, value)
    return values


def all_reduce_sum_(values: Tensor) -> None:
    """Replace a tensor by its sum over all processes."""
    if _size > 1:
        from torch import distributed

        distributed.all_reduce(values)


def broadcast(value: T) -> T:
    """Broadcast `value` of rank 0."""
    return all_gather(value)[0]


def barrier() -> None:
    """Go on once every process got here: what process 0 wrote before is there for all."""
    all_gather(None)


def root_cause(error: BaseException) -> BaseException:
    """The error, or in its place a plain line where it only says that another process is gone."""
    text = str(error)
    gone = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process has aborted")
    if (size := launched_processes()) > 1 and isinstance(error, RuntimeError) and any(sign in text for sign in gone):
        return PeerGone(f"process {os.environ['RANK']} of {size} stopped because another one of the run ended")
    return error


class PeerGone(TOPRError):
    """Another process of the run ended; its error, not this one, says why."""
