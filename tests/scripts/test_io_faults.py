"""A run of which one call to the disk fails, given again, has every file of a run that nothing disturbed."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import io_faults
from tests.conftest import ROOT

# Each error of each kind of call in one iteration, then a point again against a run of whose files one is to differ.
POINTS = """
import sys
from pathlib import Path
from scripts import io_faults
root = Path(sys.argv[1])
io_faults.SETTINGS = [word for word in io_faults.SETTINGS if not word.startswith("iterations")]
for point, wrong in io_faults.try_points(root, io_faults.one_of_each):
    print(point, wrong, sep=": ")
whole = io_faults.contents(root / "out")
weights = next(name for name in whole if name.endswith("model.safetensors"))
print(io_faults.wrong_after(root / "other", point, {**whole, weights: "another hash"}))
"""


def test_a_run_that_goes_on_after_a_failed_call_has_the_files_of_a_whole_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", POINTS, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *outcomes, other = done.stdout.splitlines()
    assert [outcome for outcome in outcomes if not outcome.endswith(": None")] == []
    calls = {" ".join(word for word in outcome.split() if not word.isdecimal()) for outcome in outcomes}
    names = {(kind, name) for kind, names in io_faults.FAULTS.items() for name in names}
    assert {tuple(call.removesuffix(": None").split()[:2]) for call in calls} == names
    assert {"read ESTALE from there on: None", "close EIO: None", "lock ENOLCK from there on: None"} <= calls
    assert other.startswith("other files than in a whole run: ")
    assert other.endswith("model.safetensors")


@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_so_it_is_at_three_hundred_points() -> None:
    command = [sys.executable, "-m", "scripts.io_faults"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "\n300 points, 0 with other files or errors" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
