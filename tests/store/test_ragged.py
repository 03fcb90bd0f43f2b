"""List columns as numpy views: right rows for any chunking, no copies, little memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.store import Ragged, Store

ROWS = st.lists(st.lists(st.integers(-5, 2**31 - 1), max_size=4), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_rows_equal_the_lists(chunks: list[list[list[int]]], cut: int, large: bool) -> None:
    kind = pa.large_list(pa.int32()) if large else pa.list_(pa.int32())
    column = pa.chunked_array([pa.array(rows, kind).slice(cut) for rows in chunks], kind)
    expected = [row for rows in chunks for row in rows[cut:]]
    ragged = Ragged(column)
    assert len(ragged) == len(expected)
    assert [row.tolist() for row in ragged] == expected
    assert [ragged[i].tolist() for i in range(len(expected))] == expected
    assert [ragged[i - len(expected)].tolist() for i in range(len(expected))] == expected
    assert ragged.lengths().tolist() == [len(row) for row in expected]
    assert all(row.dtype == np.int32 for row in ragged)


def test_single_rows_and_padded_blocks() -> None:
    ragged = Ragged(pa.chunked_array([pa.array([[1], [2, 3], []], pa.list_(pa.float32()))]))
    assert ragged[np.int64(1)].tolist() == [2, 3]
    for row in (3, -4):
        with pytest.raises(IndexError, match=r"row (3|-1) of 3"):
            ragged[row]
    block = ragged.padded([1, 2, 0], fill=-1)
    assert (block.tolist(), block.dtype) == ([[2, 3], [-1, -1], [1, -1]], np.float32)
    block[:] = 0  # a copy
    assert ragged[1].tolist() == [2, 3]
    assert ragged.padded([]).shape == (0, 0)
    with pytest.raises(AssertionError, match="no nulls"):
        Ragged(pa.chunked_array([pa.array([[1], None], pa.list_(pa.int32()))]))


def test_rows_are_views_of_the_file(tmp_path: Path) -> None:
    table = Store(tmp_path).table("rollouts", {}, 2)
    table.fill(lambda index: pa.table({"tokens": pa.array([[index, 7]] * 3, pa.list_(pa.int32()))}))
    before = pa.total_allocated_bytes()
    ragged = table.ragged("tokens")
    assert [row.tolist() for row in ragged] == [[0, 7]] * 3 + [[1, 7]] * 3
    assert pa.total_allocated_bytes() == before
    assert not ragged[0].flags.owndata
    assert not ragged[0].flags.writeable


def visit(root: Path, rows: int, shards: int) -> None:
    """Read every row of two columns in random order; fail where that takes memory beside the mapped pages."""

    def anonymous() -> float:
        status = Path("/proc/self/status").read_text()
        return float(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) / 1024

    before = anonymous()
    table = Store(root).table("rollouts", {}, shards)
    tokens, logp = table.ragged("tokens"), table.ragged("logp")
    for row in np.random.default_rng(0).permutation(rows * shards):
        assert len(tokens[row]) == len(logp[row]) == 300
    assert anonymous() - before < 60


def test_reading_takes_no_memory_for_the_columns(tmp_path: Path, start: Callable[..., Any]) -> None:
    """60,000 completions of 300 tokens: 144 MB in two columns."""
    rows, shards = 6000, 10

    def make(index: int) -> pa.Table:
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 300)
        values = np.random.default_rng(index).integers(0, 9, rows * 300, dtype=np.int32)
        columns = {"tokens": pa.array(values), "logp": pa.array(values.astype(np.float32))}
        return pa.table({name: pa.ListArray.from_arrays(offsets, column) for name, column in columns.items()})

    Store(tmp_path).table("rollouts", {}, shards).fill(make)
    process = start(visit, tmp_path, rows, shards)
    process.join()
    assert process.exitcode == 0
