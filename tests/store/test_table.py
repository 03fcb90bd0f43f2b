"""Damaged shards and disks that refuse: named in one line, nothing finished lost, no temporaries left."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.store.store_workers import SHARDS, open_table, shard
from topr_exp.store import Table
from topr_exp.types import TOPRError


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage_checksum(path: Path, text: str = "{") -> None:
    path.with_suffix(".json").write_text(text)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = open_table(tmp_path)
    table.fill(shard)
    return table


@pytest.mark.parametrize("same", [True, False])
def test_a_shard_that_is_not_what_it_was_before_it_was_damaged_is_told(
    table: Table, caplog: pytest.LogCaptureFixture, same: bool
) -> None:
    flip(table.arrow_file(4), 600)
    assert table.fill(lambda index: shard(index if same else index + 1)) == 1
    told = [one for one in caplog.messages if "is not what it was before it was damaged" in one]
    assert len(told) == (0 if same else 1)
    assert all(f"prune --key {table.name} --yes" in one for one in told)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: flip(path, 600), "its checksum is wrong"),
        (cut, r"\d+ bytes instead of \d+"),
        *(
            (partial(damage_checksum, text=text), "its checksum file shard-00004.json is not readable")
            for text in ("{", '{"rows": Infinity, "bytes": 1, "blake2b": ""}', "[" * 100_000)
        ),
    ],
)
def test_a_damaged_shard_is_named_and_made_again(
    table: Table, damage: Callable[[Path], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = table.arrow_file(4)
    good = path.read_bytes()
    damage(path)
    with pytest.raises(TOPRError, match=rf"shard-00004.arrow is damaged \({words}\); the next run makes it again"):
        table.read()
    assert table.missing() == [4]
    made: list[int] = []

    def make(index: int) -> pa.Table:
        made.append(index)
        return shard(index)

    caplog.set_level(logging.WARNING)
    assert table.fill(make) == 1
    assert made == [4]
    assert path.read_bytes() == good
    assert len(caplog.records) == 1
    assert str(path) in caplog.records[0].getMessage()
    assert table.complete()


def test_checksums_are_computed_once_a_process(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from topr_exp.store import shards as module

    read: list[Path] = []
    digest = module.file_digest
    monkeypatch.setattr(module, "file_digest", lambda path: read.append(path) or digest(path))
    monkeypatch.setattr(module, "_verified", {})
    for _ in range(3):
        table.read()
    assert sorted(read) == [table.arrow_file(index) for index in range(SHARDS)]


def fill_with_error(table: Table, message: str, kept: int) -> None:
    """A fill that the disk stops says so in one line, keeps what was finished and leaves nothing else."""
    with pytest.raises(TOPRError) as error:
        table.fill(shard)
    assert "\n" not in str(error.value)
    assert message in str(error.value)
    assert len(table.missing()) == SHARDS - kept
    allowed = {"key.json"} | {f"shard-{index:05d}.{end}" for index in range(SHARDS) for end in ("arrow", "json")}
    assert {path.name for path in table.folder.iterdir()} <= allowed


def test_file_size_limit(tmp_path: Path) -> None:
    """A real limit (ulimit -f), lifted again: the third shard is larger than it allows."""
    table = open_table(tmp_path)
    small = shard(0).slice(0, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limit[1]))
    try:
        with pytest.raises(TOPRError, match=r"write .*shard-00002.arrow: the file would be larger than .*; 2 of 12"):
            table.fill(lambda index: shard(index) if index == 2 else small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert table.missing() == list(range(2, SHARDS))
    assert not list(table.folder.glob("*.tmp"))
    assert not list(table.folder.glob("*.claim"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(tmp_path)], capture_output=True, check=False, timeout=60
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a small file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True, timeout=60)


def test_full_disk(small_disk: Path) -> None:
    table = open_table(small_disk)
    with pytest.raises(TOPRError, match=r"cannot write .*: the disk is full; \d of 12 shards are kept and the same"):
        table.fill(shard)
    assert 1 < len(table.missing()) < SHARDS
    assert not list(table.folder.glob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True, timeout=60)
    assert table.fill(shard) > 0
    assert table.complete()


@pytest.mark.parametrize(("call", "kept"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2)])
def test_full_disk_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, kept: int) -> None:
    """The same without a mount, at each fsync of two shards: Arrow file, folder, checksum file, folder."""
    table = open_table(tmp_path)
    table._write_key()
    count, fsync = 0, os.fsync

    def fail(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    fill_with_error(table, "the disk is full", kept)
    assert table.fill(shard) > 0
    assert table.complete()


def test_full_disk_for_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "write", fail)
    fill_with_error(open_table(tmp_path), "the disk quota is used up", kept=0)


def test_the_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(TOPRError, match=r"cannot .*: Not a directory$"):
        open_table(tmp_path / "store").fill(shard)


def test_termination_by_signal_leaves_a_table_that_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a shard: the claim is given back at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start without it
    table = open_table(tmp_path)

    def interrupted(index: int) -> Any:
        if index == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return shard(index)

    with pytest.raises(KeyboardInterrupt):
        table.fill(interrupted)
    assert not list(table.folder.glob("*.claim"))
    assert table.missing() == list(range(2, SHARDS))
