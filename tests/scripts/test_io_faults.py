"""A run of which one call to the disk fails, given again, has every file of an undisturbed run."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import io_faults
from tests.conftest import ROOT

# A call of each kind in a short run, then a point again against a run of whose files one is to differ.
POINTS = """
import sys
from pathlib import Path
from scripts import io_faults
root = Path(sys.argv[1])
io_faults.SETTINGS = [word for word in io_faults.SETTINGS if not word.startswith("iterations")]
for point, problem in io_faults.try_points(root, io_faults.one_of_each_kind):
    print(point, problem, sep=": ")
undisturbed = io_faults.file_digests(root / "out")
weights = next(name for name in undisturbed if name.endswith("model.safetensors"))
print(io_faults.problem_after(root / "other", point, {**undisturbed, weights: "another hash"}))
"""


def test_a_run_that_continues_after_a_failed_call_has_the_files_of_an_undisturbed_one(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", POINTS, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    *outcomes, changed_file = process.stdout.splitlines()
    assert [outcome for outcome in outcomes if not outcome.endswith(": None")] == []
    assert {outcome.split()[0] for outcome in outcomes} == io_faults.ERRORS.keys()
    assert changed_file.startswith("other files than in a whole run: ")
    assert changed_file.endswith("model.safetensors")


@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_so_it_is_at_three_hundred_points() -> None:
    command = [sys.executable, "-m", "scripts.io_faults"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "\n300 points, 0 with other files or errors" in process.stdout, process.stdout + process.stderr
    assert process.returncode == 0
