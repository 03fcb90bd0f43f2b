"""Slurm's commands, with programs in their place that answer, and note the scripts that they get."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import refused
from tests.sweeps.fake_scheduler import bare_run
from topr_exp.runs.plan import recompose
from topr_exp.sweeps import slurm
from topr_exp.sweeps.arrays import Array, plan_arrays
from topr_exp.sweeps.clusters import SlurmCluster
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.run_status import RunState, RunStatus
from topr_exp.sweeps.slurm import SlurmScheduler, max_array_size
from topr_exp.sweeps.sweep import SCRIPTS, Run
from topr_exp.types import ConfigError, TOPRError

CONFIG = "AccountingStorageType = none\nMaxArraySize            = {}\nSchedulerParameters     = {}\n"
SBATCH = """#!/bin/sh
number=$(ls {folder}/submitted | wc -l)
[ $number -lt {allowed} ] || {{ echo "sbatch: error: too many jobs" >&2; exit 1; }}
cp $1 {folder}/submitted/$number
echo "Submitted batch job $((100 + number))"
"""
DOWN = "slurm_load_jobs error: Unable to contact slurm controller"


class SlurmPrograms:
    """A folder of programs of a Slurm with arrays of at most 2 jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "submitted").mkdir()
        self.configure(2, "bf_interval=1")
        self.write("scontrol", f"#!/bin/sh\n[ \"$1 $2\" = 'show config' ] && cat {folder}/config")
        self.write("srun", "#!/bin/sh\n")
        self.allow(9)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def configure(self, max_array_size: int, parameters: str) -> None:
        (self.folder / "config").write_text(CONFIG.format(max_array_size, parameters))

    def allow(self, submissions: int) -> None:
        self.write("sbatch", SBATCH.format(folder=self.folder, allowed=submissions))

    def options(self) -> list[dict[str, str]]:
        """The options of each script that sbatch got."""
        scripts = sorted((self.folder / "submitted").iterdir())
        return [dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", path.read_text(), re.MULTILINE)) for path in scripts]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmPrograms:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return SlurmPrograms(tmp_path)


def cluster(*settings: str) -> SlurmCluster:
    settings_of_cluster: Any = recompose(["cluster=slurm"], settings)
    return settings_of_cluster


def five_runs(folder: Path) -> list[Run]:
    return [bare_run(folder / "five" / str(number), number) for number in range(1, 6)]


# ---- submission


def test_a_sweep_is_as_many_arrays_as_it_needs_and_each_run_has_its_place(programs, tmp_path, capsys):
    runs = five_runs(tmp_path)
    SlurmScheduler().submit(runs, cluster())
    assert "submitted to Slurm: arrays 100 of 2, 101 of 2, 102 of 1 runs\n" in capsys.readouterr().out
    options = programs.options()
    assert [script.get("array", "").partition("%")[0] for script in options] == ["0-1", "0-1", ""]
    first, second, third = [script["job-name"] for script in options]
    assert [run.job for run in runs] == [f"{first}_0", f"{first}_1", f"{second}_0", f"{second}_1", f"{third}_0"]


def test_a_preview_names_the_arrays_where_one_is_not_enough(programs: SlurmPrograms) -> None:
    line = "3 arrays of 2, 2, 1 runs: an array of this Slurm has at most 2 (MaxArraySize)"
    assert SlurmScheduler().preview(5, cluster()) == line
    programs.configure(5, "")
    assert SlurmScheduler().preview(5, cluster()) == ""
    assert not programs.options()


def test_all_arrays_together_run_as_many_at_once_as_the_settings_allow(programs, tmp_path):
    SlurmScheduler().submit(five_runs(tmp_path), cluster("cluster.jobs=1"))
    options = programs.options()
    assert [script.get("array") for script in options] == ["0-1%1", "0-1%1", None]
    assert [script.get("dependency") for script in options] == [None, "afterany:100", "afterany:101"]


def test_a_refusal_says_what_is_submitted(programs: SlurmPrograms, tmp_path: Path) -> None:
    programs.allow(1)
    runs = five_runs(tmp_path)
    refusal = "Slurm refuses the jobs: too many jobs; 2 of 5 runs are submitted; resume submits the others"
    with refused(refusal, ConfigError):
        SlurmScheduler().submit(runs, cluster())
    assert all(run.job for run in runs), "a job may be there whose answer was lost"


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (CONFIG.format(1001, ""), 1001),
        (CONFIG.format(4_000_001, "bf_interval=1,max_array_tasks=500"), 500),
        (CONFIG.format(100, "max_array_tasks=500"), 100),
        (CONFIG.format(0, ""), 1),
        ("", slurm.DEFAULT_MAX_ARRAY_SIZE),
    ],
)
def test_the_size_of_an_array_is_the_clusters(config: str, size: int, programs: SlurmPrograms) -> None:
    (programs.folder / "config").write_text(config)
    assert max_array_size() == size


