"""A scheduler whose queue is a dictionary, for tests of what a sweep does with one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conftest import values_of
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.sweep import Run
from topr_exp.types import TOPRError


@dataclass
class FakeScheduler:
    """Queues jobs 17_0, 17_1, ... that never start."""

    place = "on a cluster"
    jobs: dict[str, JobState] = field(default_factory=dict)  # in the queue, by `Run.job`
    submissions: list[list[int]] = field(default_factory=list)  # numbers of the runs
    clusters: list[Any] = field(default_factory=list)  # settings of each submission
    requeues: int = 0
    problem: str = ""  # why it does not answer
    submit_error: BaseException | None = None  # raised by `submit` once the jobs are in the queue
    requeue_problems: list[str] = field(default_factory=list)  # of the next requeues
    check_available: Callable[[], None] = lambda: None

    def preview(self, run_count, cluster):
        return f"{run_count} jobs"

    def submit(self, runs, cluster):
        for index, run in enumerate(runs):
            run.job = f"array{len(self.submissions)}_{index}"
            run.save()
            self.jobs[run.job] = JobState(f"17_{len(self.jobs)}", "queued", "Priority")
        self.submissions.append(values_of(runs, "number"))
        self.clusters.append(cluster)
        if self.submit_error is not None:
            raise self.submit_error

    def states(self, runs):
        return JobStates({} if self.problem else self.jobs, self.problem)

    def cancel(self, statuses, launcher_claim):
        if self.problem:
            raise TOPRError(self.problem)
        for status in statuses:
            self.jobs.pop(status.run.job or "", None)
        return []

    def logs(self, run):
        return run.folder.parent / "job.log"

    def requeue(self):
        self.requeues += 1
        return self.requeue_problems.pop(0) if self.requeue_problems else ""


def bare_run(folder, number=1, **fields):
    """A run without settings."""
    return Run(folder, number, [], {}, "", [], 0.0, **fields)
