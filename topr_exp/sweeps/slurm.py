"""Slurm: runs of a sweep as one array of jobs, by sbatch; and the state of jobs, by squeue.

A run knows its job by the array's name and its place there. Both are written down before sbatch is asked, so that no
launcher that is killed loses a job. Nothing relies on an answer about jobs: Slurm may be slow, or down. Then the runs'
files have to do.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from topr_exp.config.cluster import SlurmCluster
from topr_exp.runs import attempt
from topr_exp.runtime.exit_status import exit_status, plural
from topr_exp.runtime.files import disk_errors, write_text
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps.sweep import LOG, SCRIPTS, Run, read_run
from topr_exp.types import ConfigError, TOPRError

SECONDS, SUBMIT_SECONDS = 10.0, 120.0  # an answer may take, and sbatch's, before it counts as none
SAME = ("partition", "account", "qos", "constraint", "nodes", "gpus_per_node", "cpus_per_task")  # as for sbatch

# ---- the state of jobs


class Entry(NamedTuple):
    """A job that waits or runs."""

    id: str  # as squeue prints it
    state: str  # Slurm's word, as in RUNNING
    reason: str = ""  # why it waits


class Queue(NamedTuple):
    """Slurm's answer about some jobs."""

    entries: dict[str, Entry]  # by a run's job; of those that ended there is none
    note: str = ""  # why there is no answer: then any of them may wait or run


def query(jobs: Iterable[str]) -> Queue:
    """The state of these jobs; never raises."""
    names = {job.rpartition("_")[0] for job in jobs}
    if not names:
        return Queue({})
    rows, problem = run_slurm("squeue", "-h", "-r", "-n", ",".join(sorted(names)), "-o", "%j_%K|%i|%T|%r")
    if problem:
        return Queue({}, f"Slurm does not answer ({problem}); going on by the runs' files")
    return Queue({row[0]: Entry(*row[1:]) for row in rows})


def run_slurm(*command: str) -> tuple[list[list[str]], str]:
    """The lines of a command's answer, split at `|`, and what went wrong in one line ("" when nothing did)."""
    seconds = SUBMIT_SECONDS if command[0] == "sbatch" else SECONDS
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except FileNotFoundError:
        return [], f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return [], f"no answer within {seconds:g} s"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [line.split("|") for line in done.stdout.splitlines() if line.strip()], ""


# ---- submitting


def require() -> None:
    """Raise ConfigError where jobs can't be submitted."""
    if shutil.which("sbatch") is None:
        raise ConfigError("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local")


def submit(sweep: Path, runs: Sequence[Run], cluster: SlurmCluster) -> str:
    """Submit runs as one array; returns a line that says so. ConfigError with Slurm's own words."""
    array = "-".join(["topr", *re.findall(r"[\w.]+", sweep.name), secrets.token_hex(4)])
    script = sweep.resolve() / SCRIPTS / f"{array}.sh"
    with disk_errors(f"write in {sweep}"):
        script.parent.mkdir(exist_ok=True)
    write_text(script, script_of(script, runs, cluster))
    for place, run in enumerate(runs):
        run.job = f"{array}_{place}"
        run.save()
    rows, problem = run_slurm("sbatch", "--parsable", str(script))
    if "partition" in problem and (known := run_slurm("sinfo", "-h", "-o", "%R")[0]):
        problem += (
            f" (cluster.partition={cluster.partition}; there are: {', '.join(sorted({row[0] for row in known}))})"
        )
    if problem:
        raise ConfigError(f"Slurm refuses the jobs: {problem}")
    follow = f"follow it: python -m topr_exp.sweeps status {sweep}"
    return f"submitted to Slurm: array {rows[0][0]} of {plural(len(runs), 'run')}\n{follow}"


