"""Random draws of a training set, the same on every machine."""

import zlib

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def random_generator(seed: int, iteration: int, purpose: str) -> np.random.Generator:
    """Create a random generator for each (seed, iteration, purpose), the same on every machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, iteration, zlib.crc32(purpose.encode())])))


def sample_rows(rng: np.random.Generator, rows: Rows, n: int | None) -> Rows:
    """Draw n rows without replacement; all rows for None, or if there are no more than n."""
    if n is None or n >= len(rows):
        return rows.copy()
    return rows[rng.choice(len(rows), size=n, replace=False, shuffle=False)]


def sample_distinct(
    rng: np.random.Generator, sizes: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw min(limit, size) distinct integers below each size; returns indices into `sizes` [N] and the integers [N].

    Floyd's algorithm, one step for all sizes at once: in step i of m = min(limit, size), draw from 0..size-m+i and take
    size-m+i itself where the draw is taken already. Every subset comes out with the same probability.
    """
    sizes = sizes.astype(np.int64)
    counts = np.minimum(sizes, limit)
    integers = np.full((len(sizes), int(counts.max(initial=0))), -1, dtype=np.int64)  # −1: not drawn
    for step in range(integers.shape[1]):
        active = np.flatnonzero(counts > step)  # the sizes with integers left to draw
        largest = sizes[active] - counts[active] + step
        candidates = rng.integers(0, largest + 1)
        is_duplicate = (integers[active, :step] == candidates[:, None]).any(axis=1)
        integers[active, step] = np.where(is_duplicate, largest, candidates)
    size_indices = np.repeat(np.arange(len(sizes)), counts)
    return size_indices, integers[integers >= 0]
