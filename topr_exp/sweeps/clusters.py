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


@dataclass(frozen=True)
class SlurmCluster(ClusterConfig):
    """A Slurm cluster."""

    processes_are: ClassVar[str] = "cluster.nodes times cluster.gpus_per_node"
    submits_jobs: ClassVar[bool] = True
    partition: str | None
    account: str | None
    timeout_min: Count  # minutes until a job is stopped with a checkpoint and requeued
    signal_delay_s: Count  # seconds before the time limit at which it gets its stop signal
    nodes: Count
    gpus_per_node: OptionalCount
    cpus_per_task: OptionalCount
    mem_gb: OptionalCount  # per node
    setup: list[str] | None  # shell commands before a run
    additional_parameters: NamedValues  # other sbatch options, by their long names

    def check(self) -> Iterator[Rule]:
        is_in_time = self.signal_delay_s < 60 * self.timeout_min
        yield "signal_delay_s", is_in_time, f"below {self.timeout_min} minutes"
        for key in ("partition", "account"):  # each becomes a line of a script
            value = getattr(self, key) or ""
            yield key, "\n" not in value, "a single line"
        options = [f"{name}{value}" for name, value in (self.additional_parameters or {}).items()]
        yield "additional_parameters", "\n" not in "".join(options), "options of a single line"

    @property
    def world_size(self) -> int:
        return self.nodes * (self.gpus_per_node or 1)


# By `cluster.name`.
CLUSTERS: dict[str, type[ClusterConfig]] = {"local": LocalCluster, "slurm": SlurmCluster}
