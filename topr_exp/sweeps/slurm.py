"""Slurm: runs of a sweep as one array of jobs, or several where Slurm's are smaller, through Submitit.

A run knows its job by the array's name and its place there. Both are written down before Submitit is asked, so that a
killed launcher loses no job. Nothing relies on Slurm's answers: where it is slow or down, the runs' files have to do.
"""

import contextlib
import io
import math
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import printable
from topr_exp.runtime.files import open_own_file
from topr_exp.runtime.small_files import read_small_file
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps.clusters import SlurmCluster
from topr_exp.sweeps.sweep import LOG, SCRIPTS, Run, read_run, run_slurm
from topr_exp.types import ConfigError, TOPRError

REQUEUE_PAUSES = (2.0, 5.0, 10.0, 10.0, 0.0)  # seconds after tries that fail
MOST_AT_ONE_PLACE = 5  # SIGTERMs in a row, after which a job is not queued again
ARRAY_LIMITS = re.compile(r"\b(?:MaxArraySize\s*=\s*|max_array_tasks=)(\d+)")  # in what scontrol shows
DEFAULT_LARGEST_ARRAY = 1001  # jobs of an array, where the cluster's settings name no number


@dataclass(frozen=True)
class Part:
    """Runs that are one array."""

    first: int  # of the runs that are submitted
    end: int
    at_once: int  # runs of it at a time
    after: int | None  # the array whose end it waits for

    def __len__(self) -> int:
        return self.end - self.first


def require() -> None:
    """Raise ConfigError where jobs can't be submitted."""
    if shutil.which("sbatch") is None:
        raise ConfigError("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local")


def largest_array() -> int:
    """The number of jobs that an array may have, by Slurm's settings; Slurm's default where these don't tell."""
    rows, _ = run_slurm("scontrol", "show", "config")
    text = "\n".join("|".join(row) for row in rows)
    limits = [int(number) for number in ARRAY_LIMITS.findall(text)]
    return max(1, min(limits, default=DEFAULT_LARGEST_ARRAY))


def plan_arrays(runs: int, largest: int, at_once: int) -> list[Part]:
    """The arrays that so many runs are submitted as, of which `at_once` run at a time, over all arrays.

    Where there are more arrays than may run at once, an array waits for the end of an earlier one.
    """
    count = math.ceil(runs / largest)
    side_by_side = min(count, at_once)
    parts = []
    for number in range(count):
        place = number % side_by_side
        share = at_once // side_by_side + (place < at_once % side_by_side)
        after = number - side_by_side if number >= side_by_side else None
        parts.append(Part(number * largest, min(runs, (number + 1) * largest), share, after))
    return parts


def describe_arrays(runs: int, cluster: SlurmCluster) -> str:
    """The line of a preview on the arrays that the runs would be submitted as; "" where one is enough."""
    largest = largest_array()
    if runs <= largest:
        return ""
    sizes = [len(part) for part in plan_arrays(runs, largest, cluster.array_parallelism)]
    listed = f"{len(sizes)} arrays of {', '.join(map(str, sizes))} runs"
    return f"{listed}: an array of this Slurm has at most {largest} (MaxArraySize)"


