"""Stop signals, answered at once or once the work is saved; the rights of files."""

import contextlib
import os
import signal

import pytest

from tests.conftest import each_row
from topr_exp.runtime.files import write_text
from topr_exp.runtime.stop import SIGNALS, Interrupted, StopFlag


def work(signals, *, save):
    """What a run does when these come, one after each piece of its work; with `save` it puts the answer off."""
    events = []
    stop = StopFlag()
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


# Signals | what comes of the work
SECOND_SIGNALS = """
SIGTERM SIGTERM | worked, worked, saved, stopped by SIGTERM
SIGINT SIGTERM | worked, worked, saved, stopped by SIGINT
SIGINT SIGINT | worked, stopped by SIGINT
"""


@each_row("names events", SECOND_SIGNALS)
def test_only_a_second_ctrl_c_does_not_wait(names, events):
    signals = [signal.Signals[name] for name in names.split()]

    assert ", ".join(work(signals, save=True)) == events


# ---- files


def test_a_file_has_the_rights_that_the_umask_leaves(tmp_path):
    umask = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "text")
    finally:
        os.umask(umask)

    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
