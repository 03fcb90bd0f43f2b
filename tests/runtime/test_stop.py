"""Stop signals, answered at once or once the work is saved; folders and files that reach the disk whole or not."""

import contextlib
import os
import signal

import pytest

from tests.conftest import refused
from topr_exp.runtime.files import atomic_folder, guard_writes, write_text
from topr_exp.runtime.stop import SIGNALS, Interrupted, StopFlag
from topr_exp.types import TOPRError


def work(signals, *, save):
    """What a run does when these come, one after each piece of its work; with `save` it puts the answer off."""
    events, stop = [], StopFlag()
    with stop.listening(), contextlib.nullcontext() if save else stop.immediate():
        try:
            for number in signals:
                os.kill(os.getpid(), number)
                events.append("worked")
            events.append("saved")
            stop.check()
        except Interrupted as interruption:
            events.append(str(interruption).split(";")[0])
    return events


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_at_once_or_once_the_work_is_saved(number):
    handler = signal.signal(number, signal.SIG_DFL)  # whether or not these tests were started by nohup
    try:
        assert work([number], save=False) == [f"stopped by {number.name}"]
        assert work([number], save=True) == ["worked", "saved", f"stopped by {number.name}"]
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, handler)


def test_what_nohup_ignores_stays_ignored():
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert work([signal.SIGHUP], save=True) == ["worked", "saved"]
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_only_a_second_ctrl_c_does_not_wait():
    term, ctrl_c = signal.SIGTERM, signal.SIGINT

    assert work([term, term], save=True) == ["worked", "worked", "saved", "stopped by SIGTERM"]
    assert work([ctrl_c, term], save=True) == ["worked", "worked", "saved", "stopped by SIGINT"]
    assert work([ctrl_c, ctrl_c], save=True) == ["worked", "stopped by SIGINT"]


# ---- files


def test_a_folder_is_not_put_into_place_once_that_is_forbidden(tmp_path):
    def forbid():
        raise TOPRError("taken over")

    with guard_writes(tmp_path, forbid), refused("taken over"), atomic_folder(tmp_path / "model"):
        pass
    assert not any(tmp_path.iterdir())


def test_a_file_has_the_rights_that_the_umask_leaves(tmp_path):
    umask = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "text")
    finally:
        os.umask(umask)

    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
