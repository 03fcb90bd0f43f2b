"""Filling a table: whole shards only, the same bytes whoever made them, and each made once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.store.store_workers import (
    PROCESSES,
    SHARDS,
    contents,
    fill_slowly,
    fill_until_killed,
    hold,
    logged,
    open_table,
    shard,
    wait_for,
)  # fmt: skip
from topr_exp.runtime import locks
from topr_exp.types import TOPRError

# ---- what fill does


def test_fill_makes_what_is_missing_and_reads_back(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert not table.folder.exists()
    with pytest.raises(TOPRError, match=r"shard-00000.arrow \(shard 0 of 12\) was never made"):
        table.read()
    assert table.missing() == list(range(SHARDS))
    seen: list[tuple[int, bool]] = []
    assert table.fill(shard, lambda index, here: seen.append((index, here))) == SHARDS
    assert seen == [(index, True) for index in range(SHARDS)]
    assert not table.missing()
    assert table.read().equals(pa.concat_tables([shard(index) for index in range(SHARDS)]))
    assert table.read(["text"]).column_names == ["text"]
    assert table.bounds()[-1] == table.read().num_rows == 40 * SHARDS
    assert table.shard(3).equals(shard(3))

    bytes_of_5 = table.shard_file(5).read_bytes()
    table.shard_file(5).unlink()
    again = open_table(tmp_path)
    seen.clear()
    assert again.missing() == [5]
    chunked = lambda index: pa.concat_tables([shard(1), shard(index).slice(0, 7), shard(index).slice(7)]).slice(40)
    assert again.fill(chunked, lambda index, here: seen.append((index, here))) == 1
    assert again.shard_file(5).read_bytes() == bytes_of_5  # whatever the chunks
    assert sorted(seen) == [(index, index == 5) for index in range(SHARDS)]
    assert again.fill(shard) == 0


def test_a_shard_that_was_made_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    """By a process that was not kept out, on a file system without locks say."""
    table = open_table(tmp_path, shards=1)

    def overtaken(index: int) -> pa.Table:
        (table.folder / "shard-00000.claim").unlink()
        open_table(tmp_path, shards=1).fill(shard)
        written.append(table.shard_file(0).stat().st_ino)
        return shard(index)

    written: list[int] = []
    assert table.fill(overtaken) == 0
    assert written == [table.shard_file(0).stat().st_ino]


# ---- killed processes


def test_killed_at_every_step(tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL before each single file operation; then a fill leaves the same files as an undisturbed one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # guards against power cuts, and takes most of the time
    calm = open_table(tmp_path / "calm", shards=1)
    calm.fill(shard)
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        process = start(fill_until_killed, root, step)
        process.join()
        table = open_table(root, shards=1)
        if not table.missing():
            assert table.read().equals(shard(0))
        waits: list[str] = []
        table.fill(shard, on_wait=waits.append)
        assert contents(table.folder) == contents(calm.folder), f"killed at step {step}"
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert not waits, "waited for a dead process"
    assert step > 10, "the operations were not seen"


# ---- many processes


def test_eight_processes_make_each_shard_once(tmp_path: Path, start: Callable[..., Any]) -> None:
    undisturbed = open_table(tmp_path / "undisturbed")
    undisturbed.fill(shard)
    log, ready = tmp_path / "log", PROCESSES.Barrier(8)
    hold(log, 0).touch()
    workers = [start(fill_slowly, tmp_path, log, ready) for _ in range(8)]
    wait_for(lambda: len(logged(log)) == SHARDS)  # others make the rest while one is held up
    hold(log, 0).unlink()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(logged(log)) == list(range(SHARDS))
    makers = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(makers) > 1
    assert contents(open_table(tmp_path).folder) == contents(undisturbed.folder)


def test_the_message_while_another_works(tmp_path: Path) -> None:
    table, told = open_table(tmp_path), list[str]()
    table._write_key()
    lock: Any = locks.acquire(table.folder / "shard-00000.claim")

    def give_back(message: str) -> None:
        told.append(message)
        lock.__exit__(None, None, None)

    assert table.fill(shard, on_wait=give_back) == SHARDS
    this = f"{socket.gethostname()}:{os.getpid()}"
    assert told == [f"waiting for {this}, which makes shard 0 of 12 of {table.name}"]
