"""Files that reach the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from topr_exp.runtime.files import new_folder
from topr_exp.types import TOPRError


def test_a_disk_that_refuses_a_flush_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TOPRError, match="the disk is full"), new_folder(tmp_path / "model") as target:
        (target / "weights").write_bytes(b"weights")
    assert not any(tmp_path.iterdir())
