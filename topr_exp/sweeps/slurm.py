"""Runs of a sweep as a Slurm job array, through Submitit and the hydra-submitit-launcher.

The launcher plugin gives the settings (`hydra.launcher`, filled by conf/cluster/slurm.yaml), the pickled task and its
requeueing. Its `launch` is not used: it waits for every job by accounting alone, composes each run's YAML anew on the
node, and keeps nothing from which a sweep could be resumed.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

from topr_exp.config.cluster import SlurmCluster
from topr_exp.runs import attempt
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps import child, group, queue
from topr_exp.sweeps.sweep import LOG, SUBMITIT, Run, Submission, Sweep
from topr_exp.types import ConfigError, TOPRError

TIME_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # the time limit is near, or the cluster wants the node back


class Task(SlurmLauncher):
    """Callable that Submitit pickles: one run of a sweep. The launcher's `checkpoint` queues it again as it is."""

    def __call__(self, run: Run, folder: str) -> None:
        """The run, on its nodes; raises what the run raises, so that Slurm sees it failed.

        Every task of the job is a process of the run. What the others than the first print stays in Submitit's logs.
        """
        is_main = export_ranks() == 0
        if is_main:
            print(f"the run's output goes on in {folder}/{LOG}", flush=True)
            child.redirect_attempt(Path(folder) / LOG)
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")
        child.take_share(int(cpus) if cpus else None)
        try:
            group.run_processes(run.enter())
        except Interrupted as stop:
            print(f"{stop}", file=sys.stderr, flush=True)
            if not is_main:
                return  # as done: a task that fails would end the first, which has the job queued again
            if stop.signal in TIME_SIGNALS:
                self.queue_again(Path(folder))
            else:
                requeue_preempted()
            raise SystemExit(128 + stop.signal) from None

    def queue_again(self, folder: Path) -> None:
        """Have Submitit requeue this job, after which the process ends; an error when it was so too often."""
        from submitit.core.job_environment import JobEnvironment
        from submitit.core.utils import UncompletedJobError

        number = JobEnvironment._usr_sig()
        handler = signal.getsignal(number)
        assert callable(handler), "Submitit sets its handler before it calls us"
        try:
            handler(number, None)
        except UncompletedJobError as error:
            refused = TOPRError(
                f"out of time: stopped at the time limit more often than cluster.max_num_timeout allows ({error})"
            )
            attempt.record_error(folder, refused)
            raise refused from None


def export_ranks() -> int:
    """Set RANK, MASTER_ADDR and the like from Slurm's variables, as torchrun would; returns the rank."""
    from submitit.helpers import TorchDistributedEnvironment

    place = TorchDistributedEnvironment()
    place.export(set_cuda_visible_devices=False, overwrite=True)
    return int(place.rank)


def requeue_preempted() -> None:
    """After SIGTERM: have this job queued again where Slurm does not do so itself.

    A cancelled job must not come back, and one that was preempted at once is already queued again. But one that is
    still running has been given notice (GraceTime): to end within that time counts as having failed.
    """
    job = os.environ["SLURM_JOB_ID"]
    rows, _ = queue.run_slurm(["squeue", "-h", "-j", job, "-o", "%T"])
    if rows and rows[0][0] == "RUNNING":
        _, problem = queue.run_slurm(["scontrol", "requeue", job])
        print(f"preempted: {problem or 'queued again'}", file=sys.stderr, flush=True)


