"""Analyses on all cores end with the command that started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sweep_tools import wait_for

pytestmark = pytest.mark.extended

PROGRAM = """
import os, pathlib, sys, time
from reproduce.processes import map_on_cores

def work(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    map_on_cores(work, [sys.argv[1]] * 2)
"""


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_killed_command(blow, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "pids"
    folder.mkdir()
    command = [sys.executable, str(program), str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    wait_for(lambda: any(folder.iterdir()))
    pids = [path.name for path in folder.iterdir()]
    assert all(map(is_alive, pids))

    process.send_signal(blow)

    assert process.wait(60) == -blow
    wait_for(lambda: not any(map(is_alive, pids)), 60)  # which fails after a minute
    assert not any(map(is_alive, pids))
