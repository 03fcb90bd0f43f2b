"""Run folders, read in any state: missing and damaged files become notes, never errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from topr_exp.runs.attempt import ERROR, last_error
from topr_exp.runs.finished import DONE_FILE, changed_results
from topr_exp.runs.records import Record, is_evaluation, is_update, on_one_axis
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.json_files import MISSING, as_number, name_lines, read_lines
from topr_exp.runtime.terminal import printable, warn
from topr_exp.types import TOPRError

RUN_MARKERS = ("config.json", "metrics.jsonl", "summary.json", "state.json")  # a folder with one of these is a run's
DONE = "done"  # the status of a finished run, that has its mark
FAILED = "failed"  # the status of a run that an error ended
SKIPPED_FOLDERS = ("model", "store", "wandb", "tensorboard", "checkpoints", "report", "replaced")  # hold no runs
SEARCH_DEPTH = 4  # levels below a given folder
TRUNCATED_SHARES = {  # title in a table -> path in the summary
    "final cut off": ("final", "truncated_share"),
    "base cut off": ("base", "truncated_share"),
    "training cut off": ("truncated_share",),
}
POSITION_KEYS = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "subset", "round")


@dataclass
class Run:
    """The files of a run folder; settings, group and seed index are those that `grouping.group_runs` gives it."""

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
    changed: list[str] = field(default_factory=list)  # faults of results that changed since the run finished
    environment: dict[str, Any] = field(default_factory=dict)  # commit, command, versions, machine
    settings: dict[str, Any] = field(default_factory=dict)  # the config by dotted key
    group: str = ""
    seed_index: int = 0  # equal for runs whose seeds are all equal
    problem_results: dict[str, Record] = field(default_factory=dict)  # cache by part: "base", "final"
    update_count: int = 0  # also where the updates were dropped: they are read again where the curves are asked for

    @property
    def is_done(self) -> bool:
        return self.status == DONE

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """Numbers by step: "training" of the updates, "test" of the evaluations on the same problems."""
        updates = self.updates
        if len(updates) < self.update_count:
            metrics, _ = read_lines(self.path / "metrics.jsonl", is_update, growing=not self.is_done)
            updates, _ = on_one_axis(metrics, [])
        return {"training": to_frame(updates), "test": to_frame(self.curve)}

    def drop_updates(self) -> None:
        """Keep the number of the updates alone: the records of 20,000 take over 100 MB."""
        self.updates = []

    def summary_number(self, *path: str) -> float | None:
        """A number of the summary by its path; None where it is missing."""
        value: Any = self.summary
        for key in path:
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return as_number(value)

    # ---- reading

    def read(self) -> None:
        """Fill the fields from the files of the folder."""
        if (self.path / DONE_FILE).exists():
            self.status = DONE
        self._read_settings()
        self.environment = self._read_json("environment.json", is_expected=False)
        self.summary = self._read_json("summary.json", is_expected=self.is_done)
        self._read_logs()
        if not self.summary:
            self._summarize_evaluations()
        expected_parts = ("base", "final") if self.is_done else ("base",)
        has_scores = all(self.summary_number(part, "pass@1") is not None for part in expected_parts)
        if self.summary and not has_scores:
            self.notes.append("no pass@1 in its results (another version's?)")
        if self.summary.get("note"):  # a warning of the run itself
            self.notes.append(self.summary["note"])
        if self.is_done:
            self.changed = find_changes(self.path)
            self.notes += [f"changed since it finished: {fault}" for fault in self.changed]
        else:
            self._read_state()
            self.notes.append(f"not finished ({self.update_count} updates logged)")

    def _read_settings(self) -> None:
        stored_config = self._read_json("config.json")
        if "resolved" in stored_config:
            self.config = stored_config["resolved"]
        elif stored_config:
            self.notes.append("config.json has no resolved settings (another version's?)")

    def _summarize_evaluations(self) -> None:
        if not self.evaluations:
            return
        self.summary["base"] = self.evaluations[0]
        if self.is_done and len(self.evaluations) > 1:
            self.summary["final"] = self.evaluations[-1]

    def _read_state(self) -> None:
        """Read the status of an unfinished run, and its error."""
        if (self.path / ERROR).is_file():
            self.notes.append(f"failed: {last_error(self.path)[:300]}")
        status = self._read_json("state.json", is_expected=False).get("status", DONE)
        if status != DONE:  # which it says before the mark is written
            self.status = status

    def _read_logs(self) -> None:
        metrics = self._read_records("metrics.jsonl", is_update)
        tests = self._read_records("eval.jsonl", is_evaluation)
        self.completions = self._read_records("completions.jsonl", is_completion, is_optional=True)
        self.updates, tests = on_one_axis(metrics, tests)
        self.update_count = len(self.updates)
        subset_evaluations = []
        for record in tests:
            if record.get("subset"):
                subset_evaluations.append(record)
            elif "step" not in record:
                self.evaluations.append(record)
        curve = subset_evaluations or self.evaluations
        last_of_each_step = {record["optimizer_step"]: record for record in curve}
        self.curve = list(last_of_each_step.values())
        if self.is_done and self.evaluations and not self._has_final_evaluation():
            self.notes.append("eval.jsonl does not end with the run's last evaluation: its lines are not used")
            self.evaluations = []

    def _has_final_evaluation(self) -> bool:
        """Return True where the evaluations end with the one of the summary."""
        if len(self.evaluations) < 2:
            return False
        final = self.summary.get("final")
        return not final or final.get("verdicts") == self.evaluations[-1].get("verdicts")

    def _read_json(self, name: str, *, is_expected: bool = True) -> Record:
        """Read a JSON file; {} and a note where it can't be read."""
        values, fault = read_run_file(self.path / name, unreadable_is_damage=True)
        if fault and (is_expected or fault != MISSING):
            self.notes.append(f"{name} {fault}")
        return values

    def _read_records(
        self, name: str, is_valid: Callable[[Record], bool], *, is_optional: bool = False
    ) -> list[Record]:
        """Read the valid lines of a JSON-lines file; a note and a warning name the others.

        A note also says where a finished run lacks the file, unless it is optional, or the end of its last line.
        """
        path = self.path / name
        must_be_complete = self.is_done and (path.exists() or not is_optional)
        records, damaged_lines = read_lines(path, is_valid, growing=not must_be_complete)
        if damaged_lines:
            fault = f"{name_lines(damaged_lines)} left out, damaged or another version's"
            self.notes.append(f"{name}: {fault}")
            warn(f"{path}: {fault}")
        elif must_be_complete and not records:
            self.notes.append(f"{name} is missing or holds nothing")
        return records


