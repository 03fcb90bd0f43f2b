"""Schedulers: what each does for a sweep, the fake one of the tests among them, and Slurm's commands in particular."""

import re

import pytest

from tests.conftest import each_row, refused, values_of
from tests.sweeps.fake_scheduler import FakeScheduler, bare_run
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.local import LocalScheduler
from topr_exp.sweeps.resume import recompose
from topr_exp.sweeps.run_status import RunState, RunStatus, read_status
from topr_exp.sweeps.slurm import SlurmScheduler, max_array_size
from topr_exp.sweeps.sweep import SCRIPTS
from topr_exp.types import ConfigError

SCHEDULERS = {"local": LocalScheduler, "slurm": SlurmScheduler, "fake": FakeScheduler}


def cluster(*settings):
    return recompose(["cluster=slurm"], settings)


def states_at_slurm(folder):
    """What Slurm says of a run."""
    return SlurmScheduler().states([bare_run(folder, job="17_0")])


def bare_runs(folder, count):
    return [bare_run(folder / "sweep" / str(number), number) for number in range(1, count + 1)]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_starts_or_queues_every_run_and_cancels_what_waits(name, programs, tmp_path, capsys):
    scheduler = SCHEDULERS[name]()
    settings = recompose(["cluster=local"], ["cluster.jobs=2"]) if name == "local" else cluster()
    runs = bare_runs(tmp_path, 2)
    for run in runs:
        run.settings = {"cluster": {"processes": 1}}
    scheduler.check_available()
    assert scheduler.states(runs) == JobStates({})

    scheduler.submit(runs, settings)

    jobs = scheduler.states(runs)
    statuses = [read_status(run, jobs) for run in runs]
    if name == "local":  # each began at once, and failed for want of settings
        assert values_of(statuses, "state") == ["failed", "failed"]
        assert capsys.readouterr().out.count(" failed (") == 2
    else:
        assert values_of(statuses, "state") == ["queued", "queued"]
        assert values_of(statuses, "error") == ["Priority", "Priority"]
        assert len(set(values_of(statuses, "job_id"))) == 2
    assert scheduler.cancel(statuses, None) == []
    assert scheduler.states(runs) == JobStates({})


# ---- submission to Slurm


def test_a_sweep_is_as_many_arrays_as_it_needs_and_each_run_has_its_place(programs, tmp_path, capsys):
    runs = bare_runs(tmp_path, 5)

    SlurmScheduler().submit(runs, cluster())

    assert "submitted to Slurm: arrays 100 of 2, 101 of 2, 102 of 1 runs\n" in capsys.readouterr().out
    assert [array.partition("%")[0] for array in programs.options("array")] == ["0-1", "0-1", ""]
    first, second, third = programs.options("job-name")
    assert values_of(runs, "job") == [f"{first}_0", f"{first}_1", f"{second}_0", f"{second}_1", f"{third}_0"]


def test_all_arrays_together_run_as_many_at_once_as_the_settings_allow(programs, tmp_path):
    SlurmScheduler().submit(bare_runs(tmp_path, 5), cluster("cluster.jobs=1"))

    assert programs.options("array") == ["0-1%1", "0-1%1", ""]
    assert programs.options("dependency") == ["", "afterany:100", "afterany:101"]


SETTINGS = """
timeout_min=20 nodes=2 gpus_per_node=4 threads=3 setup=[echo] additional_parameters={partition:a100,account:us}
"""
OPTIONS = """
account=us cpus-per-task=3 gpus-per-node=4 nodes=2 ntasks-per-node=4 open-mode=append partition=a100 signal=USR2@300
time=20
"""  # the signal comes a quarter of the time limit before it


def test_each_setting_of_a_cluster_reaches_sbatch(programs, tmp_path):
    settings = [f"cluster.{setting}" for setting in SETTINGS.split()]

    SlurmScheduler().submit(bare_runs(tmp_path, 1), cluster(*settings))

    for option in OPTIONS.split():
        name, _, value = option.partition("=")
        assert programs.options(name) == [value]
    (script,) = (programs.folder / "submitted").iterdir()
    text = script.read_text()
    assert "\n#SBATCH --requeue\n" in text
    assert "\n#SBATCH --error" not in text, "both streams are in one log"
    assert "\necho\nexport OMP_NUM_THREADS=3\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n" in text
    assert " --kill-on-bad-exit=1 " in text


