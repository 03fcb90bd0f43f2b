"""Random draws of a training set, the same on every machine."""

import zlib

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def random_generator(seed: int, iteration: int, purpose: str) -> Generator:
    """Create a random generator for each (seed, iteration, purpose), the same on every machine."""
    purpose_hash = zlib.crc32(purpose.encode())
    sequence = SeedSequence([seed, iteration, purpose_hash])
    return Generator(PCG64(sequence))


def sample_rows(rng: Generator, rows: Rows, n: int | None) -> Rows:
    """Draw n rows without replacement; all rows for None, or if there are no more than n."""
    if n is None or n >= len(rows):
        return rows.copy()
    positions = rng.choice(len(rows), size=n, replace=False, shuffle=False)
    return rows[positions]


def sample_distinct(rng: Generator, sizes: Rows, limit: int) -> tuple[Rows, Rows]:
    """Draw min(limit, size) distinct integers below each size: the index of the size, and the integer, [N] each.

    Floyd's algorithm, one step for all sizes at once: in step i of m = min(limit, size), draw from 0..size-m+i and take
    size-m+i itself where the draw is taken already. Every subset comes out with the same probability.
    """
    sizes = sizes.astype(np.int64)
    counts = np.minimum(sizes, limit)
    steps = int(counts.max(initial=0))
    integers = np.full((len(sizes), steps), -1)  # by size; −1: not drawn
    for step in range(steps):
        active = np.flatnonzero(counts > step)  # the sizes with integers left to draw
        largest = sizes[active] - counts[active] + step
        candidates = rng.integers(0, largest + 1)
        integers_so_far = integers[active]
        is_duplicate = (integers_so_far == candidates[:, None]).any(axis=1)
        integers[active, step] = np.where(is_duplicate, largest, candidates)
    size_index = np.repeat(np.arange(len(sizes)), counts)
    is_drawn = integers >= 0
    return size_index, integers[is_drawn]
