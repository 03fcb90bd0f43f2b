"""Run folders, read in any state: missing and damaged files become notes, never errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from topr_exp.runs.finished import MARK, changed_results
from topr_exp.runs.records import Record, is_evaluation, is_update, on_one_axis
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.json_files import MISSING, as_number, read_lines
from topr_exp.runtime.terminal import plural, printable, warn
from topr_exp.types import TOPRError

RUN_FILES = ("config.json", "metrics.jsonl", "summary.json", "state.json")  # a folder with one of these is a run's
SKIPPED_FOLDERS = ("model", "store", "wandb", "tensorboard", "checkpoints", "report", "replaced")  # hold no runs
SEARCH_DEPTH = 4  # levels below a given folder
# What reading a damaged file, and computing with what it holds, can raise.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, OSError)
POSITION_KEYS = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "problems", "subset", "round")


@dataclass
class Run:
    """The files of a run folder; settings, group and draw are those that `grouping.group_runs` gives it."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)  # as resolved, nested
    summary: dict[str, Any] = field(default_factory=dict)
    updates: list[Record] = field(default_factory=list)  # metrics, on one axis
    curve: list[Record] = field(default_factory=list)  # evaluations on the same problems, on one axis
    evaluations: list[Record] = field(default_factory=list)  # on the whole test set: the base, then each iteration
    completions: list[Record] = field(default_factory=list)
    status: str = "unfinished"
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # results that differ from what they were when it finished
    environment: dict[str, Any] = field(default_factory=dict)  # commit, command, versions, machine
    settings: dict[str, Any] = field(default_factory=dict)  # the config by dotted key
    group: str = ""
    draw: int = 0  # a number for its seeds; equal for runs whose seeds are all equal
    problem_results: dict[str, Record] = field(default_factory=dict)  # cache by part: "base", "final"

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """Numbers by step: "training" of the updates, "test" of the evaluations on the same problems."""
        return {"training": to_frame(self.updates), "test": to_frame(self.curve)}

    def figure(self, *keys: str) -> float | None:
        """A number of the summary by its path; None where it is missing."""
        return number_at(self.summary, *keys)


def number_at(values: Any, *keys: str) -> float | None:
    """The number at a path into nested dictionaries; None where it is missing."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return as_number(values)


def was_truncated(run: Run) -> bool:
    """Return True where the token limit cut off a completion that the run was trained or tested on."""
    shares = [
        run.figure("truncated_share"),
        run.figure("base", "truncated_share"),
        run.figure("final", "truncated_share"),
    ]
    return any(shares)


def to_frame(records: list[Record]) -> pd.DataFrame:
    """Tabulate the numbers of records by optimizer step, without standard errors; NaN where one has no value."""
    steps = pd.Index([record["optimizer_step"] for record in records], name="step")
    frame = pd.DataFrame(records, index=steps)
    columns = {}
    for name in sorted(frame):
        if name not in POSITION_KEYS and not name.endswith("_se"):
            columns[name] = frame[name].map(as_number)
    numbers = pd.DataFrame(columns, index=steps, dtype=float)
    is_last_of_step = ~steps.duplicated(keep="last")
    return numbers.loc[is_last_of_step].dropna(axis="columns", how="all")


# ---- finding


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """Read the runs in and below some folders, in the order of their paths, each with a name of its own.

    TOPRError for a folder that is missing and where there are no runs.
    """
    searched_folders = list(folders)
    runs_by_path: dict[Path, Run] = {}
    for folder in searched_folders:
        if not folder.is_dir():
            raise TOPRError(f"{folder}: no such folder")
        for path in run_folders(folder, SEARCH_DEPTH):
            if path.resolve() not in runs_by_path:
                runs_by_path[path.resolve()] = read_run(path)
    if not runs_by_path:
        names = ", ".join(map(str, searched_folders))
        raise TOPRError(f"no runs below {names} (folders with {' or '.join(RUN_FILES)})")
    return with_distinct_names(sorted(runs_by_path.values(), key=lambda run: str(run.path)))


def run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders, this one or those at most `depth` levels below; a run is not searched for others."""
    try:
        is_model = (folder / "tokenizer.json").exists()
        is_run = not is_model and any((folder / name).is_file() for name in RUN_FILES)
        entries = sorted(folder.iterdir()) if depth and not is_run else []
    except PermissionError:
        warn(f"cannot read {folder}: Permission denied; what is in it is left out")
        return
    if is_run:
        yield folder
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and entry.name not in SKIPPED_FOLDERS:
            yield from run_folders(entry, depth - 1)


def with_distinct_names(runs: list[Run]) -> list[Run]:
    """Lengthen equal names by folders of the path, up to seven parts, until no two are equal."""
    for part_count in range(2, 8):
        counts = Counter(run.name for run in runs)
        renamed_runs = []
        for run in runs:
            if counts[run.name] > 1:
                path_end = "/".join(run.path.resolve().parts[-part_count:])
                run = replace(run, name=printable(path_end, keep=""))
            renamed_runs.append(run)
        runs = renamed_runs
    return runs


# ---- reading


