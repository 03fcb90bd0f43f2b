"""Files that reach the disk."""

import errno
import os
from pathlib import Path

import pytest

from topr_exp.runtime.files import new_folder, write_text
from topr_exp.types import TOPRError


def test_a_disk_that_refuses_a_flush_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TOPRError, match="the disk is full"), new_folder(tmp_path / "model") as target:
        (target / "weights").write_bytes(b"weights")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_a_file_has_the_rights_that_the_umask_leaves_and_the_umask_stays(umask, tmp_path, monkeypatch):
    """Other threads make files meanwhile."""
    before, change = os.umask(umask), os.umask
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the process's umask was changed"))
        write_text(tmp_path / "file", "text")
    finally:
        change(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
