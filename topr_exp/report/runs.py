"""Reads run folders, whatever state they are in: what is missing or damaged becomes a note, never an error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from topr_exp.report.curves import Curves, number, read_curves, thin
from topr_exp.runs.records import Lines, Record, on_one_axis
from topr_exp.types import TOPRError

MARKS = ("config.json", "metrics.jsonl", "summary.json", "state.json")  # a folder with one of these is a run's
# Folders of a run or of an output folder that hold none.
INSIDE = ("model", "store", "wandb", "tensorboard", "checkpoints", "report")
DEPTH = 4  # levels below a given folder that are searched


@dataclass
class Run:
    """One run folder."""

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
    environment: dict[str, Any] = field(default_factory=dict)  # where it was computed: commit, command, versions

    @cached_property
    def training_curves(self) -> Curves:
        """The metrics of the updates, for drawing."""
        return thin(read_curves(self.updates, "samples"))

    @cached_property
    def test_curves(self) -> Curves:
        """The evaluations on the same problems."""
        return read_curves(self.curve, "samples_seen")

    def figure(self, *keys: str) -> float | None:
        """A number of the summary by its path; None where it is missing."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return number(value)


def read_runs(folders: Iterable[Path]) -> list[Run]:
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
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = f"{run.path.parent.name}/{run.name}"
    return runs


def search(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders, this one or below; nothing is looked for inside a run."""
    if any((folder / mark).is_file() for mark in MARKS) and not (folder / "tokenizer.json").exists():
        yield folder
    elif depth:
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.is_symlink() and below.name not in INSIDE:
                yield from search(below, depth - 1)


def read_run(path: Path) -> Run:
    """What a run folder holds."""
    run = Run(path, path.resolve().name)
    stored = load(run, "config.json")
    resolved = stored.get("resolved")
    if isinstance(resolved, dict):
        run.config = resolved
    elif stored:
        run.notes.append("config.json has no resolved settings (another version's?)")
    run.environment = load(run, "environment.json", expected=False)
    run.summary = load(run, "summary.json", expected=(path / "DONE").exists())
    metrics, evaluations = (lines(run, name) for name in ("metrics.jsonl", "eval.jsonl"))
    run.updates, tests = on_one_axis(metrics, evaluations)
    run.evaluations = [record for record in tests if not record.get("subset") and "step" not in record]
    run.curve = one_for_each_step([record for record in tests if record.get("subset")] or run.evaluations)
    run.completions = [entry for entry in lines(run, "completions.jsonl") if is_completion(entry)]
    if metrics and not run.updates:
        run.notes.append("metrics.jsonl has no lines with iteration and step (another version's?)")
    if not run.summary and run.evaluations:
        ends = {"base": run.evaluations[0]} | ({"final": run.evaluations[-1]} if len(run.evaluations) > 1 else {})
        run.summary = dict(ends)  # so far
    if run.summary and run.figure("base", "pass@1") is None:
        run.notes.append("no pass@1 of the base in its results (another version's?)")
    if note := run.summary.get("note"):  # what the run itself warned of
        run.notes.append(str(note))
    run.status = status(run)
    return run


def status(run: Run) -> str:
    """done, or what state.json says of the last attempt; why a failed one failed becomes a note."""
    if (run.path / "DONE").exists():
        return "done"
    error = run.path / "error.txt"
    if error.exists():
        words = error.read_text(encoding="utf-8", errors="replace").splitlines()
        run.notes.append(f"failed: {words[0][:300] if words else 'no reason given'}")
    said = load(run, "state.json", expected=False).get("status")
    run.notes.append(f"not finished ({len(run.updates)} updates logged)")
    return said if isinstance(said, str) else "unfinished"


def load(run: Run, name: str, *, expected: bool = True) -> dict[str, Any]:
    """A JSON file of the run; {} and a note where it can't be read."""
    try:
        value = json.loads((run.path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if expected:
            run.notes.append(f"{name} is missing")
        return {}
    except (OSError, ValueError) as error:
        run.notes.append(f"{name} can't be read ({' '.join(str(error).split())[:100]})")
        return {}
    if not isinstance(value, dict):
        run.notes.append(f"{name} holds no object")
        return {}
    return value


def lines(run: Run, name: str) -> list[Record]:
    """The whole lines of a JSON-lines file; damaged ones are counted in a note."""
    read = Lines(run.path / name)
    read.refresh()
    if read.damaged:
        run.notes.append(f"{name}: {read.damaged} damaged line{'s' if read.damaged > 1 else ''} left out")
    return read.records


def is_completion(entry: Record) -> bool:
    texts = all(isinstance(entry.get(name), str) for name in ("set", "verdict", "question", "completion"))
    return texts and isinstance(entry.get("logp", {}), dict) and isinstance(entry.get("iteration"), int)


def one_for_each_step(records: list[Record]) -> list[Record]:
    """The last record of each step."""
    return list({record["optimizer_step"]: record for record in records}.values())
