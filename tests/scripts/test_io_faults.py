"""A run of which one call to the disk fails, given again, has every file of a run that nothing disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# A run that replaces files in place: half of one stays where the process is killed.
IN_PLACE = """
import sys
from pathlib import Path
from scripts import io_faults
from topr_exp.runtime import files
files.write_whole = lambda path, data: path.write_bytes(data)
root = Path(sys.argv[1])
for name in ("whole", *range(16, 24)):
    (root / str(name)).mkdir()
io_faults.run_forked(root / "whole" / "out")
whole = io_faults.contents(root / "whole" / "out")
for number in range(16, 24):  # the store's first tables are among them
    if found := io_faults.wrong_after(root / str(number) / "out", ("write", number, "kill"), whole):
        break
print(found)
"""


@pytest.mark.parametrize("points", ["30", pytest.param("300", marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])])
def test_a_run_that_goes_on_after_a_failed_call_has_the_files_of_a_whole_one(points: str) -> None:
    command = [sys.executable, "-m", "scripts.io_faults", "--points", points]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"\n{points} points, 0 with other files or errors" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_file_that_is_replaced_in_place_is_found(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", IN_PLACE, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert any(word in found.stdout for word in ("other files", "damaged")), found.stdout
