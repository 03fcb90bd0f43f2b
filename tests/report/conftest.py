"""A page of many runs, made once for all tests that look at it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.run_folders import make_sweep


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The page of 200 runs with 1,000 metric lines each, and the seconds that the command took."""
    folder = tmp_path_factory.mktemp("many")
    sweep = make_sweep(folder, 200, steps=1000)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "topr_exp.report", sweep], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sweep / "report" / "report.html", time.monotonic() - began
