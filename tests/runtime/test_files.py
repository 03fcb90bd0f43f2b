"""Files that reach the disk."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from topr_exp.runtime.files import flushed_sha256


def test_a_file_reaches_the_disk_and_its_digest_is_that_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed = tmp_path / "weights", list[str]()
    path.write_bytes(b"weights" * 1000)
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    assert flushed_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert flushed == [str(path)]


def test_a_disk_that_refuses_a_flush_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "weights").write_bytes(b"weights")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        flushed_sha256(tmp_path / "weights")
