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

    process.send_signal(blow)
    process.wait(60)

    wait_for(lambda: not any(is_alive(path.name) for path in folder.iterdir()), 60)
