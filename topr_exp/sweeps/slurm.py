"""Slurm: runs of a sweep as one job array, through Submitit; and the state of jobs, by squeue and sacct.

Nothing relies on an answer about jobs: Slurm may be slow, down, or without accounting. Then the runs' files have to do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topr_exp.config.cluster import SlurmCluster
from topr_exp.runs import attempt
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps.sweep import LOG, SUBMITIT, Run
from topr_exp.types import ConfigError, TOPRError

SECONDS = 10.0  # an answer may take, before it counts as none
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
TIME_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # the time limit is near, or the cluster wants the node back

# ---- the state of jobs


class Entry(NamedTuple):
    """A job as Slurm has it."""

    state: str  # Slurm's word, as in RUNNING or CANCELLED
    reason: str = ""  # why it waits

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def active(self) -> bool:
        """True while it waits or runs, so that it may still finish without being started again."""
        return self.pending or self.state in AT_WORK


@dataclass
class Queue:
    """Slurm's answer about some jobs."""

    entries: dict[str, Entry] = field(default_factory=dict)  # by Slurm's id, as in 17_3
    answered: bool = True  # False: a job that is not among the entries may be active all the same
    note: str = ""  # what could not be asked


def query(ids: Iterable[str]) -> Queue:
    """The state of these jobs (ids as in 17 or 17_3); never raises."""
    wanted, queue = set(ids), Queue()
    if not wanted:
        return queue
    rows, problem = run_slurm("squeue", "-h", "-r", "-t", "all", "-j", arrays(wanted), "-o", "%i|%T|%r")
    if problem and "Invalid job id" not in problem:  # which is what it says when all of them ended long ago
        return Queue(answered=False, note=f"Slurm does not answer ({problem}); going on by the runs' files")
    queue.entries = {row[0]: Entry(row[1], row[2]) for row in rows if row[0] in wanted}
    if gone := wanted - queue.entries.keys():
        rows, problem = run_slurm("sacct", "-n", "-P", "-X", "-j", arrays(gone), "-o", "JobID,State")
        if problem:
            queue.note = f"Slurm's accounting does not answer (sacct: {problem}); going on by the runs' files"
        queue.entries |= {row[0]: Entry(row[1].split(" ")[0]) for row in rows if row[0] in gone}
    return queue


def arrays(ids: Iterable[str]) -> str:
    return ",".join(sorted({name.split("_")[0] for name in ids}))


def run_slurm(*command: str) -> tuple[list[list[str]], str]:
    """The lines of a command's answer, split at `|`, and what went wrong in one line ("" when nothing did)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return [], f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return [], f"no answer within {SECONDS:g} s"
    except OSError as error:
        return [], str(error)
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return [line.split("|") for line in done.stdout.splitlines() if line.strip()], ""


# ---- submitting


def require() -> None:
    """Raise ConfigError where jobs can't be submitted."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local")


def submit(sweep: Path, runs: Sequence[Run], cluster: SlurmCluster) -> str:
    """Submit runs as one array and note its id with each; returns a line that says so.

    Raises ConfigError, with Slurm's own words, when it refuses.
    """
    name = f"topr-{os.urandom(4).hex()}"
    for index, run in enumerate(runs):  # before Slurm knows: `recover` finds the jobs by name if this process is killed
        run.job, run.slurm = f"{name}_{index}" if len(runs) > 1 else name, None
        run.save()
    tasks = [dataclasses.replace(run, folder=run.folder.resolve()) for run in runs]
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # sbatch's words come with the exception
            jobs = make_executor(sweep, cluster, name).map_array(Task(), tasks)
    except Exception as error:
        for run in runs:
            run.job = None
            run.save()
        raise ConfigError(describe_refusal(error, cluster)) from None
    for run, job in zip(runs, jobs, strict=True):
        run.slurm = job.job_id
        run.save()
    array = jobs[0].job_id.split("_")[0]
    where = f"partition {cluster.partition}" if cluster.partition else "the default partition"
    what = f"array {array} of {len(runs)} jobs" if len(runs) > 1 else f"job {array}"
    return f"submitted to Slurm: {what}, {where}\nfollow it: python -m topr_exp.sweeps status {sweep}"


