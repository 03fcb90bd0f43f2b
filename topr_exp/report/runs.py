"""Reads run folders, whatever state they are in: what is missing or damaged becomes a note, never an error."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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

MARKS = ("config.json", "metrics.jsonl", "summary.json", "state.json")  # a folder with one of these is a run's
# Folders of a run or of an output folder that hold none.
INSIDE = ("model", "store", "wandb", "tensorboard", "checkpoints", "report", "replaced")
DEPTH = 4  # levels below a given folder that are searched
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, OSError)  # of a reader
NOT_CURVES = ("iteration", "step", "optimizer_step", "samples", "samples_seen", "problems", "subset", "round")


@dataclass
class Run:
    """One run folder; `groups.group_runs` sets settings, group and draw."""

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
    changed: list[str] = field(default_factory=list)  # results that are not what they were when it finished
    environment: dict[str, Any] = field(default_factory=dict)  # where it was computed: commit, command, versions
    settings: dict[str, Any] = field(default_factory=dict)  # the config by dotted key
    group: str = ""
    draw: int = 0  # a number for its seeds, the same for runs in which all of them are
    tested: dict[str, Record] = field(default_factory=dict)  # base and final, problem by problem, once they are read

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """Numbers by step: "training" of the updates, "test" of the evaluations on the same problems."""
        return {"training": to_frame(self.updates), "test": to_frame(self.curve)}

    def figure(self, *keys: str) -> float | None:
        """A number of the summary by its path; None where it is missing."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return as_number(value)


def was_cut_off(run: Run) -> bool:
    """Tell whether the token limit cut off a completion that a run was trained or tested on."""
    return any(run.figure(*part, "truncated_share") for part in ((), ("base",), ("final",)))


def to_frame(records: list[Record]) -> pd.DataFrame:
    """Tabulate the numbers of records by optimizer step, without standard errors; NaN where one has no value."""
    steps = pd.Index([record["optimizer_step"] for record in records], name="step")
    frame = pd.DataFrame(records, index=steps).drop(columns=[*NOT_CURVES], errors="ignore")
    names = sorted(name for name in frame if not name.endswith("_se"))
    found = pd.DataFrame({name: frame[name].map(as_number) for name in names}, index=steps, dtype=float)
    return found.loc[~steps.duplicated(keep="last")].dropna(axis="columns", how="all")


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in and below some folders, by name. TOPRError for a folder that is missing and where there are none."""
    found: dict[Path, Run] = {}
    given = list(folders)
    for folder in given:
        if not folder.is_dir():
            raise TOPRError(f"{folder}: no such folder")
        for path in search(folder, DEPTH):
            found.setdefault(path.resolve(), read_run(path))
    if not found:
        raise TOPRError(f"no runs below {', '.join(map(str, given))} (folders with {' or '.join(MARKS)})")
    runs = sorted(found.values(), key=lambda run: str(run.path))
    for depth in range(2, 8):  # parts of the path, until no two are called alike
        names = Counter(run.name for run in runs)
        for run in runs:
            if names[run.name] > 1:
                run.name = printable("/".join(run.path.resolve().parts[-depth:]), keep="")
    return runs


def search(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders, this one or below; nothing is looked for inside a run."""
    try:
        is_run = any((folder / mark).is_file() for mark in MARKS) and not (folder / "tokenizer.json").exists()
        inside = sorted(folder.iterdir()) if depth and not is_run else []
    except PermissionError:
        warn(f"cannot read {folder}: Permission denied; what is in it is left out")
        return
    if is_run:
        yield folder
    for below in inside:
        if below.is_dir() and not below.is_symlink() and below.name not in INSIDE:
            yield from search(below, depth - 1)


def read_run(path: Path) -> Run:
    """Read a run folder."""
    run = Run(path, printable(path.resolve().name, keep=""))
    done = (path / MARK).exists()
    stored = load(run, "config.json")
    if isinstance(resolved := stored.get("resolved"), dict):
        run.config = resolved
    elif stored:
        run.notes.append("config.json has no resolved settings (another version's?)")
    run.environment = load(run, "environment.json", expected=False)
    run.summary = load(run, "summary.json", expected=done)
    for part in {"base", "final"} & run.summary.keys():
        run.summary[part] = run.summary[part] if isinstance(run.summary[part], dict) else {}
    read_records(run, done)
    if not run.summary and run.evaluations:
        run.summary = dict(zip(("base", "final"), (run.evaluations[0], *run.evaluations[1:][-1:]), strict=False))
    if run.summary and any(run.figure(part, "pass@1") is None for part in (["base", "final"] if done else ["base"])):
        run.notes.append("no pass@1 in its results (another version's?)")
    if note := run.summary.get("note"):  # what the run itself warned of
        run.notes.append(str(note))
    if done:
        run.status = "done"
        note_changes(run)
        return run
    if (error := path / "error.txt").is_file():
        run.notes.append(f"failed: {error.read_text(encoding='utf-8', errors='replace').partition(chr(10))[0][:300]}")
    if isinstance(said := load(run, "state.json", expected=False).get("status"), str):
        run.status = said
    run.notes.append(f"not finished ({len(run.updates)} updates logged)")
    return run


def note_changes(run: Run) -> None:
    """Note the results of a finished run that changed, or can't be read."""
    try:
        run.changed = changed_results(run.path) or []
    except TOPRError as error:
        run.changed = [str(error)]
    run.notes += [f"changed since it finished: {fault}" for fault in run.changed]


def read_records(run: Run, done: bool) -> None:
    """Read what the run logged; a finished one lacks no file and no line."""
    metrics, evaluations = lines(run, "metrics.jsonl", is_update, done), lines(run, "eval.jsonl", is_evaluation, done)
    run.updates, tests = on_one_axis(metrics, evaluations)
    run.evaluations = [record for record in tests if not record.get("subset") and "step" not in record]
    curve = [record for record in tests if record.get("subset")] or run.evaluations
    run.curve = list({record["optimizer_step"]: record for record in curve}.values())  # the last of each step
    run.completions = lines(run, "completions.jsonl", is_completion, done and (run.path / "completions.jsonl").exists())
    final = run.summary.get("final") or {}
    known = [record.get("verdicts") for record in run.evaluations]
    if done and known and (len(known) < 2 or (final and final.get("verdicts") != known[-1])):
        run.notes.append("eval.jsonl does not end with the run's last evaluation: its lines are not used")
        run.evaluations = []


def load(run: Run, name: str, *, expected: bool = True) -> dict[str, Any]:
    """A JSON file of the run; {} and a note where it can't be read."""
    found, fault = read_run_file(run.path / name, unreadable_is_damage=True)
    if fault and (expected or fault != MISSING):
        run.notes.append(f"{name} {fault}")
    return found


def lines(run: Run, name: str, is_valid: Callable[[Record], bool], done: bool) -> list[Record]:
    """The valid lines of a JSON-lines file; a note counts the others, and says what a finished run lacks."""
    records, damaged = read_lines(run.path / name, growing=not done)
    valid = [record for record in records if is_valid(record)]
    if count := damaged + len(records) - len(valid):
        run.notes.append(f"{name}: {plural(count, 'line')} left out, damaged or another version's")
    elif done and not records:
        run.notes.append(f"{name} is missing or holds nothing")
    return valid


def is_completion(entry: Record) -> bool:
    texts = all(isinstance(entry.get(name), str) for name in ("set", "verdict", "question", "completion"))
    return texts and type(entry.get("iteration")) is int
