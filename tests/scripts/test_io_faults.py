"""A run of which one call to the disk fails, given again, has every file of a run that nothing disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# A run that is killed in its 9th write and given again, against a whole run, and against one of whose files differs.
COMPARE = """
import sys
from pathlib import Path
from scripts import io_faults
root = Path(sys.argv[1])
for name in ("whole", "same", "other"):
    (root / name).mkdir()
io_faults.run_forked(root / "whole" / "out")
whole = io_faults.contents(root / "whole" / "out")
print(io_faults.wrong_after(root / "same" / "out", ("write", 9, "kill"), whole))
weights = next(name for name in whole if str(name).endswith("model.safetensors"))
print(io_faults.wrong_after(root / "other" / "out", ("write", 9, "kill"), {**whole, weights: "another hash"}))
"""


@pytest.mark.parametrize("points", ["30", pytest.param("300", marks=[pytest.mark.extended, pytest.mark.timeout(3600)])])
def test_a_run_that_goes_on_after_a_failed_call_has_the_files_of_a_whole_one(points: str) -> None:
    command = [sys.executable, "-m", "scripts.io_faults", "--points", points]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"\n{points} points, 0 with other files or errors" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_file_that_differs_is_found(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", COMPARE, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    same, other = found.stdout.splitlines()[-2:]
    assert same == "None"
    assert "other files" in other
    assert "model.safetensors" in other
