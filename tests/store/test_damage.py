"""Damaged shards and disks that refuse: named in one line, nothing finished lost, no temporaries left."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.store.conftest import Command
from tests.store.store_workers import SHARDS, open_table, shard
from topr_exp.store import Store, Table
from topr_exp.store import table as table_module
from topr_exp.store.shards import find_fault, read_rows, write_shard
from topr_exp.types import TOPRError


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_flip_of_any_byte_and_any_truncation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path / "shard-00000.arrow"
    table = shard(0).slice(0, rows).replace_schema_metadata({"made_by": "x"})
    write_shard(path, table)
    data = path.read_bytes()
    assert (find_fault(path), read_rows(path)) == (None, rows)
    assert pa.ipc.open_file(path).read_all().equals(table, check_metadata=True)  # for other programs a usual Arrow file
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        assert find_fault(path) == "its checksum is wrong", position
        path.write_bytes(data[:position])
        assert find_fault(path) == "its checksum is wrong", position
        read_rows(path)
    path.write_bytes(data + b"x")
    assert find_fault(path) is not None


@pytest.mark.parametrize("damage", [600, -5, "cut"], ids=str)
def test_a_damaged_shard_is_named_and_made_again(
    table: Table, command: Command, damage: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rot does not show in the modification time: `verify` reads everything."""
    path = table.shard_file(4)
    good, status = path.read_bytes(), path.stat()
    if isinstance(damage, int):
        flip(path, damage)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.write_bytes(good[:-100])
    done, out, _ = command("verify", table.name)
    assert (done, out.splitlines()[0]) == (1, f"DAMAGED  {path}: its checksum is wrong")
    again = open_table(path.parents[2])
    with pytest.raises(TOPRError, match=r"shard-00004.arrow is damaged \(its checksum is wrong\); the next run makes"):
        again.read()
    assert (again.missing(), command("list", table.name)[0]) == ([4], 0)
    made: list[int] = []
    caplog.clear()
    assert again.fill(lambda index: made.append(index) or shard(index)) == 1
    assert (made, path.read_bytes()) == ([4], good)
    (told,) = caplog.messages
    assert str(path) in told
    assert f"prune --key {table.name}" in told  # on a GPU it may be another one
    assert not again.missing()


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int32())])
def test_a_file_whose_checksum_is_right_may_still_be_no_table(tmp_path: Path, command: Command, kind: Any) -> None:
    """Written by another program: to read such offsets ends the process."""
    offsets = pa.py_buffer(np.array([0, 2**30, 2], np.int32))
    buffers = [None, offsets] if kind != pa.string() else [None, offsets, pa.py_buffer(b"ab")]
    children = [] if kind == pa.string() else [pa.array([1, 2], pa.int32())]
    column = pa.Array.from_buffers(kind, 2, buffers, children=children)
    table = Store(tmp_path / "store").table("rollouts", {}, 1)
    write = lambda _: pa.table({"problem_id": ["1", "2"], "text": ["a", "b"], "tokens": column})
    table._write_key()
    write_shard(table.shard_file(0), write(0))
    assert f"DAMAGED  {table.shard_file(0)}: it is no valid table: " in command("verify")[1]
    done, _, err = command("export", "rollouts", str(tmp_path / "x"))
    assert (done, (tmp_path / "x").exists()) == (1, False)
    assert err.startswith(f"error: {table.shard_file(0)} is damaged (it is no valid table: ")


def test_checksums_are_computed_once_a_process(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(table_module, "find_fault", lambda path: read.append(path) or find_fault(path))
    monkeypatch.setattr(table_module, "_verified", {})
    for _ in range(3):
        table.read()
    assert sorted(read) == [table.shard_file(index) for index in range(SHARDS)]


def fill_with_error(table: Table, message: str, kept: int) -> None:
    """A fill that the disk stops says so in one line, keeps what was finished and leaves nothing else."""
    with pytest.raises(TOPRError) as error:
        table.fill(shard)
    assert "\n" not in str(error.value)
    assert message in str(error.value)
    assert len(table.missing()) == SHARDS - kept
    assert {path.suffix for path in table.folder.iterdir()} <= {".json", ".arrow"}


@pytest.mark.parametrize("number", range(1, 9))
def test_a_disk_that_refuses_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Claim, fsync of the file, rename, fsync of the folder, of each of two shards, in this order."""
    table, calls = open_table(tmp_path), list[str]()
    table._write_key()

    def failing(name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        return call

    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    fill_with_error(table, "the disk is full", kept=number // 4)
    assert calls == (["write", "fsync", "replace", "fsync"] * 2)[:number]
    assert table.fill(shard) > 0
    assert not table.missing()
