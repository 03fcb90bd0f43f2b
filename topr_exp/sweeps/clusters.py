"""Settings of the `cluster` group: where the runs of a sweep start. A new kind is a class and its name here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from topr_exp.config.groups import ClusterConfig
from topr_exp.schema import Count, NamedValues, OptionalCount, Rule


@dataclass(frozen=True)
class LocalCluster(ClusterConfig):
    """This machine."""

    processes: Count  # per run, each on its own GPU if there are any

    @property
    def world_size(self) -> int:
        return self.processes


SIGNAL_DELAY_S = 600  # enough for an update and a checkpoint of an 8B model, which is reread for its checksum


@dataclass(frozen=True)
class SlurmCluster(ClusterConfig):
    """A Slurm cluster."""

    processes_are: ClassVar[str] = "cluster.nodes times cluster.gpus_per_node"
    submits_jobs: ClassVar[bool] = True
    timeout_min: Count  # minutes until a job is stopped with a checkpoint and requeued
    nodes: Count
    gpus_per_node: OptionalCount
    setup: list[str] | None  # shell commands before a run
    additional_parameters: NamedValues  # options of sbatch, by their long names

    def check(self) -> Iterator[Rule]:
        # Each becomes a line of a script, where a quote or backslash would begin another option.
        options = [f"{name}{value}" for name, value in (self.additional_parameters or {}).items()]
        yield "additional_parameters", "\n" not in "".join(options), "options of a single line"

    @property
    def world_size(self) -> int:
        return self.nodes * (self.gpus_per_node or 1)

    @property
    def expects_gpu(self) -> bool:
        return self.device == "auto" and self.gpus_per_node is not None

    @property
    def signal_delay_s(self) -> int:
        """Seconds before the time limit at which a job gets its stop signal."""
        return min(SIGNAL_DELAY_S, 60 * self.timeout_min // 4)


# By `cluster.name`.
CLUSTERS: dict[str, type[ClusterConfig]] = {"local": LocalCluster, "slurm": SlurmCluster}
