"""Tables that several tests of the store start from, and processes that fill one."""

import os
import signal
import sys
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import append_text, write_file
from tests.processes import PROCESSES
from topr_exp.store import Store
from topr_exp.store.__main__ import main

SHARDS = 12
KEY = {"weights": "ab12", "temperature": 1.0}
WATCHED_EVENTS = ("open", "os.rename", "os.remove", "os.utime", "os.mkdir", "fcntl.flock")


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


def shard(index):
    """40 rows that are another for each index."""
    draw = np.random.default_rng(index)
    rows = []
    for _ in range(40):
        length = draw.integers(1, 50)
        rows.append(draw.integers(0, 68, length).astype(np.int32))
    texts = [f"{index}-{row}" for row in range(40)]
    return pa.table({"tokens": pa.array(rows, pa.list_(pa.int32())), "text": texts})


def open_table(root, shards=SHARDS):
    return Store(root).table("rollouts", KEY, shards)


def logged(log):
    """The shards that workers began, in their order."""
    if not log.exists():
        return []
    return [int(line.split()[0]) for line in log.read_text().splitlines()]


def hold(log, index):
    """As long as this file exists, workers don't finish that shard."""
    return log.with_name(f"hold-{index}")


def fill_slowly(root, log, ready):
    """A worker that takes its time for each shard, and notes which it begins."""

    def make(index):
        append_text(log, f"{index} {os.getpid()}\n")
        time.sleep(0.05)
        while hold(log, index).exists():
            time.sleep(0.005)
        return shard(index)

    ready.wait()
    open_table(root).fill(make)


def fill_until_killed(root, step):
    """Kill this process right before its `step`-th operation on the table's folder."""
    os.fsync = lambda descriptor: None  # as in the test
    table = open_table(root, shards=1)
    operations = 0

    def watch(event, arguments):
        nonlocal operations
        names_table = event == "fcntl.flock" or str(table.folder) in " ".join(map(str, arguments))
        if event in WATCHED_EVENTS and names_table:
            operations += 1
            if operations == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    table.fill(shard)


@pytest.fixture
def table(tmp_path):
    """A complete table in the store tmp_path/store."""
    table = open_table(tmp_path / "store")
    table.fill(shard)
    return table


@pytest.fixture
def command(tmp_path, capfd):
    """Call the store's command line."""

    def call(words, *arguments, root=tmp_path / "store"):
        capfd.readouterr()
        status = main(["--root", str(root), *words.split(), *map(str, arguments)])
        return Outcome(status, *capfd.readouterr())

    return call


@pytest.fixture
def store(tmp_path):
    """Completions with verdicts on them, scored with two references; beside it what a run leaves."""
    store = Store(tmp_path / "store")
    rollouts = store.table("rollouts", {"weights": "w"}, 1)
    rollouts.fill(shard)
    store.table("verdicts", {"rollouts": rollouts.name}, 1).fill(shard)
    for reference in ("a", "b"):
        store.table("logprobs", {"rollouts": rollouts.name, "weights": reference}, 1).fill(shard)
    write_file(tmp_path / "runs/one/summary.json", "{}")
    return store


@pytest.fixture
def start():
    """Start worker processes; none outlives the test."""
    processes = []

    def run(target, *arguments):
        process = PROCESSES.Process(target=target, args=arguments)
        process.start()
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.join()
