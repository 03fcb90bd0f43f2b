"""Turn records of a run into rows for trackers: numbers by name, and completions by verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.runs.records import Record
from topr_exp.runtime.jsonfiles import read_lines

AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")
COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")


def numbers(kind: str, record: Record) -> dict[str, float]:
    """Name a record's numbers train/loss, curve/pass_at_1, eval/pass_at_1; the axes stand bare.

    kind: train, curve (part of the test set) or eval (all of it).
    """
    samples = record["samples"] if kind == "train" else record["samples_seen"]
    row = {"optimizer_step": record["optimizer_step"], "samples": samples, "iteration": record["iteration"]}
    row |= {f"{kind}/{name}": value for name, value in record.items() if name not in AXES and is_number(value)}
    for curve in ("pass@k", "maj@k") if kind != "train" else ():
        for k, point in record.get(curve, {}).items():
            name = f"{kind}/{curve[:-1]}{k}"
            row |= {f"{name}_{end}": point[end] for end in ("low", "high") if is_number(point.get(end))}
            row[name] = point["value"]
    return {allowed(name): value for name, value in row.items()}


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the summary's values by path, as final/pass_at_1; lists (the iterations' records) are curves already."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{prefix}{name}/")
        elif not isinstance(item, list):
            yield allowed(f"{prefix}{name}"), item


def allowed(name: str) -> str:
    """Rewrite a name so that trackers can sort and filter by it: letters, digits, _ and /."""
    return "".join(ch if ch.isalnum() or ch in "_/" else "_" for ch in name.replace("@", "_at_"))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sample_rows(folder: Path, iteration: int) -> list[list[Any]]:
    """Read rows of COLUMNS from a run's completions.jsonl: those of the evaluation after an iteration."""
    entries = [entry for entry in read_lines(folder / "completions.jsonl")[0] if entry.get("set") == "test"]
    return [[entry.get(name) for name in COLUMNS] for entry in entries if entry.get("iteration") == iteration]
