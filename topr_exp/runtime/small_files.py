"""The small JSON files of a run and of a sweep, read in one place that knows the type of each entry.

A file with an entry of another type is damaged, as one without JSON is: its reader gets {} and the fault in words, and
does what it does where the file is missing. An entry that is not listed here is nobody's, or a newer version's.
"""

import types
import typing
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from topr_exp.runtime.files import read_object
from topr_exp.schema import Count, Range, at_least

Amount = Annotated[int, at_least(0)]
Seconds = Annotated[float, at_least(0)]
LONGEST_VALUE = 60  # characters of a wrong entry that a message shows


class Attempt(TypedDict, total=False):
    """Which attempt at a run is at work, and where."""

    number: Amount
    host: str
    pid: int
    slurm: str | None
    began: str


class State(TypedDict, total=False):
    """state.json: how far a run is."""

    status: str
    stage: str
    progress: dict[str, Any] | None
    attempt: Attempt
    seconds: dict[str, Seconds]
    counts: dict[str, Amount]


class Settings(TypedDict, total=False):
    """config.json of a run."""

    identity: dict[str, Any]
    resolved: dict[str, Any]


class Environment(TypedDict, total=False):
    """environment.json: where a run is computed."""

    command: list[str]
    time: str
    git_commit: str | None
    versions: dict[str, str]
    threads: Count
    processes: Count


class TrainingSetSummary(TypedDict, total=False):
    """training_set.json of an iteration."""

    n_train: Amount
    baseline: float | None
    effective_positive: float | None
    positive_share: float | None
    mean_reward: float | None
    note: str | None
    cut_off: Amount
    tokens_sampled: Amount
    asynchrony: dict[str, Any]
    sampler_mismatch: dict[str, Any] | None


class Sources(TypedDict):
    """sources.json of an iteration: where its completions lie."""

    store: str
    rollouts: str
    verdicts: str
    imported_rollouts: NotRequired[str]
    imported_verdicts: NotRequired[str]


class Inputs(TypedDict, total=False):
    """inputs.json: hashes of what a run was begun with, by kind and setting."""

    files: dict[str, str]
    models: dict[str, str]
    packages: dict[str, str]
    hub: dict[str, str]


class Summary(TypedDict, total=False):
    """summary.json of a finished run."""

    base: dict[str, Any]
    final: dict[str, Any]
    model_saved: bool
    n_train: Amount
    baseline: float | None
    effective_positive: float | None
    positive_share: float | None
    note: str | None
    cut_off: Amount
    problems: dict[str, int]
    too_long: dict[str, int]
    seconds: dict[str, float]
    tokens: dict[str, Any]


class Launch(TypedDict):
    """launch.json of a sweep's run."""

    number: Count
    overrides: list[str]
    settings: dict[str, Any]
    cwd: str
    arguments: list[str]
    launched: float
    job: NotRequired[str | None]


class LaunchedRun(TypedDict):
    """A run that a sweep launched."""

    number: Count
    overrides: list[str]


class SweepRecord(TypedDict):
    """sweep.json: the runs of a sweep by the names of their folders, written before any of them is."""

    runs: dict[str, LaunchedRun]


class Verifications(TypedDict, total=False):
    """What each problem adds to a verifier's figures."""

    problems: list[str]
    iterations: dict[str, dict[str, Any]]


SMALL_FILES: dict[str, Any] = {
    "state.json": State,
    "config.json": Settings,
    "environment.json": Environment,
    "training_set.json": TrainingSetSummary,
    "sources.json": Sources,
    "inputs.json": Inputs,
    "summary.json": Summary,
    "launch.json": Launch,
    "sweep.json": SweepRecord,
    "verification.json": Verifications,
}


def read_small_file(path: Path, *, unreadable_is_damage: bool = False) -> tuple[dict[str, Any], str]:
    """The object in one of SMALL_FILES and ""; or {} and its fault, in words that go on after the file's name."""
    stored, fault = read_object(path, unreadable_is_damage=unreadable_is_damage)
    if stored:
        fault = wrong_entry(stored, SMALL_FILES[path.name], "")
    return ({}, fault) if fault else (stored, "")


def wrong_entry(values: dict[str, Any], entries: Any, prefix: str) -> str:
    """The first entry that is missing or of another type than the TypedDict `entries` says, in words; "" for none."""
    hints = typing.get_type_hints(entries, include_extras=True)
    for key, hint in hints.items():
        if key not in values:
            if key in entries.__required_keys__:
                return f"lacks {prefix}{key}"
        elif not matches(values[key], hint):
            shown = " ".join(str(values[key]).split())
            shown = shown if len(shown) <= LONGEST_VALUE else shown[:LONGEST_VALUE] + "..."
            return f"has {prefix}{key}={shown}, which is not {describe(hint)}"
        elif typing.is_typeddict(hint) and (fault := wrong_entry(values[key], hint, f"{prefix}{key}.")):
            return fault
    return ""


def matches(value: Any, hint: Any) -> bool:
    """True if a value of JSON has this type; entries of a TypedDict are left to `wrong_entry`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is NotRequired:
        return matches(value, arguments[0])
    if origin is Annotated:
        ranges = [item for item in arguments[1:] if isinstance(item, Range)]
        return matches(value, arguments[0]) and all(item.holds(value) for item in ranges)
    if origin in (types.UnionType, typing.Union):
        return any(matches(value, option) for option in arguments)
    if origin is list:
        return isinstance(value, list) and all(matches(item, arguments[0]) for item in value)
    if origin is dict or typing.is_typeddict(hint):
        item_hint = arguments[1] if arguments else Any
        return isinstance(value, dict) and all(matches_entry(item, item_hint) for item in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str) and "\0" not in value  # no path, no environment variable may have one
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def matches_entry(value: Any, hint: Any) -> bool:
    """As `matches`, with the entries of a TypedDict that stands in an object."""
    if not matches(value, hint):
        return False
    return not typing.is_typeddict(hint) or not wrong_entry(value, hint, "")


def describe(hint: Any) -> str:
    """A type in a user's words."""
    words = {str: "a text", int: "a whole number", float: "a number", type(None): "null"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in words:
        return words[hint]
    if origin is NotRequired:
        return describe(arguments[0])
    if origin is Annotated:
        return f"{describe(arguments[0])}, {arguments[1].allowed}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(describe, arguments))
    if origin is list:
        return f"a list, each {describe(arguments[0])}"
    if origin is dict and arguments[1] is not Any:
        return f"an object, each value {describe(arguments[1])}"
    return "an object"
