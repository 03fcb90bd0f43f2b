"""Worker processes of the store's tests, and what they have done so far."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

# A server that has the imports done and forks: processes start in milliseconds, and pytest's own is not forked.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pyarrow", "numpy.random", "pandas", "pytest", "topr_exp.store"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def wait_for(happened: Callable[[], bool], seconds: float = 300) -> None:
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit, "did not happen"
        time.sleep(0.005)


def logged(log: Path) -> list[int]:
    """The shards that workers began, in their order."""
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []
