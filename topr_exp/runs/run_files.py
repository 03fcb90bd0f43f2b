"""Small JSON files of a run's folder: the type of each entry, and one reader that checks it.

A file with an entry of another type counts as damaged, as one without JSON does.
"""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from topr_exp.runtime.json_files import read_typed_object

LAUNCH = "launch.json"  # written by the launcher of a sweep


class Attempt(TypedDict, total=False):
    """The attempt at a run that began last, and its process."""

    number: int
    host: str
    pid: int
    job: str | None
    began: str


class State(TypedDict, total=False):
    """state.json: how far a run is."""

    status: str
    stage: str
    progress: dict[str, Any] | None
    attempt: Attempt
    seconds: dict[str, float]
    counts: dict[str, int]


class Settings(TypedDict, total=False):
    """config.json: the settings of a run."""

    identity: dict[str, Any]
    resolved: dict[str, Any]


class Environment(TypedDict, total=False):
    """environment.json: the provenance of a run."""

    command: list[str]
    time: str
    git_commit: str | None
    versions: dict[str, str]
    threads: int
    processes: int


class InputHashes(TypedDict, total=False):
    """inputs.json: hashes of a run's inputs when it began, by setting."""

    files: dict[str, str]
    models: dict[str, str]
    packages: dict[str, str]
    hub: dict[str, str]


class Sources(TypedDict):
    """sources.json of an iteration: the store and its tables that hold the completions."""

    store: str
    rollouts: str
    verdicts: str
    imported_rollouts: NotRequired[str]
    imported_verdicts: NotRequired[str]


class TrainingSetSummary(TypedDict, total=False):
    """training_set.json of an iteration."""

    n_train: int
    baseline: float
    effective_positive: float | None
    positive_share: float
    mean_reward: float | None
    truncated_share: float | None
    grader_timeouts: int
    note: str | None
    tokens_sampled: int
    asynchrony: dict[str, Any]
    sampler_mismatch: dict[str, Any] | None


class Summary(TypedDict, total=False):
    """summary.json of a finished run."""

    base: dict[str, Any]
    final: dict[str, Any]
    model_saved: bool
    n_train: int
    baseline: float | None
    effective_positive: float | None
    positive_share: float | None
    note: str | None
    problems: dict[str, int]
    too_long: dict[str, int]
    seconds: dict[str, float]
    tokens: dict[str, Any]


class Launch(TypedDict):
    """launch.json: the launch of a run by a sweep."""

    number: int
    overrides: list[str]
    settings: dict[str, Any]
    cwd: str
    arguments: list[str]
    launched: float
    job: NotRequired[str | None]


RUN_FILES: dict[str, type] = {
    "state.json": State,
    "config.json": Settings,
    "environment.json": Environment,
    "inputs.json": InputHashes,
    "sources.json": Sources,
    "training_set.json": TrainingSetSummary,
    "summary.json": Summary,
    LAUNCH: Launch,
}


def read_run_file(path: Path, *, unreadable_is_damage: bool = False) -> tuple[dict[str, Any], str]:
    """Return the object in one of RUN_FILES and ""; or {} and its fault, in words that continue the file's name.

    unreadable_is_damage: as in `read_object`.
    """
    return read_typed_object(path, RUN_FILES[path.name], unreadable_is_damage=unreadable_is_damage)
