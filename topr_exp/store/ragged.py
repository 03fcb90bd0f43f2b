"""Rows of different lengths as numpy views into memory-mapped shards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Ragged(Sequence["NDArray[Any]"]):
    """A list column (token ids, log-probabilities) whose rows are numpy views, without a copy or a Python list.

    `ragged[row]` is a read-only 1-d view for any row of the table, over all its shards; the memory is the file's,
    so the operating system may drop it again at any time. The column must hold no nulls.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        assert column.null_count == 0, "a ragged column holds no nulls"
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        # `values` ignores a slice of the list array and `offsets` counts from the same origin: they fit as they are.
        self._offsets: list[NDArray[Any]] = [chunk.offsets.to_numpy(zero_copy_only=True) for chunk in chunks]
        self._values: list[NDArray[Any]] = [chunk.values.to_numpy(zero_copy_only=True) for chunk in chunks]
        self._dtype = column.type.value_type.to_pandas_dtype()
        self._starts = [0]  # global index of each chunk's first row, then the number of rows
        for offsets in self._offsets:
            self._starts.append(self._starts[-1] + len(offsets) - 1)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: Any) -> Any:
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        chunk = bisect_right(self._starts, row) - 1
        offsets, local = self._offsets[chunk], row - self._starts[chunk]
        return self._values[chunk][offsets[local] : offsets[local + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for offsets, values in zip(self._offsets, self._values, strict=True):
            for local in range(len(offsets) - 1):
                yield values[offsets[local] : offsets[local + 1]]

    def lengths(self) -> NDArray[np.int64]:
        """Number of values of every row, [rows]; touches the offsets only."""
        import numpy as np

        if not self._offsets:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([np.diff(offsets) for offsets in self._offsets]).astype(np.int64)

    def padded(self, rows: Sequence[int], fill: float = 0) -> NDArray[Any]:
        """A writable copy of some rows, padded on the right to the longest of them, [len(rows), T]."""
        import numpy as np

        views = [self[int(row)] for row in rows]
        out = np.full((len(views), max(map(len, views), default=0)), fill, dtype=self._dtype)
        for line, view in zip(out, views, strict=True):
            line[: len(view)] = view
        return out
