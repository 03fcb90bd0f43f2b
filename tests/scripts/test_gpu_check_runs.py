"""Commands of `make gpu-check`: they end with all that they started, and say why they failed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from scripts.gpu_check_runs import Failed, Place, TimeOver, execute
from tests.sweep_tools import wait_for

STARTS_ANOTHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(("seconds", "limit"), [(600, 4), (0, 60)], ids=["too long", "in time"])
def test_all_that_a_command_started_ends_with_it(tmp_path: Path, seconds: int, limit: int) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None, time.monotonic() + limit)
    command = [sys.executable, "-c", STARTS_ANOTHER, str(seconds)]
    if seconds > limit:
        with pytest.raises(TimeOver, match=r"not done within the step's limit; it\.log says how far it came"):
            execute(place, "it", command)
    else:
        execute(place, "it", command)
    state = Path(f"/proc/{int((tmp_path / 'it.log').read_text())}/stat")
    assert wait_for(lambda: not state.exists() or " Z " in state.read_text(), 5)


def test_a_command_that_fails_is_its_last_line(tmp_path: Path) -> None:
    place = Place(tmp_path, "small", 0, 0.0, None)
    (tmp_path / "it.log").write_text("a line of an earlier check\n")
    with pytest.raises(Failed, match=r"^no output \(status 3, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(Failed, match=r"^no GPU \(status 1, it\.log\)$"):
        execute(place, "it", [sys.executable, "-c", "raise SystemExit('no GPU')"])
