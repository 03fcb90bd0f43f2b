"""Rows that an iteration trains on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from topr_exp.runtime.files import open_regular, write_bytes
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    pass
EXAMPLES, IMPORTED = "examples.npy", "imported.npy"  # rows that are trained on; of a log, rows that were read


def write_rows(path: Path, rows: NDArray[np.integer]) -> None:
    """Write numbers of rows."""
    buffer = io.BytesIO()
    np.save(buffer, rows)
    write_bytes(path, buffer.getvalue())


def read_row_numbers(path: Path) -> NDArray[np.integer]:
    """The numbers of rows that a file holds; TOPRError where it can't be read."""
    try:
        with open_regular(path) as file:
            rows: NDArray[np.integer] = np.load(file)
        return rows
    except (OSError, EOFError, ValueError, MemoryError) as error:  # of memory: its header says how many there are
        raise TOPRError(f"{path} can't be read ({' '.join(str(error).split())})") from None
