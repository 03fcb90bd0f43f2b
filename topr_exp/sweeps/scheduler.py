"""Interface of schedulers, which start the runs of a sweep and know the jobs that wait or run."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from topr_exp.config.groups import ClusterConfig
from topr_exp.sweeps.jobs import JobStates
from topr_exp.sweeps.run_status import RunStatus
from topr_exp.sweeps.sweep import Run


class Scheduler(Protocol):
    """Starts runs that are described in their folders. Stateless: another process, or machine, may ask later.

    What a scheduler has no use for stands here.
    """

    place: ClassVar[str]  # where its runs are, as in "6 runs on Slurm"

    def check_available(self) -> None:
        """Raise ConfigError where runs can't be submitted from this machine."""
        return

    def preview(self, run_count: int, cluster: ClusterConfig) -> str:
        """Describe how so many runs would be submitted; "" where there is nothing to add."""
        return ""

    def submit(self, runs: Sequence[Run], cluster: ClusterConfig) -> None:
        """Start runs (if `cluster.submits_jobs`, only queue them); notes each one's job, if any, in its folder.

        Raises ConfigError where the scheduler refuses, Interrupted after a stop signal.
        """

    def states(self, runs: Sequence[Run]) -> JobStates:
        """Look up the jobs of runs; never raises."""
        return JobStates({})

    def cancel(self, statuses: Sequence[RunStatus], launcher_claim: Path | None) -> list[str]:
        """Stop those of the active runs that are this scheduler's; they save a checkpoint.

        launcher_claim: claim of the process that starts further runs, to be stopped first; None leaves it alone.
        Returns one line for each process that was left alone. Raises TOPRError where none was stopped.
        """

    def logs(self, run: Run) -> Path | None:
        """Return the file with what a run's job printed before the run had its own log; None if there is none."""
        return None

    def requeue(self) -> str:
        """Queue this process's own job once more; returns why that failed, "" if it did not."""
        return "processes are not queued"
