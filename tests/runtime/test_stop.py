"""Files that reach the disk, and stop signals: answered at once, or once the work is saved."""

import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest

from topr_exp.runtime.files import atomic_folder, guard_writes, write_text
from topr_exp.runtime.stop import SIGNALS, Interrupted, StopFlag
from topr_exp.types import TOPRError


def work(signals: list[int], *, save: bool) -> list[str]:
    """What a run does when these come, one after each piece of its work; with `save` it puts the answer off."""
    done, stop = list[str](), StopFlag()
    with stop.listening(), contextlib.nullcontext() if save else stop.immediate():
        try:
            for number in signals:
                os.kill(os.getpid(), number)
                done.append("worked")
            done.append("saved")
            stop.check()
        except Interrupted as stopped:
            done.append(str(stopped).split(";")[0])
    return done


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_at_once_or_once_the_work_is_saved(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        pytest.skip("these tests were started by nohup")
    assert work([number], save=False) == [f"stopped by {number.name}"]
    assert work([number], save=True) == ["worked", "saved", f"stopped by {number.name}"]
    assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert work([signal.SIGHUP], save=True) == ["worked", "saved"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_a_second_ctrl_c_does_not_wait() -> None:
    term, ctrl_c = signal.SIGTERM, signal.SIGINT
    assert work([term, term], save=True) == ["worked", "worked", "saved", "stopped by SIGTERM"]
    assert work([ctrl_c, term], save=True) == ["worked", "worked", "saved", "stopped by SIGINT"]
    assert work([ctrl_c, ctrl_c], save=True) == ["worked", "stopped by SIGINT"]


# ---- files


def test_a_disk_that_refuses_a_flush_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TOPRError, match="No space left on device"), atomic_folder(tmp_path / "model") as target:
        (target / "weights").write_bytes(b"weights")
    assert not any(tmp_path.iterdir())


def test_a_folder_is_not_put_into_place_once_that_is_forbidden(tmp_path: Path) -> None:
    def forbid() -> None:
        raise TOPRError("taken over")

    with (
        guard_writes(tmp_path, forbid),
        pytest.raises(TOPRError, match="taken over"),
        atomic_folder(tmp_path / "model"),
    ):
        pass
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
