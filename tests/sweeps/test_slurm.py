"""Sweeps on a real Slurm of one node, without accounting: whatever happens to the jobs, the results are the same.

`scripts/slurm-for-tests.sh` starts it; where Debian's Slurm or root is missing, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.slurm import NEEDS_SLURM, running_slurm
from tests.sweep_tools import SLOW, TINY, attempts, command, launch, manifest, result, results, start, steps, wait_for
from tests.sweeps.test_group import assert_same_run

LONG = "optim.epochs=30"  # 60 updates
SLOWLY = [LONG, *SLOW]  # for runs that a test disturbs
SLURM = ["cluster=slurm", "cluster.cpus_per_task=1"]

pytestmark = NEEDS_SLURM


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as path:
        os.environ["SLURM_CONF"] = path
        yield
        del os.environ["SLURM_CONF"]


@pytest.fixture(autouse=True)
def no_jobs_left() -> Iterator[None]:
    yield
    ask("scancel", "--user=root")
    wait_for(lambda: not ask("squeue", "--noheader"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the long runs of seeds 0, 1 and 2 compute when nothing happens to them, by seed."""
    output = tmp_path_factory.mktemp("undisturbed")
    done = launch(output, LONG, "seed=0,1,2", "cluster.threads=1", "cluster.jobs=2")
    assert done.returncode == 0, done.stderr
    return by_seed(output / "runs")


def by_seed(sweep: Path) -> dict[str, Any]:
    return {name.split("_s")[-1].split("_")[0]: found for name, found in results(sweep).items()}


