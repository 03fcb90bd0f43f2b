"""Commands of `make gpu-check`: they end with all that they started, and say why they failed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu_check_runs import Failed, Place, TimeOver, execute, processes
from tests.sweep_tools import wait_for

STARTS_OTHERS = """
import subprocess, sys, time
for session in (False, True):  # as a run's ranks, and as its engines
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=session).pid)
sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("seconds", "limit"), [(600, 4), (2, 60)], ids=["too long", "in time"])
def test_all_that_a_command_started_ends_with_it(tmp_path: Path, seconds: int, limit: int) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None, time.monotonic() + limit)
    command = [sys.executable, "-c", STARTS_OTHERS, str(seconds)]
    if seconds > limit:
        with pytest.raises(TimeOver, match=r"not done within the step's limit; it\.log says how far it came"):
            execute(place, "it", command)
        assert time.monotonic() < place.until + 10
    else:
        execute(place, "it", command)
    started = [int(line) for line in (tmp_path / "it.log").read_text().split()]
    assert len(started) == 2
    assert wait_for(lambda: not {*started} & {*processes()}, 5)


def test_a_command_that_fails_is_its_last_line(tmp_path: Path) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None)
    (tmp_path / "it.log").write_text("a line of an earlier check\n")
    with pytest.raises(Failed, match=r"^no output \(status 3, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(Failed, match=r"^no GPU \(status 1, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit('no GPU')"])


def test_a_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    for process, state in {17: "S 2 3 4", 18: "Z 2 3 4"}.items():
        (tmp_path / str(process)).mkdir()
        (tmp_path / str(process) / "stat").write_text(f"{process} (UVM (global) queue) {state} 0 -1")
    (tmp_path / "19").mkdir()  # has ended meanwhile
    assert processes(tmp_path) == {17: (2, 4)}
    assert processes()[os.getpid()] == (os.getppid(), os.getsid(0))
