"""Settings of where runs compute (the `cluster` group); nothing here may change a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from topr_exp.types import ConfigError


class Device(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Parallel(Enum):
    """How a model in training lies over the processes of a run."""

    ddp = "ddp"  # whole on each of them
    fsdp = "fsdp"  # sharded, with its gradient and the optimizer's state


@dataclass(frozen=True)
class ClusterConfig(ABC):
    """What every place has."""

    name: str
    device: Device
    threads: int | None
    parallel: Parallel | None  # None: as suits the model's size

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be null or 1 or more; got {self.threads}")

    @property
    @abstractmethod
    def world_size(self) -> int:
        """How many processes a run has."""

    def check_batch(self, batch_size: int) -> None:
        """Refuse processes that can't have equal parts of a global batch."""
        check_parts("cluster.processes", self.world_size, batch_size)


@dataclass(frozen=True)
class LocalCluster(ClusterConfig):
    """This machine."""

    processes: int  # of a run, each on a GPU of its own where there are any
    jobs: int  # runs of a sweep at once

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("processes", "jobs"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be 1 or more; got {getattr(self, field)}")

    @property
    def world_size(self) -> int:
        return self.processes


@dataclass(frozen=True)
class SlurmCluster(ClusterConfig):
    """A Slurm cluster; the names are those of the hydra-submitit-launcher."""

    wait: bool  # False: submit and exit
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    timeout_min: int  # minutes a job may take before it is stopped with a checkpoint and queued again
    max_num_timeout: int  # how often it is queued again after that
    signal_delay_s: int  # seconds before the time limit at which it is told to stop
    nodes: int
    gpus_per_node: int | None
    cpus_per_task: int | None
    mem_gb: int | None  # a node
    array_parallelism: int  # runs of a sweep at once
    setup: list[str] | None  # shell commands before a run
    additional_parameters: Any  # of sbatch, by their long names

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"timeout_min": 1, "max_num_timeout": 0, "signal_delay_s": 1, "nodes": 1, "array_parallelism": 1}
        for field, minimum in least.items():
            if getattr(self, field) < minimum:
                raise ValueError(f"{field} must be {minimum} or more; got {getattr(self, field)}")
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise ValueError(
                f"signal_delay_s must be below timeout_min={self.timeout_min} minutes, or a run is told to "
                f"stop as it starts; got {self.signal_delay_s}"
            )
        for field in ("gpus_per_node", "cpus_per_task", "mem_gb"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ValueError(f"{field} must be null or 1 or more; got {getattr(self, field)}")
        if not isinstance(self.additional_parameters, Mapping | None):
            raise ValueError(f"additional_parameters must be null or {{NAME: VALUE}}; got {self.additional_parameters}")

    @property
    def world_size(self) -> int:
        return self.nodes * (self.gpus_per_node or 1)

    def check_batch(self, batch_size: int) -> None:
        check_parts("cluster.nodes times cluster.gpus_per_node", self.world_size, batch_size)


def check_parts(what: str, processes: int, batch_size: int) -> None:
    """Raise ValueError unless a global batch can be divided evenly among processes."""
    if batch_size % processes:
        allowed = ", ".join(str(number) for number in range(1, batch_size + 1) if batch_size % number == 0)
        raise ValueError(
            f"{what} must divide optim.batch_size={batch_size}, of which every process takes an equal part "
            f"({allowed}); got {processes}"
        )


SCHEMAS: dict[str, type[ClusterConfig]] = {"local": LocalCluster, "slurm": SlurmCluster}


def cluster_schema(values: Any) -> type[ClusterConfig]:
    """The settings that a cluster of this name has; ConfigError for a name that is none."""
    name = values.get("name") if isinstance(values, Mapping) else values
    if name not in SCHEMAS:
        raise ConfigError(f"cluster.name={name}: expected one of {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def cluster_with(key: str) -> str | None:
    """The cluster whose settings have this dotted key."""
    return next((n for n, schema in SCHEMAS.items() if key in {f"cluster.{f.name}" for f in fields(schema)}), None)