def ask(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def submit(output: Path, *arguments: object) -> tuple[Path, str]:
    """Submit a sweep without waiting; its folder and Slurm's id."""
    done = launch(output, *SLURM, *arguments, "cluster.wait=false")
    assert done.returncode == 0, done.stderr
    sweep = output / "runs"
    return sweep, manifest(sweep)["submissions"][-1]["slurm"]


def jobs() -> list[list[str]]:
    """Id, state, start and reason of every job, after sparing those that were queued again the two minutes of Slurm.

    Not all of them: a job that starts again in the second in which it ended is lost ("Job credential revoked").
    """
    found = [line.split(" ", 3) for line in ask("squeue", "--noheader", "--array", "--format=%i %T %S %r").splitlines()]
    for job, state, begin, reason in found:
        waits = state == "PENDING" and reason == "BeginTime" and begin != "N/A"
        if waits and datetime.fromisoformat(begin) - datetime.now() > timedelta(seconds=10):
            update = ["scontrol", "update", f"JobId={job}", "StartTime=now+3"]
            subprocess.run(update, capture_output=True, timeout=120)
    return found


def finish(seconds: float = 480.0) -> None:
    """Wait until Slurm has no job left."""
    end = time.monotonic() + seconds
    while left := jobs():
        assert time.monotonic() < end, left
        time.sleep(0.5)


def attempt(folder: Path, number: int) -> None:
    """Wait for an attempt of the only run to begin."""

    def begun() -> bool:
        jobs()
        state = json.loads((folder / "state.json").read_text())
        return bool(state["attempt"]["number"] == number and state["status"] == "running")

    wait_for(begun)


def at_step(sweep: Path, number: int) -> Path:
    """The folder of the only run, once it has done so many updates."""
    folder = sweep / manifest(sweep)["runs"][0]["folder"]
    wait_for(lambda: steps(folder) >= number)
    return folder


def test_a_sweep_of_six_is_one_array_and_gives_what_a_local_sweep_gives(tmp_path: Path) -> None:
    arguments = ["algo=topr,sft", "seed=0,1,2"]
    where = [*SLURM, "cluster.array_parallelism=2", "cluster.additional_parameters={comment: tried}"]
    where += [f"cluster.setup=['touch {tmp_path}/prepared']"]
    process = start("topr_exp", "-m", *TINY, f"output_dir={tmp_path}", *where, *arguments)
    most, sbatch = 0, ""
    while process.poll() is None:
        most = max(most, len(ask("squeue", "--noheader", "--array", "--states=R", "--format=%i").splitlines()))
        time.sleep(0.2)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "array" in out
    assert "6 runs: 6 done" in out
    assert most == 2
    (submission,) = manifest(tmp_path / "runs")["submissions"]
    assert submission["runs"] == [1, 2, 3, 4, 5, 6]
    (sbatch,) = [path.read_text() for path in (tmp_path / "runs" / ".submitit").glob("*/*submission.sh")]
    assert "#SBATCH --array=0-5%2" in sbatch
    assert "#SBATCH --requeue" in sbatch
    assert "#SBATCH --comment=tried" in sbatch
    assert (tmp_path / "prepared").exists()
    assert set(attempts(tmp_path / "runs").values()) == {1}
    local = launch(tmp_path / "local", *arguments, "cluster.threads=1")
    assert local.returncode == 0, local.stderr
    assert results(tmp_path / "runs") == results(tmp_path / "local" / "runs")


def test_a_single_run_is_submitted_too_and_a_second_launch_joins_it(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOWLY, "seed=0", *SLURM]
    first = command("topr_exp", *arguments, "cluster.wait=false")
    assert first.returncode == 0, first.stderr
    second = command("topr_exp", *arguments)
    assert second.returncode == 0, second.stderr
    assert "0 to start" in second.stdout
    assert len(manifest(tmp_path / "runs")["submissions"]) == 1
    assert set(attempts(tmp_path / "runs").values()) == {1}
    assert by_seed(tmp_path / "runs") == {"0": undisturbed["0"]}


def test_requeue(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    sweep, job = submit(tmp_path, *SLOWLY, "seed=1")
    for number in (1, 2):
        folder = at_step(sweep, 5 * number)
        ask("scontrol", "requeue", job)
        attempt(folder, number + 1)
    finish()
    assert set(attempts(sweep).values()) == {3}
    assert by_seed(sweep) == {"1": undisturbed["1"]}


@pytest.mark.parametrize("partition", ["low", "grace"])
def test_preemption(tmp_path: Path, undisturbed: dict[str, Any], partition: str) -> None:
    sweep, _ = submit(tmp_path, *SLOWLY, "seed=2", f"cluster.partition={partition}", "cluster.cpus_per_task=4",
                        "cluster.threads=1")  # fmt: skip
    folder = at_step(sweep, 5)
    ask("sbatch", "-p", "high", "-c", "4", "-o", "/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: json.loads((folder / "state.json").read_text())["status"] == "stopped")
    finish()
    assert set(attempts(sweep).values()) == {2}
    assert by_seed(sweep) == {"2": undisturbed["2"]}


def test_preemption_that_ends_in_sigkill_goes_on_from_the_last_checkpoint(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    stubborn = ["algo._target_=tests.stubborn.Stubborn", f"+algo.mark={tmp_path}/mark", "+algo.seconds=300"]
    sweep, _ = submit(tmp_path, LONG, "seed=0", *stubborn, "cluster.partition=low", "cluster.cpus_per_task=4",
                        "cluster.threads=1")  # fmt: skip
    folder = at_step(sweep, 2)
    wait_for(lambda: len((tmp_path / "mark").read_bytes()) == 4)
    ask("sbatch", "-p", "high", "-c", "4", "-o", "/dev/null", "--wrap", "sleep 1")
    finish()
    assert "stopped by SIGTERM" not in (folder / "log.txt").read_text()
    assert set(attempts(sweep).values()) == {2}
    assert result(folder)["weights"] == undisturbed["0"]["weights"]
    assert result(folder)["updates"] == undisturbed["0"]["updates"]


def test_the_time_limit_with_several_restarts(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    sweep, job = submit(tmp_path, *SLOWLY, "seed=0")
    for number in (1, 2, 3):
        folder = at_step(sweep, 5 * number)
        ask("scancel", "--signal=USR2", job)  # what Slurm sends before the time limit
        attempt(folder, number + 1)
    finish()
    assert set(attempts(sweep).values()) == {4}
    assert by_seed(sweep) == {"0": undisturbed["0"]}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_time_limit_itself(tmp_path: Path) -> None:
    """Two minutes a job, told to stop one minute before that, for a run that sleeps for two minutes in all."""
    long = ["optim.epochs=600", "checkpoint.every_seconds=3600"]
    limits = ["cluster.timeout_min=2", "cluster.signal_delay_s=60", "cluster.max_num_timeout=100"]
    sweep, _ = submit(tmp_path, *long, *SLOW, *limits)
    finish(2400)
    assert min(attempts(sweep).values()) >= 3
    alone = launch(tmp_path / "alone", *long, "cluster.threads=1")
    assert alone.returncode == 0, alone.stderr
    assert by_seed(sweep) == by_seed(tmp_path / "alone" / "runs")


def test_the_time_limit_once_too_often_is_an_error_that_resume_mends(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    sweep, job = submit(tmp_path, *SLOWLY, "seed=0", "cluster.max_num_timeout=0", "cluster.timeout_min=5")
    folder = at_step(sweep, 1)
    ask("scancel", "--signal=USR2", job)
    finish()
    shown = command("topr_exp.sweeps", "status", sweep)
    assert "failed" in shown.stdout
    assert "out of time" in (folder / "error.txt").read_text().splitlines()[0]
    done = command("topr_exp.sweeps", "resume", sweep, "cluster.timeout_min=60", "cluster.wait=true")
    assert done.returncode == 0, done.stderr
    assert by_seed(sweep) == {"0": undisturbed["0"]}


def test_one_cancelled_and_one_that_raises_hide_no_other(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOWLY, "seed=0,1", "optim.lr=1e-4,1e30", *SLURM]
    launcher = start("topr_exp", "-m", *arguments)
    sweep = tmp_path / "runs"
    runs = wait_for(lambda: manifest(sweep)["runs"])
    wait_for(lambda: steps(sweep / runs[2]["folder"]) >= 1)
    job = manifest(sweep)["submissions"][0]["slurm"]
    ask("scancel", f"{job}_2")
    out, err = launcher.communicate(timeout=500)
    assert launcher.returncode == 1
    assert "4 runs: 1 done, 2 failed, 1 stopped" in out
    assert "accounting does not answer" in err or "Slurm: CANCELLED" in out
    for run in (runs[1], runs[3]):
        error = (sweep / run["folder"] / "error.txt").read_text()
        assert "not finite" in error.splitlines()[0]
        assert "Traceback" in error
    again = command("topr_exp.sweeps", "resume", sweep)
    assert again.returncode == 1
    assert "4 runs: 2 done, 2 failed" in again.stdout
    found = by_seed(sweep)
    assert found == {"0": undisturbed["0"], "1": undisturbed["1"]}
    assert attempts(sweep)[runs[0]["folder"]] == 1
    assert attempts(sweep)[runs[2]["folder"]] == 2


def test_a_killed_launcher_leaves_its_jobs_to_resume(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    arguments = [*TINY, f"output_dir={tmp_path}", *SLOWLY, "seed=0,1,2", *SLURM, "cluster.array_parallelism=1"]
    launcher = start("topr_exp", "-m", *arguments)
    sweep = tmp_path / "runs"
    wait_for(lambda: manifest(sweep)["submissions"][0]["slurm"])
    refused = command("topr_exp", "-m", *arguments)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is being launched by process" in refused.stderr
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate(timeout=300)
    wait_for(lambda: any(steps(path) for path in sweep.glob("topr*")))
    shown = command("topr_exp.sweeps", "status", sweep).stdout
    assert "1 running, 2 queued" in shown
    done = command("topr_exp.sweeps", "resume", sweep)
    assert done.returncode == 0, done.stderr
    assert "0 to start" in done.stdout
    assert len(manifest(sweep)["submissions"]) == 1
    assert set(attempts(sweep).values()) == {1}
    assert by_seed(sweep) == undisturbed


def test_a_launcher_killed_between_sbatch_and_its_note_submits_nothing_twice(tmp_path: Path) -> None:
    sweep, job = submit(tmp_path, "seed=0,1", "cluster.array_parallelism=1")
    contents = manifest(sweep)
    contents["submissions"][0]["slurm"] = None
    (sweep / "sweep.json").write_text(json.dumps(contents))
    done = command("topr_exp.sweeps", "resume", sweep, "cluster.wait=true")
    assert done.returncode == 0, done.stderr
    assert [each["slurm"] for each in manifest(sweep)["submissions"]] == [job]
    assert set(attempts(sweep).values()) == {1}


def test_twenty_jobs_share_one_empty_store(tmp_path: Path) -> None:
    arguments = [f"seed={','.join(map(str, range(20)))}", "sampler.prompts_per_shard=2"]
    done = launch(tmp_path, *SLURM, *arguments)
    assert done.returncode == 0, done.stderr
    assert "20 runs: 20 done" in done.stdout
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
    assert len(summaries) == 20
    alone = launch(tmp_path / "alone", "seed=0,1", "sampler.prompts_per_shard=2")
    assert alone.returncode == 0, alone.stderr
    one = [json.loads(path.read_text()) for path in (tmp_path / "alone" / "runs").glob("*/summary.json")]
    for count in ("tokens_sampled", "tokens_scored"):
        assert sum(each["tokens"][count] for each in summaries) == sum(each["tokens"][count] for each in one)
    assert set(attempts(tmp_path / "runs").values()) == {1}


def test_cancel_stops_the_runs_and_frees_the_queue(tmp_path: Path) -> None:
    sweep, job = submit(tmp_path, *SLOWLY, "seed=0,1", "cluster.array_parallelism=1")
    at_step(sweep, 1)
    done = command("topr_exp.sweeps", "cancel", sweep)
    assert done.returncode == 0, done.stderr
    assert f"run 1 ({job}_0), run 2 ({job}_1)" in done.stdout
    finish(120)
    assert "2 runs: 2 stopped" in command("topr_exp.sweeps", "status", sweep).stdout


def test_an_unknown_partition_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = launch(tmp_path, *SLURM, "seed=0,1", "cluster.partition=fast")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cluster.partition=fast; there are: grace, high, low, main" in done.stderr
    assert not ask("squeue", "--noheader")


def test_a_slurm_that_does_not_answer_leaves_the_files_to_speak(tmp_path: Path) -> None:
    sweep, _ = submit(tmp_path, "seed=0")
    finish()
    dead = tmp_path / "slurm.conf"
    text = Path(os.environ["SLURM_CONF"]).read_text()
    dead.write_text("\n".join("SlurmctldPort=1" if "SlurmctldPort" in line else line for line in text.splitlines()))
    contents = manifest(sweep)
    contents["runs"][0]["folder"] = "never-started"
    (sweep / "sweep.json").write_text(json.dumps(contents))
    shown = command("topr_exp.sweeps", "status", sweep, SLURM_CONF=str(dead), PATH=os.environ["PATH"])
    assert shown.returncode == 0
    assert "Slurm does not answer" in shown.stderr
    assert "1 run: 1 new" in shown.stdout
    refused = command("topr_exp.sweeps", "resume", sweep, SLURM_CONF=str(dead))
    assert refused.returncode == 1
    assert "some runs may be queued already" in refused.stderr


def test_a_run_of_two_tasks_is_the_run_of_one(tmp_path: Path) -> None:
    """On two GPUs that Slurm believes in and torch does not: the tasks compute on the CPU."""
    alone = launch(tmp_path / "one", "cluster.threads=1")
    assert alone.returncode == 0, alone.stderr
    both = launch(tmp_path / "two", *SLURM, "cluster.gpus_per_node=2", "cluster.parallel=fsdp")
    assert both.returncode == 0, both.stderr
    (name,) = results(tmp_path / "one" / "runs")
    folder = tmp_path / "two" / "runs" / name
    (script,) = [path.read_text() for path in (tmp_path / "two" / "runs" / ".submitit").glob("*/*submission.sh")]
    assert "#SBATCH --ntasks-per-node=2" in script
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2
    assert_same_run(folder, tmp_path / "one" / "runs" / name)


def test_tasks_that_slurm_binds_to_cores_take_all_of_theirs(tmp_path: Path) -> None:
    """Not a part of them, as processes that share theirs do. Both tasks have the machine's first two here."""
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("this process may not use both of the machine's first two CPUs")
    seen = tmp_path / "seen"
    seen.mkdir()
    looking = ["algo._target_=tests.slow.Looking", f"+algo.folder={seen}"]
    two = ["cluster=slurm", "cluster.cpus_per_task=2", "cluster.gpus_per_node=2"]
    bound = 'cluster.setup=["export SLURM_CPU_BIND=mask_cpu:0x3,0x3"]'
    with running_slurm(tmp_path / "slurm", TASK_PLUGIN="task/affinity") as path:
        done = launch(tmp_path / "output", *two, bound, *looking, SLURM_CONF=path)
    assert done.returncode == 0, done.stderr
    assert {file.name: file.read_text() for file in seen.iterdir()} == {"0": "2 of [0, 1]", "1": "2 of [0, 1]"}


def test_a_task_that_dies_ends_the_others_and_the_run_goes_on(tmp_path: Path) -> None:
    sweep, _ = submit(tmp_path, *SLOWLY, "cluster.gpus_per_node=2")
    folder = at_step(sweep, 2)
    leader = json.loads((folder / "state.json").read_text())["attempt"]["pid"]
    tasks = ask("pgrep", "-f", "submitit.core._submit").split()
    others = [int(task) for task in tasks if int(task) != leader and is_task(int(task), tmp_path)]
    assert len(others) == 1
    os.kill(others[0], signal.SIGKILL)
    finish()
    if (folder / "DONE").exists():  # Slurm's SIGTERM came before the connection broke: the job was queued again
        assert json.loads((folder / "state.json").read_text())["attempt"]["number"] == 2
    else:
        assert "another one of the run ended" in (folder / "error.txt").read_text()
        again = command("topr_exp.sweeps", "resume", sweep, "cluster.wait=true")
        assert again.returncode == 0, again.stderr
    alone = launch(tmp_path / "one", *SLOWLY, "cluster.threads=1")
    assert alone.returncode == 0, alone.stderr
    assert_same_run(folder, tmp_path / "one" / "runs" / folder.name)


def is_task(pid: int, tmp_path: Path) -> bool:
    """Whether a process is a task of this test's job, and no shell around one."""
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"python" in arguments[0] and str(tmp_path).encode() in b" ".join(arguments)
