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

STOPPED = "error: stopped by SIGTERM; the same command goes on from there\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("seed=x: expected a whole number"), 2, "error: seed=x: expected a whole number\n"),
        (TOPRError("disk full"), 1, "error: disk full\n"),
        (Interrupted(signal.SIGTERM), 128 + signal.SIGTERM, STOPPED),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert exit_status(work) == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG])
def test_a_path_that_may_not_be_opened_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise OSError(number, os.strerror(number), "a/b")

    assert exit_status(work) == 1
    assert capsys.readouterr().err == f"error: cannot open a/b: {os.strerror(number).lower()}\n"


def test_a_command_without_an_output_ends_as_it_would_with_one() -> None:
    code = "from topr_exp.runtime.exit_status import exit_status; print(1); raise SystemExit(exit_status(lambda: 3))"
    done = subprocess.run(["bash", "-c", '"$0" -c "$1" >&-', sys.executable, code], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_full_disk_below_standard_output_is_one_line() -> None:
    code = (
        "from topr_exp.runtime.exit_status import exit_status; raise SystemExit(exit_status(lambda: print('x') or 0))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: cannot write: no space left on device\n")


def test_ctrl_c_says_that_a_command_goes_on_where_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert exit_status(work, resumes=True) == 130
    assert capsys.readouterr().err == "error: interrupted; the same command goes on where this one stopped\n"


def test_what_the_work_returns_is_the_status_and_a_bug_keeps_its_traceback() -> None:
    assert exit_status(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 // 0)


def test_warnings_and_what_is_logged_escape_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import logging; from topr_exp.runtime.exit_status import print_warning, show_log\n"
        "show_log(logging.INFO); logging.info('read \\x1b[2J'); print_warning('left out: \\x9b')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr().err == "read \\x1b[2J\nwarning: left out: \\x9b\n"


def test_a_reader_who_leaves_is_no_error() -> None:
    code = (
        "import sys; from topr_exp.runtime.exit_status import exit_status\n"
        "sys.exit(exit_status(lambda: [print('line') for _ in range(100000)] and 0))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1