def test_arrays_hold_all_runs_and_share_what_may_run_at_once() -> None:
    assert plan_arrays(1100, 1001, 256) == [Array(0, 1001, 128, None), Array(1001, 1100, 128, None)]
    assert plan_arrays(5, 2, 2) == [Array(0, 2, 1, None), Array(2, 4, 1, None), Array(4, 5, 1, 0)]
    assert plan_arrays(5, 5, 3) == [Array(0, 5, 3, None)]
    assert [array.parallel_runs for array in plan_arrays(6, 2, 8)] == [3, 3, 2]


# ---- the queue

QUEUE = "17_0|17_0|RUNNING|None\n17_1|17_1|PENDING|JobArrayTaskLimit\n17_2|17_2|COMPLETING|None\n18_N/A|18|PENDING|None"
STATES = {
    "17_0": JobState("17_0", "running"),
    "17_1": JobState("17_1", "queued", "JobArrayTaskLimit"),
    "17_2": JobState("17_2", "ending"),
    "18_0": JobState("18", "queued"),
}


@pytest.mark.parametrize(
    ("squeue", "expected"),
    [
        (f"cat <<'TEXT'\n{QUEUE}\nTEXT", JobStates(STATES)),
        ("true", JobStates({})),
        (f"echo {DOWN} >&2; exit 1", JobStates({}, f"Slurm does not answer ({DOWN}); going on by the runs' files")),
        (
            "exec sleep 600",
            JobStates({}, "Slurm does not answer (no answer within 0.5 s); going on by the runs' files"),
        ),
        (None, JobStates({}, "Slurm does not answer (squeue is not on PATH); going on by the runs' files")),
    ],
    ids=["known", "over", "down", "slow", "missing"],
)
def test_states_are_what_squeue_answers(squeue, expected, programs, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "ANSWER_SECONDS", 0.5 if squeue == "exec sleep 600" else 60.0)
    if squeue is None:
        monkeypatch.setenv("PATH", "/nonexistent")
    else:
        programs.write("squeue", f"#!/bin/sh\n{squeue}")
    assert SlurmScheduler().states([bare_run(tmp_path, job="17_0")]) == expected
    assert SlurmScheduler().states([bare_run(tmp_path)]) == JobStates({}), "of a run without a job nothing is asked"


def test_cancel_and_requeue_name_the_job(programs, tmp_path, monkeypatch):
    for name in ("scancel", "scontrol"):
        programs.write(name, f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/asked')
    statuses = [RunStatus(bare_run(tmp_path), RunState.QUEUED, job_id=job_id) for job_id in ("17_0", "", "17_2")]
    assert SlurmScheduler().cancel(statuses, None) == []
    monkeypatch.setenv("SLURM_JOB_ID", "21")
    assert SlurmScheduler().requeue(bare_run(tmp_path)) == ""
    assert (tmp_path / "asked").read_text() == "scancel 17_0 17_2\nscontrol requeue 21\n"
    programs.write("scancel", "#!/bin/sh\necho gone >&2; exit 1")
    with refused("scancel: gone", TOPRError):
        SlurmScheduler().cancel(statuses, None)


def test_where_there_is_no_sbatch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with refused("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local", ConfigError):
        SlurmScheduler().check_available()


def test_a_jobs_log_is_the_arrays_for_its_place_or_that_of_a_job_alone(tmp_path: Path) -> None:
    folder = tmp_path / SCRIPTS / "array"
    folder.mkdir(parents=True)
    (folder / "11_0_0_log.out").touch()
    first, third = (bare_run(tmp_path / "run", job=job) for job in ("array_0", "array_2"))
    assert SlurmScheduler().logs(first) == folder / "11_0_0_log.out"
    assert SlurmScheduler().logs(third) is None
    (folder / "12_0_log.out").touch()
    assert SlurmScheduler().logs(third) == folder / "12_0_log.out"
