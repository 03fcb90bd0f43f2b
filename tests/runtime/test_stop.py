"""Stop signals: answered at once, or once the work is saved."""

import contextlib
import os
import signal

import pytest

from topr_exp.runtime.stop import SIGNALS, Interrupted, StopFlag


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


def test_only_a_second_ctrl_c_does_not_wait() -> None:
    term, ctrl_c = signal.SIGTERM, signal.SIGINT
    assert work([term, term], save=True) == ["worked", "worked", "saved", "stopped by SIGTERM"]
    assert work([ctrl_c, term], save=True) == ["worked", "worked", "saved", "stopped by SIGINT"]
    assert work([ctrl_c, ctrl_c], save=True) == ["worked", "stopped by SIGINT"]
