"""Files that reach the disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from topr_exp.runtime import files
from topr_exp.runtime.files import file_digest, flushed_sha256


def test_a_file_reaches_the_disk_while_its_digest_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = tmp_path / "weights", file_digest
    path.write_bytes(b"weights" * 1000)
    flushing, reading = threading.Event(), threading.Event()
    flushed = []

    def fsync(descriptor: int) -> None:
        flushing.set()
        assert reading.wait(60)
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def digest(asked: Path) -> str:
        reading.set()
        assert flushing.wait(60)
        return plain(asked)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files, "file_digest", digest)
    assert flushed_sha256(path) == plain(path)
    assert flushed == [str(path)]


def test_a_disk_that_refuses_a_flush_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "weights").write_bytes(b"weights")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        flushed_sha256(tmp_path / "weights")
