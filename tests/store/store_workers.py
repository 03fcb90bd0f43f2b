"""Processes that fill a table, and their builders; imports little, so that they start fast."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from topr_exp.store import Store, Table

SHARDS = 12
KEY = {"weights": "ab12", "temperature": 1.0}


def shard(index: int) -> pa.Table:
    draw = np.random.default_rng(index)
    rows = [draw.integers(0, 68, draw.integers(1, 50)).astype(np.int32) for _ in range(40)]
    return pa.table({"tokens": pa.array(rows, pa.list_(pa.int32())), "text": [f"{index}-{i}" for i in range(40)]})


def open_table(root: Path, shards: int = SHARDS) -> Table:
    return Store(root).table("rollouts", KEY, shards)


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


def hold(log: Path, index: int) -> Path:
    """As long as this file exists, workers don't finish that shard."""
    return log.with_name(f"hold-{index}")


def fill_slowly(root: Path, log: Path, ready: Any) -> None:
    """A worker that takes its time for each shard, and notes which it begins."""

    def make(index: int) -> pa.Table:
        with open(log, "a") as file:
            file.write(f"{index} {os.getpid()}\n")
        time.sleep(0.05)
        while hold(log, index).exists():
            time.sleep(0.005)
        return shard(index)

    ready.wait()
    open_table(root).fill(make)


def fill_until_killed(root: Path, step: int) -> None:
    """Kill this process right before its `step`-th operation on the table's folder."""
    os.fsync = lambda descriptor: None  # as in the test
    table = open_table(root, shards=1)
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        watched = event in ("open", "os.rename", "os.remove", "os.utime", "os.mkdir", "fcntl.flock")
        named = event == "fcntl.flock" or any(str(table.folder) in str(argument) for argument in arguments)
        if watched and named:
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    table.fill(shard)
