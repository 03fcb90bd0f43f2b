"""A run of which one call to the disk fails, given again, has every file of an undisturbed run."""

import pytest

from scripts import io_faults
from tests.conftest import run_python

# A call of every second kind in a short run, then a point again against a run of whose files one is to differ.
POINTS = """
import sys
from pathlib import Path
from scripts import io_faults
root = Path(sys.argv[1])
io_faults.SETTINGS = [word for word in io_faults.SETTINGS if not word.startswith("iterations")]
for point, problem in io_faults.try_points(root, lambda counts: io_faults.one_of_each_kind(counts)[::2]):
    print(point, problem, sep=": ")
undisturbed = io_faults.file_digests(root / "out")
weights = next(name for name in undisturbed if name.endswith("model.safetensors"))
print(io_faults.problem_after(root / "other", point, {**undisturbed, weights: "another hash"}))
"""


def lines_printed(*arguments):
    """By a new Python, which has to end well; its forks share no threads with the tests."""
    process = run_python(*arguments)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()


def test_a_run_that_continues_after_a_failed_call_has_the_files_of_an_undisturbed_one(tmp_path):
    *outcomes, changed_file = lines_printed("-c", POINTS, tmp_path)

    assert [outcome.split()[0] for outcome in outcomes] == [*io_faults.ERRORS][::2]
    assert [outcome for outcome in outcomes if not outcome.endswith(": None")] == []
    assert changed_file.startswith("other files than in a whole run: ")
    assert changed_file.endswith("model.safetensors")


@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_so_it_is_at_three_hundred_points():
    assert "300 points, 0 with other files or errors" in lines_printed("-m", "scripts.io_faults")[-1]