def make_executor(sweep: Path, cluster: SlurmCluster, name: str) -> Any:
    """Submitit's executor with the settings of the cluster."""
    import submitit

    setup = list(cluster.setup or [])
    if cluster.cpus_per_task:
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")  # srun no longer takes it over (Slurm 22.05)
    same = ("timeout_min", "nodes", "gpus_per_node", "cpus_per_task", "mem_gb")
    of_slurm = ("partition", "account", "qos", "constraint", "signal_delay_s", "array_parallelism")
    values = {key: getattr(cluster, key) for key in same}
    values |= {f"slurm_{key}": getattr(cluster, key) for key in of_slurm}
    counted = {"slurm_max_num_timeout": cluster.max_num_timeout}
    executor = submitit.AutoExecutor(folder=sweep / SUBMITIT / "%j", cluster="slurm", **counted)
    executor.update_parameters(
        **{key: value for key, value in values.items() if value is not None},
        name=name,
        tasks_per_node=cluster.gpus_per_node or 1,
        slurm_srun_args=["--kill-on-bad-exit=1"],  # the other tasks would wait for one that failed
        slurm_setup=setup or None,
        # Slurm may be set up never to queue a preempted job again unless the job asks for it.
        slurm_additional_parameters={"requeue": True, **(cluster.additional_parameters or {})},
    )
    return executor


def describe_refusal(error: Exception, cluster: SlurmCluster) -> str:
    """Why sbatch refused, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    reason = "; ".join(line.split("error:", 1)[1].strip() for line in lines) or attempt.message(error)
    if "partition" in reason and (rows := run_slurm("sinfo", "-h", "-o", "%R")[0]):
        reason += f" (cluster.partition={cluster.partition}; there are: {', '.join(sorted({row[0] for row in rows}))})"
    return f"Slurm refuses the jobs: {reason}"


def recover(runs: Iterable[Run]) -> None:
    """Find the jobs of runs whose id was not noted, because the launcher was killed right then.

    Raises TOPRError where Slurm does not answer: to take its silence for a no would submit the runs twice.
    """
    lost = {run.job: run for run in runs if run.job and not run.slurm}
    for name in {job.split("_")[0] for job in lost}:
        rows, problem = run_slurm("squeue", "-h", "-t", "all", "-n", name, "-o", "%F")
        if problem:
            raise TOPRError(f"{problem}: some runs may be queued already; try again when Slurm answers")
        for job, run in lost.items():
            if job.split("_")[0] == name:
                run.job, run.slurm = (job, job.replace(name, rows[0][0])) if rows else (None, None)
                run.save()


# ---- in a job


class Task:
    """What Submitit pickles: a run. At a time limit it is queued again as it is, and Submitit counts that."""

    def __call__(self, run: Run) -> None:
        """The run, on its nodes; raises what the run raises, so that Slurm sees it failed.

        Every task of the job is a process of the run. What the others than the first print stays in Submitit's logs.
        """
        from submitit.helpers import TorchDistributedEnvironment

        from topr_exp.sweeps import processes

        place = TorchDistributedEnvironment()
        place.export(set_cuda_visible_devices=False, overwrite=True)
        if place.rank == 0:
            print(f"the run's output goes on in {run.folder / LOG}", flush=True)
            processes.redirect(run.folder / LOG)
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        processes.limit_threads(int(cpus) if cpus else None)
        try:
            processes.run_processes(run.enter())
        except Interrupted as stop:
            print(stop, file=sys.stderr, flush=True)
            if place.rank != 0:
                return  # as done: a task that fails would end the first, which has the job queued again
            queue_again(stop.signal, run.folder)
            raise SystemExit(128 + stop.signal) from None

    def checkpoint(self, run: Run) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, run)


def queue_again(reason: signal.Signals, folder: Path) -> None:
    """Requeue this job, which a signal stopped with a checkpoint; TOPRError after too many time limits.

    After SIGTERM a cancelled job must not come back, and one that is preempted at once Slurm queues again itself. But
    one that still runs has been given notice (GraceTime).
    """
    if reason in TIME_SIGNALS:
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.utils import UncompletedJobError

        handler: Any = signal.getsignal(JobEnvironment._usr_sig())
        try:
            handler(reason)  # Submitit's, which ends this process
        except UncompletedJobError as stopped:
            error = TOPRError(f"out of time, more often than cluster.max_num_timeout allows ({stopped})")
            attempt.record_error(folder, error)
            raise error from None
    job = os.environ["SLURM_JOB_ID"]
    if run_slurm("squeue", "-h", "-j", job, "-o", "%T")[0] == [["RUNNING"]]:
        _, problem = run_slurm("scontrol", "requeue", job)
        print(problem or "queued again", file=sys.stderr, flush=True)