def submit(sweep: Path, runs: Sequence[Run], cluster: SlurmCluster) -> str:
    """Submit runs as an array, as several where Slurm's are smaller; returns a line that says so.

    ConfigError with Slurm's own words.
    """
    parts = plan_arrays(len(runs), largest_array(), cluster.array_parallelism)
    name = "-".join(["topr", *re.findall(r"[\w.]+", sweep.name), secrets.token_hex(4)])
    names = [f"{name}-{number}" for number in range(1, len(parts) + 1)] if len(parts) > 1 else [name]
    for part, array in zip(parts, names, strict=True):
        for place, run in enumerate(runs[part.first : part.end]):
            run.job = f"{array}_{place}"
            run.save()
    numbers: list[str] = []  # of the arrays in Slurm
    for part, array in zip(parts, names, strict=True):
        after = numbers[part.after] if part.after is not None else None
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # sbatch's words come with the exception
                executor = make_executor(sweep / SCRIPTS, array, cluster, part.at_once, after)
                folders = [run.folder.resolve() for run in runs[part.first : part.end]]
                jobs = executor.map_array(Task(), folders)
        except Exception as error:
            refusal = describe_refusal(error, cluster)
            if numbers:
                refusal += f"; {part.first} of {len(runs)} runs are submitted; resume submits the others"
            raise ConfigError(refusal) from None
        numbers.append(jobs[0].job_id.split("_")[0])
    what = f"array {numbers[0]} of {len(runs)} runs" if len(runs) > 1 else f"job {numbers[0]}"
    if len(parts) > 1:
        arrays = ", ".join(f"{number} of {len(part)}" for number, part in zip(numbers, parts, strict=True))
        what = f"arrays {arrays} runs"
    return f"submitted to Slurm: {what}\nfollow it: python -m topr_exp.sweeps status {sweep}"


def make_executor(folder: Path, array: str, cluster: SlurmCluster, at_once: int, after: str | None) -> Any:
    """Submitit's executor; what it writes, and what jobs print before their runs begin, lies in `folder`/`array`.

    at_once: jobs of the array that may run at a time. after: the array whose end its jobs wait for.
    """
    import submitit

    setup = list(cluster.setup or [])
    if cluster.cpus_per_task:
        setup.append(f"export OMP_NUM_THREADS={cluster.cpus_per_task}")
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")  # srun no longer takes it over (Slurm 22.05)
    same = ("timeout_min", "nodes", "gpus_per_node", "cpus_per_task", "mem_gb")
    of_slurm = ("partition", "account", "qos", "constraint", "signal_delay_s")
    values = {key: getattr(cluster, key) for key in same}
    values |= {f"slurm_{key}": getattr(cluster, key) for key in of_slurm}
    values["slurm_array_parallelism"] = at_once
    if after is not None:
        values["slurm_dependency"] = f"afterany:{after}"
    executor = submitit.AutoExecutor(folder=folder / array, cluster="slurm")
    executor.update_parameters(
        **{key: value for key, value in values.items() if value is not None},
        name=array,
        tasks_per_node=cluster.gpus_per_node or 1,
        slurm_stderr_to_stdout=True,
        slurm_srun_args=["--kill-on-bad-exit=1"],  # the other tasks would wait for one that failed
        slurm_setup=setup or None,
        # Slurm may be set up never to queue a preempted job again unless the job asks for it.
        slurm_additional_parameters={"requeue": True, **(cluster.additional_parameters or {})},
    )
    return executor


def describe_refusal(error: Exception, cluster: SlurmCluster) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    reason = "; ".join(line.split("error:", 1)[1].strip() for line in lines) or attempt.message(error)
    if "partition" in reason and (rows := run_slurm("sinfo", "-h", "-o", "%R")[0]):
        reason += f" (cluster.partition={cluster.partition}; there are: {', '.join(sorted({row[0] for row in rows}))})"
    return f"Slurm refuses the jobs: {reason}"


def log_of_job(sweep: Path, job: str) -> Path | None:
    """What a run's job printed, before the run had a log."""
    array, _, place = job.rpartition("_")
    logs = sweep / SCRIPTS / array
    alone = (path for path in logs.glob("*_0_log.out") if path.name.count("_") == 2)  # a job that is no array
    return next(iter((*logs.glob(f"*_{place}_0_log.out"), *alone)), None)