def script_of(script: Path, runs: Sequence[Run], cluster: SlurmCluster) -> str:
    """The script of an array, each of whose jobs is a run and each of whose tasks is one of its processes."""
    cpus, tasks = cluster.cpus_per_task, cluster.gpus_per_node or 1
    options = {
        "job-name": script.stem,
        "array": f"0-{len(runs) - 1}%{cluster.array_parallelism}",
        "output": str(script.with_suffix("")).replace("%", "%%") + "_%a.log",
        "open-mode": "append",
        "time": cluster.timeout_min,
        "signal": f"USR2@{cluster.signal_delay_s}",
        "ntasks-per-node": tasks,
        "mem": f"{cluster.mem_gb}G" if cluster.mem_gb else None,
        **{key: getattr(cluster, key) for key in SAME},
        "requeue": True,  # Slurm may be set up never to queue a preempted job again unless the job asks for it
        **(cluster.additional_parameters or {}),
    }
    lines = ["#!/bin/bash"]
    for key, value in options.items():
        if value is not None:
            flag = f"#SBATCH --{key.replace('_', '-')}"
            lines.append(flag if value is True else f"{flag}={shlex.quote(str(value))}")
    lines += [
        f"export WORLD_SIZE={cluster.world_size} LOCAL_WORLD_SIZE={tasks}",
        "export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=$((20000 + SLURM_JOB_ID % 40000))",
    ]
    task = ["srun", "--kill-on-bad-exit=1"]  # the other tasks would wait for one that failed
    if cpus:
        lines.append(f"export OMP_NUM_THREADS={cpus}")
        task.append(f"--cpus-per-task={cpus}")  # which srun no longer takes over (Slurm 22.05)
    task += [sys.executable, "-m", __name__]
    lines += cluster.setup or []
    lines.append(f"folders=({shlex.join(str(run.folder.resolve()) for run in runs)})")
    lines.append(f'{shlex.join(task)} "${{folders[$SLURM_ARRAY_TASK_ID]}}"')
    return "\n".join(lines) + "\n"


# ---- in a job


def work(folder: Path) -> int:
    """A task of a job: a process of the run in this folder. What others than the first print stays in the job's log.

    Raises what the run raises, so that Slurm sees it failed.
    """
    from topr_exp.sweeps.processes import redirect, run_processes

    run, rank = read_run(folder), int(os.environ["SLURM_PROCID"])
    assert run is not None, f"{folder} is no run of a sweep any more"
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": os.environ["SLURM_LOCALID"]}
    if rank == 0:
        print(f"the run's output goes on in {folder / LOG}", flush=True)
        redirect(folder / LOG)
    try:
        run_processes(run.enter())
    except Interrupted as stop:
        if rank != 0:
            return 0  # as done: a task that fails would end the first, which has the job queued again
        queue_again(stop.signal, run)
        raise
    return 0


def queue_again(reason: signal.Signals, run: Run) -> None:
    """Requeue this job, which a signal stopped with a checkpoint; TOPRError after too many time limits.

    After SIGTERM a cancelled job must not come back, and one that is preempted at once Slurm queues again itself. But
    one that still runs has been given notice (GraceTime).
    """
    job = os.environ["SLURM_JOB_ID"]
    if reason == signal.SIGUSR2:
        with (run.folder.parent / SCRIPTS / f"{run.job}.limits").open("a") as limits:
            limits.write("|")
            if limits.tell() > run.settings["cluster"]["max_num_timeout"]:
                error = TOPRError("out of time, more often than cluster.max_num_timeout allows")
                attempt.record_error(run.folder, error)
                raise error
    at_once = reason in (signal.SIGUSR1, signal.SIGUSR2)  # the cluster wants the node back, the time limit is near
    if at_once or run_slurm("squeue", "-h", "-j", job, "-o", "%T")[0] == [["RUNNING"]]:
        _, problem = run_slurm("scontrol", "requeue", job)
        print(problem or "queued again", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(partial(work, Path(sys.argv[1])), resumes=True))
