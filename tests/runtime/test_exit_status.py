"""Every command ends with an exit status and, for an error, one line."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.stop import Interrupted
from topr_exp.types import ConfigError, TOPRError

START = "from topr_exp.runtime.exit_status import exit_status, warn, show_log; import logging; "


def opening(number: int) -> OSError:
    return OSError(number, os.strerror(number), "a/b")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("seed=x: expected a whole number"), 2, "seed=x: expected a whole number"),
        (TOPRError("disk full"), 1, "disk full"),
        (Interrupted(signal.SIGTERM), 143, "stopped by SIGTERM; the same command goes on from there"),
        (KeyboardInterrupt(), 130, ""),
        (opening(errno.EACCES), 1, "cannot open a/b: permission denied"),
        (opening(errno.ENAMETOOLONG), 1, "cannot open a/b: file name too long"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert exit_status(work) == status
    assert capsys.readouterr() == ("", f"error: {line}\n" if line else "")
    if isinstance(error, KeyboardInterrupt):
        assert exit_status(work, resumes=True) == 130
        assert "interrupted; the same command goes on where this one stopped" in capsys.readouterr().err


def test_what_the_work_returns_is_the_status_and_a_bug_keeps_its_traceback() -> None:
    assert exit_status(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("command", "code", "ending"),
    [
        ('"$0" -c "$1" >&-', "raise SystemExit(exit_status(lambda: print(1) or 3))", (3, "")),  # closed
        ('"$0" -c "$1" >/dev/full', "raise SystemExit(exit_status(lambda: print('x') or 0))",
         (1, "error: cannot write: no space left on device\n")),
        ('"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}',  # a reader who leaves is no error
         "raise SystemExit(exit_status(lambda: [print('line') for _ in range(100000)] and 0))", (1, "")),
        ('"$0" -c "$1"', "show_log(20); logging.info('read \\x1b[2J'); warn('left out: \\x9b')",
         (0, "read \\x1b[2J\nwarning: left out: \\x9b\n")),
    ],
    ids=["closed", "full", "left", "escaped"],
)  # fmt: skip
def test_what_a_command_prints(command: str, code: str, ending: tuple[int, str]) -> None:
    words = ["bash", "-c", command, sys.executable, START + code]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == ending
