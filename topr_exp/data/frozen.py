"""Problems that a program outside draws, kept in the store: a run has the same ones however often it is started."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import DataConfig, NoAnswer
from topr_exp.store.table import Store
from topr_exp.types import Problem

if TYPE_CHECKING:
    import pyarrow as pa


def problems_of(source: DataConfig, split: str, store: Store | None) -> Iterable[Problem | NoAnswer]:
    """A split's problems; drawn ones from the store under all that decides them, where they are put if need be."""
    key = source.drawn_by(split)
    if key is None or store is None:
        return source.problems(split)
    table = store.table("problems", {**key, "split": split}, shards=1)
    table.fill(lambda shard: as_table(source.problems(split)))
    return [as_problem(json.loads(text)) for text in table.read(["problem"])["problem"].to_pylist()]


def as_table(problems: Iterable[Problem | NoAnswer]) -> pa.Table:
    import pyarrow as pa

    rows = [dataclasses.asdict(one) if isinstance(one, Problem) else one._asdict() for one in problems]
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    return pa.table(
        {"id": pa.array([row.get("id") for row in rows], pa.string()), "problem": pa.array(texts, pa.string())}
    )


def as_problem(row: dict[str, Any]) -> Problem | NoAnswer:
    return NoAnswer(**row) if "where" in row else Problem(**row)
