"""Jobs of a scheduler, as it describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

JobPhase = Literal["queued", "running", "ending"]


@dataclass(frozen=True)
class JobState:
    """A job that waits or runs."""

    id: str  # as the scheduler prints it
    phase: JobPhase
    reason: str = ""  # why it waits


@dataclass(frozen=True)
class JobStates:
    """A scheduler's answer about the jobs of some runs."""

    by_job: Mapping[str, JobState]  # by `Run.job`, without the jobs that have ended
    problem: str = ""  # why the scheduler gives no answer: any of the runs may wait or run


NOT_ASKED = JobStates({}, "the scheduler was not asked")