OF_JOB = """
SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=6 SLURM_MEM_PER_CPU=4000 SLURM_CPU_BIND=quiet SRUN_CPUS_PER_TASK=1 SUBMITIT_FOLDER=x
WANDB_SERVICE=x
"""
OF_USER = "SLURM_CONF=slurm.conf SBATCH_ACCOUNT=us WANDB_PROJECT=ours"


def test_a_job_inherits_nothing_of_the_job_that_submits_it(programs, tmp_path, variables):
    """As srun's memory per CPU, which excludes the memory per node that the new job asks for."""
    words = [*OF_JOB.split(), *OF_USER.split()]
    variables.update(word.split("=") for word in words)
    all_variables = dict(variables)
    programs.write("sbatch", f"env >{tmp_path}/inherited; echo Submitted batch job 8")

    def inherited():
        SlurmScheduler().submit(bare_runs(tmp_path, 1), cluster())
        return [word for word in words if word in (tmp_path / "inherited").read_text().splitlines()]

    assert inherited() == OF_USER.split()
    assert dict(variables) == all_variables
    del variables["SLURM_JOB_ID"]
    assert "SLURM_CPU_BIND=quiet" in inherited(), "outside a job it is the user's"


def test_a_setting_counts_more_than_a_variable_of_sbatchs(programs, tmp_path, variables):
    """sbatch prefers its variables to the script in which the settings are."""
    variables |= {"SBATCH_PARTITION": "cpu", "SBATCH_TIMELIMIT": "9", "SBATCH_JOB_NAME": "mine", "SBATCH_ACCOUNT": "us"}
    variables["SBATCH_GPUS_PER_NODE"] = "8"
    programs.write("sbatch", f"env | grep ^SBATCH_ | sort >{tmp_path}/inherited; echo Submitted batch job 8")

    for words, gpus in (([], "SBATCH_GPUS_PER_NODE=8\n"), (["cluster.gpus_per_node=1"], "")):
        settings = cluster("cluster.additional_parameters={partition: gpu}", *words)
        SlurmScheduler().submit(bare_runs(tmp_path, 1), settings)
        assert (tmp_path / "inherited").read_text() == f"SBATCH_ACCOUNT=us\n{gpus}"


def test_a_preview_has_the_settings_and_the_arrays(programs):
    settings = cluster("cluster.threads=4", "cluster.additional_parameters={partition: gpu}")
    words = "device=auto threads=4 jobs=256 timeout_min=240 nodes=1 additional_parameters={partition: gpu}"

    assert SlurmScheduler().preview(2, settings) == f"cluster: {words}"
    *_, arrays = SlurmScheduler().preview(5, settings).splitlines()
    assert arrays == "3 arrays of 2, 2, 1 runs: an array of this Slurm has at most 2 (MaxArraySize)"


def test_a_refusal_says_what_is_submitted(programs, tmp_path):
    programs.allow(1)
    runs = bare_runs(tmp_path, 5)

    with refused("Slurm refuses the jobs: too many jobs; 2 of 5 runs are submitted; resume submits", ConfigError):
        SlurmScheduler().submit(runs, cluster())

    assert all(values_of(runs, "job")), "a job may be there whose answer was lost"


def test_a_limit_of_jobs_is_told_with_the_way_around_it(programs, tmp_path):
    """Slurm's sentence names all limits, whichever it is; the line before it has the limit."""
    sentence = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    for limit, hint in (
        ("QOSMaxSubmitJobPerUserLimit", "; launch a part of the sweep at a time, under the same name"),
        ("QOSMaxWallDurationPerJobLimit", ""),
    ):
        lines = f'echo "sbatch: error: {limit}" >&2; echo "sbatch: error: Batch job submission failed: {sentence}" >&2'
        programs.write("sbatch", f"{lines}; exit 1")
        with refused(f"{limit}; .*{re.escape(sentence)}{hint}$", ConfigError):
            SlurmScheduler().submit(bare_runs(tmp_path, 5), cluster())


def test_a_job_that_is_not_to_be_requeued_asks_for_nothing_else(programs, tmp_path):
    SlurmScheduler().submit(bare_runs(tmp_path, 1), cluster("cluster.additional_parameters={no-requeue: true}"))

    (script,) = (programs.folder / "submitted").iterdir()
    assert re.findall("^#SBATCH --.*requeue", script.read_text(), re.MULTILINE) == ["#SBATCH --no-requeue"]


def test_without_slurms_commands_nothing_is_submitted(variables):
    variables["PATH"] = "/nonexistent"

    with refused("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local", ConfigError):
        SlurmScheduler().check_available()


