"""A few completions of an evaluation for each verdict, from the store: what a table in W&B shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

PER_VERDICT = 8
LONGEST = 4000  # characters of a completion
COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")


def sample_rows(record: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of COLUMNS: the first completions of each verdict; none where the store's tables are gone.

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