def read_run(path: Path) -> Run:
    """Read a run folder in any state; `notes` says what is missing, damaged or unfinished."""
    notes: list[str] = []
    is_done = (path / MARK).exists()
    config = read_settings(path, notes)
    environment = read_json(path / "environment.json", notes, is_expected=False)
    summary = read_json(path / "summary.json", notes, is_expected=is_done)
    for part in {"base", "final"} & summary.keys():
        if not isinstance(summary[part], dict):
            summary[part] = {}
    logged = read_logs(path, notes, summary, is_done=is_done)
    if not summary and logged.evaluations:
        summary["base"] = logged.evaluations[0]
        if len(logged.evaluations) > 1:
            summary["final"] = logged.evaluations[-1]
    expected_parts = ("base", "final") if is_done else ("base",)
    if summary and any(number_at(summary, part, "pass@1") is None for part in expected_parts):
        notes.append("no pass@1 in its results (another version's?)")
    if summary.get("note"):  # a warning of the run itself
        notes.append(str(summary["note"]))
    changed_files: list[str] = []
    if is_done:
        status = "done"
        changed_files = find_changes(path)
        notes += [f"changed since it finished: {fault}" for fault in changed_files]
    else:
        status = read_status(path, notes)
        notes.append(f"not finished ({len(logged.updates)} updates logged)")
    return Run(
        path,
        name=printable(path.resolve().name, keep=""),
        config=config,
        summary=summary,
        updates=logged.updates,
        curve=logged.curve,
        evaluations=logged.evaluations,
        completions=logged.completions,
        status=status,
        notes=notes,
        changed=changed_files,
        environment=environment,
    )


def read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """Read a run's resolved settings; {} and a note where there are none."""
    stored_config = read_json(path / "config.json", notes)
    resolved = stored_config.get("resolved")
    if isinstance(resolved, dict):
        return resolved
    if stored_config:
        notes.append("config.json has no resolved settings (another version's?)")
    return {}


def find_changes(path: Path) -> list[str]:
    """List the results of a finished run that changed, or can't be read."""
    try:
        return changed_results(path) or []
    except TOPRError as error:
        return [str(error)]


def read_status(path: Path, notes: list[str]) -> str:
    """Read an unfinished run's status; notes get its error."""
    error_file = path / "error.txt"
    if error_file.is_file():
        first_line = error_file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        notes.append(f"failed: {first_line[:300]}")
    status = read_json(path / "state.json", notes, is_expected=False).get("status")
    if isinstance(status, str):
        return status
    return "unfinished"


@dataclass(frozen=True)
class LoggedRecords:
    """Records of a run's logs, as `Run` describes them."""

    updates: list[Record]
    curve: list[Record]
    evaluations: list[Record]
    completions: list[Record]


def read_logs(path: Path, notes: list[str], summary: dict[str, Any], *, is_done: bool) -> LoggedRecords:
    """Read a run's logs; in those of a finished run a missing file or line gets a note."""
    metrics = read_records(path / "metrics.jsonl", notes, is_update, is_complete=is_done)
    tests = read_records(path / "eval.jsonl", notes, is_evaluation, is_complete=is_done)
    updates, tests = on_one_axis(metrics, tests)
    evaluations = [record for record in tests if not record.get("subset") and "step" not in record]
    curve = [record for record in tests if record.get("subset")] or evaluations
    last_of_each_step = {record["optimizer_step"]: record for record in curve}
    completions_file = path / "completions.jsonl"
    has_completions = is_done and completions_file.exists()  # no note where a run has none
    completions = read_records(completions_file, notes, is_completion, is_complete=has_completions)
    final = summary.get("final") or {}
    if is_done and evaluations:
        is_other_final = bool(final) and final.get("verdicts") != evaluations[-1].get("verdicts")
        if len(evaluations) < 2 or is_other_final:
            notes.append("eval.jsonl does not end with the run's last evaluation: its lines are not used")
            evaluations = []
    return LoggedRecords(updates, list(last_of_each_step.values()), evaluations, completions)


def read_json(path: Path, notes: list[str], *, is_expected: bool = True) -> dict[str, Any]:
    """Read a JSON file; {} and a note where it can't be read."""
    values, fault = read_run_file(path, unreadable_is_damage=True)
    if fault and (is_expected or fault != MISSING):
        notes.append(f"{path.name} {fault}")
    return values


def read_records(
    path: Path, notes: list[str], is_valid: Callable[[Record], bool], *, is_complete: bool
) -> list[Record]:
    """Read the valid lines of a JSON-lines file; a note counts the others.

    is_complete: the file must be there, and its last line be whole; else a note says so.
    """
    records, damaged_count = read_lines(path, growing=not is_complete)
    valid_records = [record for record in records if is_valid(record)]
    invalid_count = damaged_count + len(records) - len(valid_records)
    if invalid_count:
        notes.append(f"{path.name}: {plural(invalid_count, 'line')} left out, damaged or another version's")
    elif is_complete and not records:
        notes.append(f"{path.name} is missing or holds nothing")
    return valid_records


def is_completion(entry: Record) -> bool:
    has_texts = all(isinstance(entry.get(key), str) for key in ("set", "verdict", "question", "completion"))
    return has_texts and type(entry.get("iteration")) is int
