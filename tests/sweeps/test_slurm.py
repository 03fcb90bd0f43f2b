"""Sweeps on a real Slurm of one node, without accounting: whatever happens to the jobs, the results are the same.

`scripts/slurm-for-tests.sh` starts it; where Debian's Slurm or root is missing, these tests are skipped.
"""

import os
import shutil
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.conftest import ROOT, last_of_each, read_json
from tests.processes import state_of
from tests.sweep_tools import (
    SLOW_LOSS,
    TINY,
    answer,
    attempts,
    command,
    launch,
    launched,
    result,
    results,
    slow,
    steps,
    wait_for,
)
from tests.sweeps.test_group import assert_same_run

LONG = "optim.epochs=8"  # 16 updates
ON_SLURM = ["cluster=slurm", "cluster.threads=1"]

SCRIPT = ROOT / "scripts/slurm-for-tests.sh"
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here ({', '.join(MISSING)} missing; see {SCRIPT.name})"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root"),
]


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    try:
        outcome = subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True, timeout=300)
        assert outcome.returncode == 0, outcome.stderr
        os.environ["SLURM_CONF"] = outcome.stdout.strip().removeprefix("export SLURM_CONF=")
        yield
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True, timeout=300)
        os.environ.pop("SLURM_CONF", None)