class Task:
    """What Submitit pickles; at a time limit before the run listens it is queued again as it is."""

    def __call__(self, folder: Path) -> None:
        """Be a task of a job: a process of the run in this folder.

        What others than the first print stays in the job's log. Raises what the run raises: Slurm sees it failed.
        """
        from submitit.helpers import TorchDistributedEnvironment

        from topr_exp.sweeps.processes import redirect, run_processes

        run, place = read_run(folder), TorchDistributedEnvironment()
        assert run is not None, f"{folder} is no run of a sweep any more"
        place.export(set_cuda_visible_devices=False, overwrite=True)
        export_job()
        if place.rank == 0:
            print(printable(f"the run's output goes on in {folder / LOG}"), flush=True)
            redirect(folder / LOG)
        try:
            run_processes(run.enter())
        except Interrupted as stop:
            print(printable(str(stop)), file=sys.stderr, flush=True)
            if place.rank != 0:
                return  # as done: a task that fails would end the first, which has the job queued again
            queue_again(stop.signal, run)
            raise SystemExit(128 + stop.signal) from None

    def checkpoint(self, folder: Path) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, folder)


def export_job() -> None:
    """Tell the run, which knows no Slurm, its job and the CPUs that this task may be bound to."""
    variables = os.environ
    array = variables.get("SLURM_ARRAY_JOB_ID")
    task_id = variables.get("SLURM_ARRAY_TASK_ID")
    variables[distributed.JOB_ID] = f"{array}_{task_id}" if array else variables["SLURM_JOB_ID"]
    if "SLURM_CPUS_PER_TASK" in variables:
        variables[distributed.CPUS_PER_PROCESS] = variables["SLURM_CPUS_PER_TASK"]


def queue_again(reason: signal.Signals, run: Run) -> None:
    """Requeue this job, which a signal stopped with a checkpoint; TOPRError after too many time limits, or no progress.

    After SIGTERM a cancelled job must not come back, nor one of which another task failed, and one that is preempted at
    once Slurm queues again itself. But one that still runs has been given notice (GraceTime).
    """
    job = os.environ["SLURM_JOB_ID"]
    if reason == signal.SIGUSR2:
        with open(run.folder.parent / SCRIPTS / f"{run.job}.limits", "a", opener=open_own_file) as limits:
            limits.write("|")
            if limits.tell() > run.settings["cluster"]["max_num_timeout"]:
                give_up(run, "out of time, more often than cluster.max_num_timeout allows")
    at_once = reason in (signal.SIGUSR1, signal.SIGUSR2)  # the cluster wants the node back, the time limit is near
    failed = not at_once and attempt.last_error(run.folder)  # srun's SIGTERM
    if at_once or (not failed and run_slurm("squeue", "-h", "-j", job, "-o", "%T")[0] == [["RUNNING"]]):
        if not at_once:
            refuse_standstill(run)
        for pause in REQUEUE_PAUSES:  # many jobs of an array ask at once
            _, problem = run_slurm("scontrol", "requeue", job)
            print(printable(problem) or "queued again", file=sys.stderr, flush=True)
            if not problem:
                (run.folder / attempt.ERROR).unlink(missing_ok=True)
                return
            attempt.record_error(run.folder, TOPRError(f"saved, but not queued again ({problem}): resume the sweep"))
            time.sleep(pause)


def refuse_standstill(run: Run) -> None:
    """Give up where SIGTERM came at one place again and again: srun's, of a task that was killed without a word."""
    state, _ = read_small_file(run.folder / "state.json")
    place = f"{state.get('stage')} {(state.get('progress') or {}).get('done', 0)}"
    with open(run.folder.parent / SCRIPTS / f"{run.job}.places", "a+", opener=open_own_file) as places:
        places.write(f"{place}\n")
        places.seek(0)
        last = places.read().splitlines()[-MOST_AT_ONE_PLACE:]
    if last == [place] * MOST_AT_ONE_PLACE:
        give_up(run, f"stopped by SIGTERM {len(last)} times in a row at {place}: out of memory? the job's log may say")


def give_up(run: Run, why: str) -> None:
    attempt.record_error(run.folder, error := TOPRError(why))
    raise error
