"""Sweeps that are larger than Slurm's arrays, with programs in place of Slurm's that answer and note what is asked."""

import re
import sys
from pathlib import Path

import pytest

from tests.sweep_tools import TINY, launched
from topr_exp.__main__ import main
from topr_exp.sweeps import slurm
from topr_exp.sweeps.slurm import Part, largest_array, plan_arrays

CONFIG = "AccountingStorageType = none\nMaxArraySize            = {}\nSchedulerParameters     = {}\n"
SBATCH = """#!/bin/sh
number=$(ls {folder}/submitted | wc -l)
[ $number -lt {allowed} ] || {{ echo "sbatch: error: too many jobs" >&2; exit 1; }}
cp $1 {folder}/submitted/$number
echo "Submitted batch job $((100 + number))"
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs of a Slurm with arrays of at most 2 jobs, where sbatch notes the scripts it gets."""
    (tmp_path / "submitted").mkdir()
    (tmp_path / "config").write_text(CONFIG.format(2, "bf_interval=1"))
    program(tmp_path, "scontrol", f"#!/bin/sh\n[ \"$1 $2\" = 'show config' ] && cat {tmp_path}/config")
    for silent in ("squeue", "srun"):
        program(tmp_path, silent, "#!/bin/sh\n")
    program(tmp_path, "sbatch", SBATCH.format(folder=tmp_path, allowed=9))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def sweep_of(output: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Launch a sweep of five seeds; returns the exit status."""
    given = [*TINY, "seed=0,1,2,3,4", f"output_dir={output}", "name=five", "cluster=slurm", *words]
    monkeypatch.setattr(sys, "argv", ["topr_exp", "-m", *given])
    return main()


def options(cluster: Path) -> list[dict[str, str]]:
    """What each script that sbatch got asks of Slurm."""
    scripts = sorted((cluster / "submitted").iterdir())
    return [dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", path.read_text(), re.MULTILINE)) for path in scripts]


def test_a_sweep_is_as_many_arrays_as_it_needs_and_each_run_has_its_place(cluster, tmp_path, monkeypatch, capsys):
    assert sweep_of(tmp_path / "out", monkeypatch) == 0
    told = "submitted to Slurm: arrays 100 of 2, 101 of 2, 102 of 1 runs\n"
    assert told in capsys.readouterr().out
    asked = options(cluster)
    assert [each.get("array", "").partition("%")[0] for each in asked] == ["0-1", "0-1", ""]
    jobs = [run["job"] for run in launched(tmp_path / "out" / "five")]
    names = [each["job-name"] for each in asked]
    assert jobs == [f"{names[0]}_0", f"{names[0]}_1", f"{names[1]}_0", f"{names[1]}_1", f"{names[2]}_0"]


def test_a_preview_names_the_arrays_and_submits_none(cluster, tmp_path, monkeypatch, capsys):
    assert sweep_of(tmp_path / "out", monkeypatch, "dry_run=true") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2] == "3 arrays of 2, 2, 1 runs: an array of this Slurm has at most 2 (MaxArraySize)"
    assert not options(cluster)
    (cluster / "config").write_text(CONFIG.format(5, ""))
    assert sweep_of(tmp_path / "out", monkeypatch, "dry_run=true") == 0
    assert "arrays" not in capsys.readouterr().out


def test_no_more_runs_at_once_than_were_asked_for_over_all_arrays(cluster, tmp_path, monkeypatch):
    assert sweep_of(tmp_path / "out", monkeypatch, "cluster.array_parallelism=1") == 0
    asked = options(cluster)
    assert [each.get("array") for each in asked] == ["0-1%1", "0-1%1", None]
    assert [each.get("dependency") for each in asked] == [None, "afterany:100", "afterany:101"]


def test_what_slurm_refuses_in_the_middle_is_said_and_submitted_by_a_resume(cluster, tmp_path, monkeypatch, capsys):
    program(cluster, "sbatch", SBATCH.format(folder=cluster, allowed=1))
    assert sweep_of(tmp_path / "out", monkeypatch) == 2
    line = "error: Slurm refuses the jobs: too many jobs; 2 of 5 runs are submitted; resume submits the others\n"
    assert capsys.readouterr().err == line
    assert len(launched(tmp_path / "out" / "five")) == 5


@pytest.mark.parametrize(
    ("text", "largest"),
    [
        (CONFIG.format(1001, ""), 1001),
        (CONFIG.format(4_000_001, "bf_interval=1,max_array_tasks=500"), 500),
        (CONFIG.format(100, "max_array_tasks=500"), 100),
        (CONFIG.format(0, ""), 1),
        ("", slurm.DEFAULT_LARGEST_ARRAY),
    ],
)
def test_the_size_of_an_array_is_the_cluster_s(text: str, largest: int, cluster: Path) -> None:
    (cluster / "config").write_text(text)
    assert largest_array() == largest


def test_parts_of_a_sweep_hold_all_runs_and_share_what_may_run_at_once() -> None:
    assert plan_arrays(1100, 1001, 256) == [Part(0, 1001, 128, None), Part(1001, 1100, 128, None)]
    assert plan_arrays(5, 2, 2) == [Part(0, 2, 1, None), Part(2, 4, 1, None), Part(4, 5, 1, 0)]
    assert plan_arrays(5, 5, 3) == [Part(0, 5, 3, None)]
    assert [part.at_once for part in plan_arrays(6, 2, 8)] == [3, 3, 2]
