"""Fills a table with FOLDER COMPLETIONS of 300 tokens, composes and iterates it; prints peak memory in MB.

imports_mb: after the imports. peak_ids_mb: peak while the ids are composed and iterated. peak_mb: the same with
the log-probabilities beside them. anonymous_mb: peak of what is not a mapped file, which alone is needed: mapped
pages are dropped by the operating system when memory runs short. seconds: of the reading.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from topr_exp.store import Ragged, Store

ROWS_PER_SHARD, TOKENS, VOCABULARY = 20_000, 300, 128_000


def status(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return float(next(line for line in text.splitlines() if line.startswith(f"{field}:")).split()[1]) / 1024


def make(index: int) -> pa.Table:
    draw = np.random.default_rng(index)
    lengths = draw.integers(TOKENS // 2, TOKENS * 3 // 2, ROWS_PER_SHARD)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    tokens = pa.array(draw.integers(0, VOCABULARY, lengths.sum(), dtype=np.int32))
    logp = pa.array(-draw.random(lengths.sum(), dtype=np.float32))
    return pa.table(
        {
            "problem": pa.array(np.arange(ROWS_PER_SHARD, dtype=np.int32) // 16),
            "tokens": pa.ListArray.from_arrays(offsets, tokens),
            "logp": pa.ListArray.from_arrays(offsets, logp),
        }
    )


def iterate(ragged: Ragged, chosen: np.ndarray) -> float:
    return float(sum(int(ragged[row][0]) + float(ragged[row].sum()) for row in chosen))


def main(root: str, completions: int) -> None:
    key = {"rows": completions}
    print("imports_mb", status("VmHWM"))
    # In a child, so that the peaks below are those of reading. Nothing is verified there: the reader does.
    import os

    if (child := os.fork()) == 0:
        Store(root).table("rollouts", key, completions // ROWS_PER_SHARD).fill(make)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    start, anonymous = time.perf_counter(), 0.0
    table = Store(root).table("rollouts", key, completions // ROWS_PER_SHARD)
    tokens = table.ragged("tokens")
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(tokens.lengths() > 0))
    assert len(chosen) == completions
    iterate(tokens, chosen)
    print("peak_ids_mb", status("VmHWM"))
    anonymous = max(anonymous, status("RssAnon"))
    iterate(table.ragged("logp"), chosen)
    anonymous = max(anonymous, status("RssAnon"))
    print("peak_mb", status("VmHWM"))
    print("anonymous_mb", anonymous)
    print("seconds", time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