def read_run(folder: str | Path) -> Run:
    """Read a run folder in any state; `notes` says what is missing, damaged or unfinished."""
    path = Path(folder)
    run = Run(path, name=printable(path.resolve().name, keep=""))
    run.read()
    return run


def find_changes(path: Path) -> list[str]:
    """List the results of a finished run that changed, or can't be read."""
    try:
        return changed_results(path) or []
    except TOPRError as error:
        return [str(error)]


def is_completion(entry: Record) -> bool:
    has_texts = all(isinstance(entry.get(key), str) for key in ("set", "verdict", "question", "completion"))
    return has_texts and type(entry.get("iteration")) is int


def was_truncated(run: Run) -> bool:
    """Return True where the token limit cut off a completion that the run was trained or tested on."""
    return any(run.summary_number(*path) for path in TRUNCATED_SHARES.values())


def to_frame(records: list[Record]) -> pd.DataFrame:
    """Tabulate the numbers of records by optimizer step, without standard errors; NaN where one has no value."""
    numbers_by_step: dict[int, dict[str, float | None]] = {}  # the last record of a step counts
    for record in records:
        numbers = {}
        for name, value in record.items():
            if name not in POSITION_KEYS and not name.endswith("_se"):
                numbers[name] = as_number(value)
        numbers_by_step[record["optimizer_step"]] = numbers
    steps = pd.Index(list(numbers_by_step), name="step")
    rows = list(numbers_by_step.values())
    frame = pd.DataFrame(rows, index=steps, dtype=float)
    return frame.sort_index(axis="columns").dropna(axis="columns", how="all")


# ---- finding


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """Read the runs in and below some folders, in the order of their paths, each with a name of its own.

    Their updates are dropped. TOPRError for a folder that is missing and where there are no runs.
    """
    folders = list(folders)
    paths: dict[Path, Path] = {}  # by what they resolve to
    for folder in folders:
        if not folder.is_dir():
            raise TOPRError(f"{folder}: no such folder")
        for path in run_folders(folder, SEARCH_DEPTH):
            paths.setdefault(path.resolve(), path)
    if not paths:
        names = ", ".join(map(str, folders))
        raise TOPRError(f"no runs below {names} (folders with {' or '.join(RUN_MARKERS)})")
    runs = []
    for path in sorted(paths.values(), key=str):
        run = read_run(path)
        run.drop_updates()
        runs.append(run)
    return with_distinct_names(runs)


def run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders, this one or those at most `depth` levels below; a run is not searched for others."""
    entries: list[Path] = []
    try:
        is_model = (folder / "tokenizer.json").exists()
        is_run = not is_model and any((folder / name).is_file() for name in RUN_MARKERS)
        if depth > 0 and not is_run:
            entries = sorted(folder.iterdir())
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
        for index, run in enumerate(runs):
            if counts[run.name] > 1:
                path_parts = run.path.resolve().parts[-part_count:]
                longer_name = printable("/".join(path_parts), keep="")
                runs[index] = replace(run, name=longer_name)
    return runs
