"""List columns as numpy views: right rows for any chunking, no copies, little memory."""

from __future__ import annotations

import subprocess
import sys
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


def test_index_outside_raises_and_numpy_indices_work() -> None:
    ragged = Ragged(pa.chunked_array([pa.array([[1], [2, 3]], pa.list_(pa.int32()))]))
    assert ragged[np.int64(1)].tolist() == [2, 3]
    for row in (2, -3):
        with pytest.raises(IndexError, match=r"row (2|-1) of 2"):
            ragged[row]


def test_padded_is_a_copy_with_the_fill_on_the_right() -> None:
    ragged = Ragged(pa.chunked_array([pa.array([[1], [2, 3], []], pa.list_(pa.float32()))]))
    block = ragged.padded([1, 2, 0], fill=-1)
    assert block.tolist() == [[2, 3], [-1, -1], [1, -1]]
    assert block.dtype == np.float32
    block[:] = 0
    assert ragged[1].tolist() == [2, 3]
    assert ragged.padded([]).shape == (0, 0)


def test_nulls_are_refused() -> None:
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


MEASURE = Path(__file__).parent / "store_memory.py"


def measure(tmp_path: Path, completions: int) -> dict[str, Any]:
    """What `store_memory.py` prints, in a process of its own: peak memory has to start from nothing."""
    out = subprocess.run(
        [sys.executable, str(MEASURE), str(tmp_path), str(completions)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert out.returncode == 0, out.stderr
    return {name: float(value) for name, value in (line.split() for line in out.stdout.splitlines())}


def test_memory_at_a_tenth_of_the_size(tmp_path: Path) -> None:
    """100,000 completions of 300 tokens: 0.12 GB of ids, and as much of log-probabilities."""
    figures = measure(tmp_path, 100_000)
    assert figures["peak_mb"] - figures["imports_mb"] < 2 * 120 + 120  # both columns mapped, and the rest
    assert figures["anonymous_mb"] - figures["imports_mb"] < 120  # what can't be dropped: not even one column


@pytest.mark.slow
def test_memory_at_full_size(tmp_path: Path) -> None:
    """1 M completions of 300 tokens (1.2 GB of ids) need less than 2 GiB to compose and iterate."""
    figures = measure(tmp_path, 1_000_000)
    assert figures["peak_ids_mb"] < 2048
    assert figures["anonymous_mb"] < 512
