"""A table's name follows from its key's content alone; list columns are numpy views of its files."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.store import Ragged, Store
from topr_exp.store.table import canonical, key_hash
from topr_exp.types import TOPRError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
KEYS = st.dictionaries(st.text(), VALUES)
ROWS = st.lists(st.lists(st.integers(-5, 2**31 - 1), max_size=4), max_size=12)


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        source.shuffle(members)
        return {name: shuffled(member, source) for name, member in members}
    return [shuffled(member, source) for member in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=60)
@given(KEYS, KEYS, st.integers())
def test_equal_keys_and_no_others_have_one_text(one: dict[str, Any], other: dict[str, Any], seed: int) -> None:
    assert canonical(shuffled(one, random.Random(seed))) == canonical(one)
    assert json.loads(canonical(one)) == one
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == (key_hash(one) == key_hash(other)) == same


def test_hash_never_changes_between_versions() -> None:
    """Users' stores outlive a release: another hash would sample everything again."""
    key = {"weights": "ab12", "sampler": {"temperature": 1.0, "top_k": 500, "seed": 0}, "stop": ["\n\n"], "x": None}
    assert key_hash(key) == "e96ded1fc75f05fe"
    assert len({canonical({"x": value}) for value in (1, 1.0, True, "1")}) == 4
    assert canonical({"x": (1, 2)}) == canonical({"x": [1, 2]})


@pytest.mark.parametrize("value", [math.nan, [math.inf], {2, 3}])
def test_what_json_cannot_hold_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"^a store key holds JSON values only: "):
        Store(tmp_path).table("rollouts", {"a": value}, 1)


# ---- list columns


@settings(deadline=None, max_examples=60)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_rows_equal_the_lists(chunks: list[list[list[int]]], cut: int, large: bool) -> None:
    kind = pa.large_list(pa.int32()) if large else pa.list_(pa.int32())
    column = pa.chunked_array([pa.array(rows, kind).slice(cut) for rows in chunks], kind)
    expected = [row for rows in chunks for row in rows[cut:]]
    ragged = Ragged(column)
    assert len(ragged) == len(expected)
    assert [row.tolist() for row in ragged] == expected
    assert [ragged[i - len(expected)].tolist() for i in range(len(expected))] == expected
    assert ragged.lengths().tolist() == [len(row) for row in expected]
    assert all(row.dtype == np.int32 for row in ragged)
    for row in (len(expected), -1 - len(expected)):
        with pytest.raises(IndexError, match=f" of {len(expected)}"):
            ragged[row]


def test_a_column_with_nulls_is_refused() -> None:
    with pytest.raises(AssertionError, match="no nulls"):
        Ragged(pa.chunked_array([pa.array([[1], None], pa.list_(pa.int32()))]))


def test_reading_takes_no_memory_for_the_columns(tmp_path: Path) -> None:
    table = Store(tmp_path).table("rollouts", {}, 2)
    table.fill(lambda index: pa.table({"tokens": pa.array([[index] * 100_000] * 3, pa.list_(pa.int32()))}))
    before = pa.total_allocated_bytes()
    tokens = Ragged(table.read()["tokens"])
    assert [(len(row), int(row[-1])) for row in tokens] == [(100_000, 0)] * 3 + [(100_000, 1)] * 3
    assert pa.total_allocated_bytes() - before < 10_000
    assert not tokens[0].flags.owndata
    assert not tokens[0].flags.writeable