def require() -> None:
    """Raise ConfigError where jobs can't be submitted."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local")


def submit(sweep: Sweep, runs: Sequence[Run], cluster: SlurmCluster, launcher: dict[str, Any]) -> str:
    """Submit runs as one array and note its id in the sweep; returns a line that says so.

    Raises ConfigError, with Slurm's own words, when it refuses.
    """
    submission = Submission(os.urandom(4).hex(), [run.number for run in runs], None)
    executor = make_executor(sweep, cluster, launcher, job_name(submission))
    sweep.submissions.append(submission)
    sweep.save()  # before Slurm knows: should this process be killed in between, `recover` finds the jobs by name
    folders = [str(sweep.path(run).resolve()) for run in runs]
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # sbatch's words come with the exception
            jobs = executor.map_array(Task(**launcher), runs, folders)
    except Exception as error:
        sweep.submissions.remove(submission)
        sweep.save()
        raise ConfigError(describe_refusal(error, launcher)) from None
    submission.slurm = jobs[0].job_id.split("_")[0]
    sweep.save()
    where = f"partition {launcher['partition']}" if launcher["partition"] else "the default partition"
    what = f"array {submission.slurm} of {len(runs)} jobs" if len(runs) > 1 else f"job {submission.slurm}"
    return f"submitted to Slurm: {what}, {where}\nfollow it: python -m topr_exp.sweeps status {sweep.folder}"


def make_executor(sweep: Sweep, cluster: SlurmCluster, launcher: dict[str, Any], name: str) -> Any:
    """Submitit's executor with the launcher's settings, mapped as the launcher maps them."""
    import submitit

    own = {"_target_", "tasks_per_node", "submitit_folder", "max_num_timeout", "name", "setup", "additional_parameters"}
    common = set(BaseQueueConf.__dataclass_fields__)
    values = {key if key in common else f"slurm_{key}": value for key, value in launcher.items() if key not in own}
    setup = list(launcher["setup"] or [])
    if launcher["cpus_per_task"]:
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")  # srun no longer takes it over (Slurm 22.05)
    executor = submitit.AutoExecutor(
        folder=sweep.folder / SUBMITIT / "%j", cluster="slurm", slurm_max_num_timeout=launcher["max_num_timeout"]
    )
    # The cluster's null can't go through hydra.launcher, which demands a mapping there.
    tasks = cluster.gpus_per_node or 1
    if launcher["tasks_per_node"] not in (1, tasks):
        raise ConfigError(
            "hydra.launcher.tasks_per_node follows from cluster.gpus_per_node, a task for each; leave it out"
        )
    more = {**launcher["additional_parameters"], **(cluster.additional_parameters or {})}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Submitit's advice on settings that the user did not make
            executor.update_parameters(
                **{key: value for key, value in values.items() if value is not None},
                name=name,
                tasks_per_node=tasks,
                slurm_srun_args=["--kill-on-bad-exit=1"],  # the other tasks would wait for one that failed
                slurm_setup=setup or None,
                # Slurm may be set up never to queue a preempted job again unless the job asks for it.
                slurm_additional_parameters={"requeue": True, **more},
            )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"hydra.launcher: {attempt.message(error)}") from None
    return executor


def job_name(submission: Submission) -> str:
    """The name of its jobs in Slurm."""
    return f"topr_exp-{submission.token}"


def recover(sweep: Sweep) -> None:
    """Find the jobs of submissions whose id was not noted, because the launcher was killed right then.

    Raises TOPRError where Slurm does not answer: to take its silence for a no would submit the runs twice.
    """
    lost = [submission for submission in sweep.submissions if submission.slurm is None]
    for submission in lost:
        submission.slurm, problem = queue.find_job(job_name(submission))
        if problem:
            raise TOPRError(f"{problem}: some runs may be queued already; try again when Slurm answers")
        if submission.slurm is None:
            sweep.submissions.remove(submission)
    if lost:
        sweep.save()


def describe_refusal(error: Exception, launcher: dict[str, Any]) -> str:
    """Why sbatch refused, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    reason = "; ".join(line.split("error:", 1)[1].strip() for line in lines) or attempt.message(error)
    if "partition" in reason and (there := queue.partitions()):
        reason += f" (cluster.partition={launcher['partition']}; there are: {', '.join(there)})"
    return f"Slurm refuses the jobs: {reason}"


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs; TOPRError when Slurm says no."""
    _, problem = queue.run_slurm(["scancel", *ids])
    if problem:
        raise TOPRError(f"scancel: {problem}")
