"""Turn records of a run into rows for trackers: numbers by name, and completions by verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.runs.records import Record
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")
PER_VERDICT = 8
LONGEST = 4000  # characters of a completion
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


def sample_rows(record: Record) -> Iterator[tuple[Any, ...]]:
    """Yield rows of COLUMNS, the first completions of each verdict; none where the store's tables are gone.

    record: an evaluation of eval.jsonl, whose `rollouts` and `verdicts` are folders of the store.
    """
    import pyarrow as pa

    try:
        rollouts, verdicts = (Path(record[name]) for name in ("rollouts", "verdicts"))
        completions = Store(rollouts.parent.parent).open(rollouts).read(["problem", "sample", "text"])
        graded = Store(verdicts.parent.parent).open(verdicts)
        marks = graded.read(["verdict", "answer"])
    except (KeyError, TOPRError):
        return
    golds = graded.key["golds"]
    names = marks["verdict"].to_pylist()
    for verdict in VERDICTS:
        chosen = pa.array([row for row, name in enumerate(names) if name == verdict][:PER_VERDICT], pa.int64())
        for one, mark in zip(completions.take(chosen).to_pylist(), marks.take(chosen).to_pylist(), strict=True):
            problem = one["problem"]
            text = one["text"] if len(one["text"]) <= LONGEST else one["text"][:LONGEST] + " …"
            yield (record["iteration"], verdict, problem, one["sample"], text, mark["answer"], golds[problem])