@pytest.fixture(autouse=True)
def no_jobs_left():
    yield
    ask("scancel", "--user=root")
    wait_for(lambda: not ask("squeue", "--noheader"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The long run of seed 0, when nothing happens to it."""
    output = tmp_path_factory.mktemp("undisturbed")
    outcome = launch(output, LONG, "cluster.threads=1")
    assert outcome.returncode == 0, outcome.stderr
    (run_result,) = results(output / "runs").values()
    return run_result


def ask(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def submit(output, *words):
    """Submit a sweep; its folder, Slurm's id of its first run, and that run's folder."""
    outcome = launch(output, *last_of_each([*ON_SLURM, *words]))
    assert outcome.returncode == 0, outcome.stderr
    sweep = output / "runs"
    kind, number, *_ = outcome.stdout.partition("to Slurm: ")[2].split()
    job = f"{number}_0" if kind == "array" else number
    return sweep, job, launched(sweep)[0]["folder"]


def jobs():
    """The ids of all jobs, after sparing those that were queued again the two minutes of Slurm.

    Not all of them: a job that starts again in the second in which it ended is lost ("Job credential revoked").
    """
    job_ids = []
    for line in ask("squeue", "--noheader", "--array", "--format=%i %T %S %r").splitlines():
        job, state, begin, reason = line.split(" ", 3)
        job_ids.append(job)
        waits = state == "PENDING" and reason == "BeginTime" and begin != "N/A"
        if waits and datetime.fromisoformat(begin) - datetime.now() > timedelta(seconds=10):
            update = ["scontrol", "update", f"JobId={job}", "StartTime=now+3"]
            subprocess.run(update, capture_output=True, timeout=120)
    return job_ids


def finish(seconds=480.0):
    wait_for(lambda: not jobs(), seconds)


def reach(folder, number):
    """Wait until a run has done so many updates."""
    wait_for(lambda: jobs() and steps(folder) >= number)


def status(sweep):
    return answer("topr_exp.sweeps", "status", sweep).stdout


def resume(sweep, *words):
    """Resume until all is done."""
    outcome = answer("topr_exp.sweeps", "resume", sweep, *words)
    assert outcome.returncode == 0, outcome.stderr
    finish()


def test_an_array_gives_what_a_local_sweep_gives_and_a_failed_run_hides_no_other(tmp_path):
    words = ["optim.lr=1e-4,1e30"]
    cluster = ["cluster.jobs=1", 'cluster.additional_parameters={comment: "was tried"}']

    sweep, job, _ = submit(tmp_path, *cluster, f"cluster.setup=['touch {tmp_path}/prepared']", *words)

    script = next((sweep / ".submitit").glob("*/*_submission.sh")).read_text()
    for option in ("--array=0-1%1", "--requeue", "--time=240", "--signal=USR2@600"):
        assert f"#SBATCH {option}\n" in script
    assert "Comment=was tried" in ask("scontrol", "show", "job", job)
    finish()
    assert "2 runs: 1 done, 1 failed" in status(sweep)
    assert (tmp_path / "prepared").exists()
    assert set(attempts(sweep).values()) == {1}
    failed = launched(sweep)[1]["folder"]
    error = (failed / "error.txt").read_text()
    assert "not finite" in error.splitlines()[0]
    assert "Traceback" in error
    log_lines = (failed / "log.txt").read_text().splitlines()
    assert log_lines[-1] == error.splitlines()[0]
    local = launch(tmp_path / "local", *words, "cluster.threads=1")
    assert local.returncode == 1, local.stderr
    assert results(sweep) == results(tmp_path / "local/runs")


def test_a_job_whose_launcher_was_killed_is_found_and_its_run_started_again(tmp_path, undisturbed):
    """The launcher of a single run, before it knows the job's id and Submitit has named the job's pickle."""
    words = [*TINY, f"output_dir={tmp_path}", LONG, *ON_SLURM]
    sweep = tmp_path / "runs"
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@"; kill -9 $PPID')
    (tmp_path / "sbatch").chmod(0o755)

    killed = command("topr_exp", *words, PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (job,) = jobs()
    second_launch = answer("topr_exp", *words)
    assert "0 to start" in second_launch.stdout, second_launch.stderr
    assert job in second_launch.stdout
    cancelled = answer("topr_exp.sweeps", "cancel", sweep)
    assert f"run 1 ({job})" in cancelled.stdout, cancelled.stderr
    finish()
    assert "1 to start" in answer("topr_exp", *words).stdout
    finish()
    assert answer("topr_exp", *words).returncode == 0
    assert result(launched(sweep)[0]["folder"]) == undisturbed


@pytest.mark.parametrize("partition", ["low", "grace"])
def test_a_run_that_is_preempted_at_once_or_with_notice_goes_on(partition, tmp_path, undisturbed):
    options = f"cluster.additional_parameters={{partition: {partition}, exclusive: true}}"
    sweep, _, folder = submit(tmp_path, LONG, *slow(tmp_path / "brake"), options)
    reach(folder, 5)

    ask("sbatch", "-p", "high", "-c", "4", "-o", "/dev/null", "--wrap", "sleep 1")
    finish()

    assert "stopped by SIGTERM" in (folder / "log.txt").read_text()
    assert set(attempts(sweep).values()) == {2}
    assert result(folder) == undisturbed


def test_cancel_frees_the_queue_and_this_machine_finishes(tmp_path, undisturbed):
    brake = tmp_path / "brake"
    sweep, job, folder = submit(tmp_path, LONG, *slow(brake), "seed=0,1", "cluster.jobs=1")
    reach(folder, 1)
    assert "1 running, 1 queued" in status(sweep)

    cancelled = answer("topr_exp.sweeps", "cancel", sweep)

    assert cancelled.returncode == 0, cancelled.stderr
    assert f"run 1 ({job}), run 2 ({job.replace('_0', '_1')})" in cancelled.stdout
    finish(120)
    assert "2 runs: 1 stopped, 1 new" in status(sweep)
    brake.unlink()
    resume(sweep, "cluster=local", SLOW_LOSS)
    assert result(folder) == undisturbed


def test_a_refusal_of_slurms_names_the_partitions_that_there_are(tmp_path):
    outcome = launch(tmp_path, *ON_SLURM, "seed=0,1", "cluster.additional_parameters={partition: fast}")

    assert (outcome.returncode, outcome.stderr.count("\n")) == (2, 1), outcome.stderr
    assert "partition=fast; there are: grace, high, low, main" in outcome.stderr
    assert not ask("squeue", "--noheader")


def test_a_run_of_two_tasks_is_the_run_of_one_though_a_task_dies(tmp_path):
    """On two GPUs that Slurm believes in and torch does not: the tasks compute on the CPU."""
    words = [LONG, *slow(tmp_path / "brake"), "cluster.device=cpu", "cluster.parallel=fsdp"]
    sweep, _, folder = submit(tmp_path, *words, "cluster.gpus_per_node=2")
    reach(folder, 2)
    leader = read_json(folder / "state.json")["attempt"]["pid"]
    tasks = list(map(int, ask("pgrep", "-f", "submitit.core._submit").split()))
    (second_task,) = [task for task in tasks if task != leader and is_task(task, tmp_path)]

    os.kill(second_task, signal.SIGKILL)
    finish()

    if not (folder / "DONE").exists():  # else Slurm's SIGTERM came before the connection broke: it was queued again
        assert "another one of the run ended" in (folder / "error.txt").read_text()
        resume(sweep, SLOW_LOSS)
    assert attempts(sweep) == {folder.name: 2}
    assert read_json(folder / "environment.json")["processes"] == 2
    single = launch(tmp_path / "one", LONG, SLOW_LOSS, "cluster.threads=1")
    assert single.returncode == 0, single.stderr
    assert_same_run(folder, launched(tmp_path / "one/runs")[0]["folder"])


def is_task(pid, tmp_path):
    """True for a task of this test's job, no shell around one."""
    if state_of(pid) == "Z":  # it ended since it was listed
        return False
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"python" in words[0] and str(tmp_path).encode() in b" ".join(words)