SIZES = """
1001 | "bf_interval=1" | 1001
4000001 | "bf_interval=1,max_array_tasks=500" | 500
100 | "max_array_tasks=500" | 100
"""


@each_row("limit parameters size", SIZES, literals=True)
def test_the_size_of_an_array_is_the_clusters(limit, parameters, size, programs):
    programs.configure(limit, parameters)

    assert max_array_size() == size


def test_where_users_may_not_run_scontrol_arrays_have_slurms_default_size(programs):
    (programs.folder / "scontrol").chmod(0o644)

    assert max_array_size() == 1001


# ---- Slurm's queue


QUEUE = """
17_0|17_0|RUNNING|None
17_1|17_1|PENDING|Limit
17_2|17_2|COMPLETING|None
18_N/A|18|PENDING|None
"""


def test_states_are_what_squeue_answers(programs, tmp_path):
    (programs.folder / "queue").write_text(QUEUE.lstrip())

    assert states_at_slurm(tmp_path).by_job == {
        "17_0": JobState("17_0", "running"),
        "17_1": JobState("17_1", "queued", "Limit"),
        "17_2": JobState("17_2", "ending"),
        "18_0": JobState("18", "queued"),
    }


def test_a_task_asks_about_its_own_job_alone(programs, tmp_path, variables):
    """Among all jobs of a cluster it would be looked for as long as hundreds are preempted at once."""
    programs.write("squeue", 'case "$*" in *"-j 17_1"*) echo "17_1|17_1|RUNNING|None" ;; esac')
    variables["TOPR_JOB_ID"] = "17_1"

    assert SlurmScheduler().states([bare_run(tmp_path, job="17_1")]) == JobStates({"17_1": JobState("17_1", "running")})


def test_jobs_of_another_cluster_are_looked_up_and_cancelled_there(programs, tmp_path):
    elsewhere = bare_run(tmp_path / "1", job="17_0")
    elsewhere.settings = {"cluster": {"additional_parameters": {"clusters": "far"}}}
    here = bare_run(tmp_path / "2", job="18_0")
    programs.write("squeue", 'case "$*" in *--clusters=far*) echo "CLUSTER: far"; echo "17_0|5_0|PENDING|None" ;; esac')

    jobs = SlurmScheduler().states([elsewhere, here])

    assert jobs == JobStates({"17_0": JobState("5_0", "queued")})
    statuses = [read_status(elsewhere, jobs), RunStatus(here, RunState.QUEUED, job_id="6")]
    assert SlurmScheduler().cancel(statuses, None) == []
    assert programs.calls() == ["scancel --clusters=far 5_0", "scancel 6"]


@pytest.mark.parametrize(
    "squeue, reason",
    [
        ("echo error: no controller >&2; exit 1", "error: no controller"),
        pytest.param("exec sleep 600", "no answer within 10 s", marks=pytest.mark.extended),
    ],
)
def test_a_slurm_that_is_down_or_slow_is_said_to_be_silent(squeue, reason, programs, tmp_path):
    programs.write("squeue", squeue)

    problem = f"Slurm does not answer ({reason}); going on by the runs' files"
    assert states_at_slurm(tmp_path) == JobStates({}, problem)


def test_cancel_and_requeue_name_the_job(programs, tmp_path, variables):
    variables["SLURM_JOB_ID"] = "21"
    statuses = [RunStatus(bare_run(tmp_path), RunState.QUEUED, job_id=job_id) for job_id in ("17_0", "", "17_2")]

    assert SlurmScheduler().cancel(statuses, None) == []
    assert SlurmScheduler().requeue() == ""

    assert programs.calls() == ["scancel 17_0 17_2", "scontrol requeue 21"]
    programs.write("scancel", "echo gone >&2; exit 1")
    with refused("scancel: gone"):
        SlurmScheduler().cancel(statuses, None)


def test_a_jobs_log_is_the_arrays_for_its_place_or_that_of_a_job_alone(tmp_path):
    folder = tmp_path / SCRIPTS / "array"
    folder.mkdir(parents=True)
    (folder / "11_0_0_log.out").touch()
    third_run = bare_run(tmp_path / "run", job="array_2")

    assert SlurmScheduler().logs(bare_run(tmp_path / "run", job="array_0")) == folder / "11_0_0_log.out"
    assert SlurmScheduler().logs(third_run) is None
    (folder / "12_0_log.out").touch()
    assert SlurmScheduler().logs(third_run) == folder / "12_0_log.out"
