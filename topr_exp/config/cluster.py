"""Settings of where runs compute (the `cluster` group); nothing here may change a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

from topr_exp.config.schema import Count, OptionalCount, Range, Section, at_least

NAMED = Range("null or {NAME: VALUE}", lambda given: isinstance(given, Mapping))


class Device(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Parallel(Enum):
    """Layout of a model in training over the processes of a run."""

    ddp = "ddp"  # whole on each of them
    fsdp = "fsdp"  # sharded, with its gradient and the optimizer's state
    hsdp = "hsdp"  # the same within a machine, whole on each of several


@dataclass(frozen=True)
class ClusterConfig(Section, ABC):
    """Settings that every cluster has."""

    processes_are: ClassVar[str] = "cluster.processes"  # the settings that `world_size` is made of
    name: str
    device: Device
    threads: OptionalCount
    parallel: Parallel | None  # None: as suits the model's size

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes of a run."""


@dataclass(frozen=True)
class LocalCluster(ClusterConfig):
    """This machine."""

    processes: Count  # of a run, each on a GPU of its own where there are any
    jobs: Count  # runs of a sweep at once

    @property
    def world_size(self) -> int:
        return self.processes


@dataclass(frozen=True)
class SlurmCluster(ClusterConfig):
    """A Slurm cluster."""

    processes_are: ClassVar[str] = "cluster.nodes times cluster.gpus_per_node"
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    timeout_min: Count  # minutes a job may take before it is stopped with a checkpoint and queued again
    max_num_timeout: Annotated[int, at_least(0)]  # how often it is queued again at most
    signal_delay_s: Count  # seconds before the time limit at which it is told to stop
    nodes: Count
    gpus_per_node: OptionalCount
    cpus_per_task: OptionalCount
    mem_gb: OptionalCount  # a node
    array_parallelism: Count  # runs of a sweep at once
    setup: list[str] | None  # shell commands before a run
    additional_parameters: Annotated[Any, NAMED]  # of sbatch, by their long names

    def check(self) -> None:
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise ValueError(f"signal_delay_s must be below {self.timeout_min} minutes; got {self.signal_delay_s}")

    @property
    def world_size(self) -> int:
        return self.nodes * (self.gpus_per_node or 1)


def check_parts(what: str, processes: int, batch_size: int) -> None:
    """Raise ValueError unless a global batch can be divided evenly among processes."""
    if batch_size % processes:
        parts = ", ".join(str(count) for count in range(1, batch_size + 1) if batch_size % count == 0)
        whole = f"optim.batch_size={batch_size}, of which every process takes an equal part ({parts})"
        raise ValueError(f"{what} must divide {whole}; got {processes}")


SCHEMAS: dict[str, type[ClusterConfig]] = {"local": LocalCluster, "slurm": SlurmCluster}
