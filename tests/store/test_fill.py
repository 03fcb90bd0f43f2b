"""Filling a table: whole shards only, the same bytes whoever made them, and each made once."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import time
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
from topr_exp.store import Store
from topr_exp.store.table import BorrowingStore
from topr_exp.types import TOPRError

# ---- what fill does


def test_fill_makes_what_is_missing_and_reads_back(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert not table.folder.exists()
    assert (table.complete(), table.missing()) == (False, list(range(SHARDS)))
    seen: list[tuple[int, bool]] = []
    assert table.fill(shard, lambda index, here: seen.append((index, here))) == SHARDS
    assert seen == [(index, True) for index in range(SHARDS)]
    assert table.complete()
    assert table.read().equals(pa.concat_tables([shard(index) for index in range(SHARDS)]))
    assert table.read(["text"]).column_names == ["text"]
    assert table.bounds()[-1] == table.read().num_rows == 40 * SHARDS
    assert table.shard(3).equals(shard(3))

    table.shard_file(5).unlink()
    again = open_table(tmp_path)
    seen.clear()
    assert again.missing() == [5]
    assert again.fill(shard, lambda index, here: seen.append((index, here))) == 1
    assert sorted(seen) == [(index, index == 5) for index in range(SHARDS)]
    assert again.fill(shard) == 0


def test_bytes_do_not_depend_on_chunks_or_slices(tmp_path: Path) -> None:
    whole = shard(0)
    pieces = pa.concat_tables([whole.slice(0, 7), whole.slice(7)])
    padded = pa.concat_tables([shard(1), whole]).combine_chunks().slice(40)
    found = []
    for index, table in enumerate([whole, pieces, padded]):
        target = Store(tmp_path / str(index)).table("rollouts", {}, 1)
        target.fill(lambda _, table=table: table)
        found.append(target.shard_file(0).read_bytes())
    assert found[0] == found[1] == found[2]


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    with pytest.raises(TOPRError, match=r"shard-00000.arrow \(shard 0 of 12\) was never made"):
        table.read()
    with pytest.raises(IndexError):
        table.shard(SHARDS)


def test_an_exception_in_make_frees_the_shard(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    with pytest.raises(ZeroDivisionError):
        table.fill(lambda index: shard(index // (3 - index)))
    assert table.missing() == list(range(3, SHARDS))
    assert not list(table.folder.glob("*.claim"))
    assert table.fill(shard) == SHARDS - 3


def test_another_key_in_the_folder_is_refused(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.fill(shard)
    key_file = table.folder / "key.json"
    text = key_file.read_text()
    key_file.write_text(text.replace("ab12", "cd34"))
    with pytest.raises(TOPRError, match=r"key.json holds another key .*remove the folder"):
        open_table(tmp_path)
    key_file.write_text(text[:-10])
    with pytest.raises(TOPRError, match=r"key.json is damaged"):
        open_table(tmp_path)
    key_file.write_text(text)
    with pytest.raises(TOPRError, match="has 12 shards, not 13"):
        open_table(tmp_path, shards=13)


def test_a_lent_table_is_taken_only_whole(tmp_path: Path) -> None:
    lender = Store(tmp_path / "lender")
    whole, half = {"weights": "w"}, {"weights": "half"}
    lender.table("rollouts", whole, 2).fill(shard)
    with pytest.raises(ZeroDivisionError):
        lender.table("rollouts", half, 2).fill(lambda index: shard(index // (1 - index)))
    store = BorrowingStore(tmp_path / "store", lender)
    lent, made = store.table("rollouts", whole, 2), store.table("rollouts", half, 2)
    assert store.place(lent.name) == lent.folder == lender.root / lent.name
    assert store.place(made.name) == made.folder == store.root / made.name
    assert (lent.fill(shard), made.fill(shard)) == (0, 2)


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
        if table.complete():
            assert table.read().equals(shard(0))
        waits: list[str] = []
        table.fill(shard, on_wait=waits.append)
        assert contents(table.folder) == contents(calm.folder), f"killed at step {step}"
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert not waits, "waited for a dead process"
    assert step > 10, "the operations were not seen"


def test_killed_ten_times_at_random(tmp_path: Path, start: Callable[..., Any], undisturbed: dict[str, bytes]) -> None:
    """Each worker is killed in its first shard, while it writes that, or in its second, in which it hangs."""
    source, table, log = random.Random(0), open_table(tmp_path), tmp_path / "log"
    for _ in range(10):
        before = len(logged(log))
        process = start(fill_slowly, tmp_path, log, 0.03, None, 1)
        wait_for(lambda before=before: len(logged(log)) > before)
        time.sleep(source.uniform(0, 0.06))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert table.fill(shard) >= SHARDS - 10
    assert contents(table.folder) == undisturbed


# ---- many processes


def test_eight_processes_make_each_shard_once(
    tmp_path: Path, start: Callable[..., Any], undisturbed: dict[str, bytes]
) -> None:
    log, ready = tmp_path / "log", PROCESSES.Barrier(8)
    hold(log, 0).touch()
    workers = [start(fill_slowly, tmp_path, log, 0.05, ready) for _ in range(8)]
    wait_for(lambda: len(logged(log)) == SHARDS)  # others make the rest while one is held up
    hold(log, 0).unlink()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(logged(log)) == list(range(SHARDS))
    makers = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(makers) > 1
    assert contents(open_table(tmp_path).folder) == undisturbed


def test_the_message_while_another_works(
    tmp_path: Path,
    start: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other worker holds shard 0 until the first message comes, and shard 6 until the second."""
    log = tmp_path / "log"
    holds = [hold(log, index) for index in (0, 6)]
    for path in holds:
        path.touch()

    def let_go(record: logging.LogRecord) -> bool:
        if holds:
            holds.pop(0).unlink()
        return True

    monkeypatch.setattr(logging.getLogger("topr_exp.store.table"), "filters", [let_go])
    process = start(fill_slowly, tmp_path, log, 0.0, None, 1)
    wait_for(log.exists)
    caplog.set_level(logging.INFO)
    made = open_table(tmp_path).fill(shard)
    owner = f"waiting for {socket.gethostname()}:{process.pid}, which makes"
    messages = [record.getMessage() for record in caplog.records]
    assert made == SHARDS - 1
    assert messages == [f"{owner} shard 0 of 12 of {open_table(tmp_path).name}"]
