"""Rank, world size and collectives of a run's processes; one process per GPU.

Every process runs the same program; process 0 alone writes the run's folder and talks to the user. The variables that
torchrun sets say which rank a process has. Without them a run is one process, and nothing here imports torch.
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

# Longer than any stage lets a process wait for the others; whoever started the processes notices one that ends early.
TIMEOUT = datetime.timedelta(hours=2)
RUNS_PER_GPU = "TOPR_RUNS_PER_GPU"  # set by the launcher of a sweep
# Set by a scheduler that starts every process of a run itself, as a job.
JOB_ID = "TOPR_JOB_ID"
CPUS_PER_PROCESS = "TOPR_CPUS_PER_PROCESS"  # number of CPUs to which it may have bound this process
# How gloo, torch's store and NCCL say that another process is gone.
PEER_ERRORS = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection was likely closed",
    "remote process has aborted", "remote process exited", "remote process exiting prematurely",
)  # fmt: skip

_rank = 0
_world_size = 1


class PeerGoneError(TOPRError):
    """Another process of the run ended; its error, not this one, says why."""


# ---- the process group


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes of a run during the block; ConfigError for a process without a GPU to itself."""
    global _rank, _world_size
    if launched_processes() == 1:
        yield
        return
    import torch

    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    _rank = torch.distributed.get_rank()
    _world_size = torch.distributed.get_world_size()
    try:
        yield
        torch.distributed.destroy_process_group()  # after an error it could wait for processes that are gone
    finally:
        _rank = 0
        _world_size = 1


def launched_processes() -> int:
    """Return the number of processes of this run, as the environment has it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return _rank


def world_size() -> int:
    return _world_size


def is_main_process() -> bool:
    """True on rank 0, which writes and prints."""
    return _rank == 0


def main_process_only(function: Callable[P, None]) -> Callable[P, None]:
    """Make a function do nothing on other ranks than 0, so that all may call it."""

    @functools.wraps(function)
    def call_on_main_process(*args: P.args, **kwargs: P.kwargs) -> None:
        if is_main_process():
            function(*args, **kwargs)

    return call_on_main_process


def recognize_gone_peer(error: BaseException) -> BaseException:
    """Return PeerGoneError for an error that only says that another process is gone; any other as it is."""
    process_count = launched_processes()
    if process_count == 1 or not isinstance(error, RuntimeError):
        return error
    message = str(error)
    if not any(text in message for text in PEER_ERRORS):
        return error
    rank = os.environ["RANK"]
    peer_error = PeerGoneError(f"process {rank} of {process_count} stopped because another one of the run ended")
    return with_cause(peer_error, error)  # in error.txt: NCCL says the same where the network failed


def with_cause(error: BaseException, cause: BaseException) -> BaseException:
    """Return an error as if it was raised from another one."""
    try:
        raise error from cause
    except BaseException as raised_error:
        return raised_error


# ---- GPUs


def take_gpu(local_rank: int) -> None:
    """Leave one GPU visible to this process, so that its children compute there too."""
    import torch

    gpu_names = visible_gpus()
    if len(gpu_names) == 1 and JOB_ID in os.environ:
        return  # the scheduler chose one for each process
    if local_rank >= len(gpu_names):
        raise ConfigError(f"process {local_rank + 1} of this machine has no GPU to itself: torch sees {len(gpu_names)}")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu_names[local_rank]
    if torch.cuda.device_count() != 1:  # without NVML torch has asked the driver, which looks at the variable once
        raise TOPRError(
            f"process {local_rank + 1} of this machine can't leave the other GPUs alone: NVML is missing; "
            "start each process with CUDA_VISIBLE_DEVICES set to its own"
        )


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices:
        return visible_devices.split(",")
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def runs_per_gpu() -> int:
    """Return how many runs of a sweep share this process's GPU at a time."""
    return int(os.environ.get(RUNS_PER_GPU, "1"))


# ---- collectives


def all_gather(value: T) -> list[T]:
    """Gather `value` of every process, by rank; any picklable value, tensors on the CPU only."""
    if _world_size == 1:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * _world_size
    distributed.all_gather_object(values, value)
    return values


def all_reduce_sum_(values: Tensor) -> None:
    """Replace a tensor by its sum over all processes."""
    if _world_size > 1:
        from torch import distributed

        distributed.all_reduce(values)


def broadcast(value: T) -> T:
    """Return `value` of rank 0."""
    return all_gather(value)[0]


def barrier() -> None:
    """Wait until every process got here; then all see what process 0 wrote before."""
    all_gather(None)
