"""Scheduler of a Slurm cluster: runs of a sweep as an array of jobs, through Submitit.

A run knows its job by the array's name and its index there. Both are noted before Submitit is asked, so that a killed
launcher loses no job. Nothing relies on Slurm's answers: where it is slow or down, the runs' files have to do.
"""

import contextlib
import io
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from topr_exp.config.groups import ClusterConfig
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import printable, say
from topr_exp.schema import show
from topr_exp.sweeps.arrays import Array, plan_arrays
from topr_exp.sweeps.clusters import SlurmCluster
from topr_exp.sweeps.jobs import JobPhase, JobState, JobStates
from topr_exp.sweeps.named_code import HARMLESS_VALUE, value_of
from topr_exp.sweeps.processes import redirect, run_in_processes
from topr_exp.sweeps.requeue import requeue_stopped_run
from topr_exp.sweeps.run_status import RunStatus
from topr_exp.sweeps.sweep import SCRIPTS, Run, read_run
from topr_exp.types import ConfigError, TOPRError

ANSWER_SECONDS = 10.0  # after which Slurm counts as silent
CANCEL_SECONDS = 60.0  # of thousands of jobs
ARRAY_LIMITS = re.compile(r"\b(?:MaxArraySize\s*=\s*|max_array_tasks=)(\d+)")  # in the output of scontrol
DEFAULT_MAX_ARRAY_SIZE = 1001  # Slurm's
# In the names of Slurm's limits of jobs, as QOSMaxSubmitJobPerUserLimit; the sentence beside them ("job submit limit,
# user's size and/or time limits") is the same for all limits.
SUBMIT_LIMIT = "SubmitJob"
# Variables of a job in which the launcher runs; srun would take them for options of the new job's, and Submitit for its
# place in an array. (submitit.helpers.clean_env also hides Slurm's configuration and the user's own SBATCH_*.)
JOB_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")
CLIENT_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SUBMITIT_PREEMPT_SIGNAL")  # not of a job
WANDB_CLIENT = "WANDB_SERVICE"  # names a socket of this machine
# Variables that sbatch prefers to its script, for what each script sets; beside them those of the cluster's settings.
SCRIPT_VARIABLES = (
    "SBATCH_ARRAY_INX", "SBATCH_JOB_NAME", "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT", "SBATCH_SIGNAL",
    "SBATCH_TIMELIMIT",
)  # fmt: skip
JOB_COLUMNS = 4  # of squeue's lines
JOB_STATES: dict[str, JobPhase] = {"RUNNING": "running", "COMPLETING": "ending"}  # in its other states a job waits


@dataclass(frozen=True)
class Answer:
    """Output of one of Slurm's commands."""

    rows: list[list[str]]  # its lines, split at `|`
    problem: str = ""  # in one line; then there are no rows


def run_slurm(*command: str, timeout: float = ANSWER_SECONDS) -> Answer:
    """Run one of Slurm's commands; never raises. timeout: seconds."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except FileNotFoundError:
        return Answer([], f"{command[0]} is not on PATH")
    except OSError as error:  # a site may keep scontrol to its administrators
        return Answer([], f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer([], f"no answer within {timeout:g} s")
    if process.returncode:
        error_lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        return Answer([], error_lines[-1])
    return Answer([line.split("|") for line in process.stdout.splitlines() if line.strip()])


class SlurmScheduler:
    """Jobs of a Slurm cluster."""

    place: ClassVar[str] = "on Slurm"

    def check_available(self) -> None:
        if shutil.which("sbatch") is None:
            raise ConfigError("cluster=slurm: no sbatch on PATH; start on a login node, or set cluster=local")

    def preview(self, run_count: int, cluster: ClusterConfig) -> str:
        """List the settings of the jobs, and the arrays of a submission that takes several."""
        assert isinstance(cluster, SlurmCluster)
        settings = describe_settings(cluster)
        max_size = max_array_size()
        if run_count <= max_size:
            return settings
        arrays = plan_arrays(run_count, max_size, cluster.jobs)
        sizes = ", ".join(str(len(array)) for array in arrays)
        limit = f"an array of this Slurm has at most {max_size} (MaxArraySize)"
        return f"{settings}\n{len(arrays)} arrays of {sizes} runs: {limit}"

    def submit(self, runs: Sequence[Run], cluster: ClusterConfig) -> None:
        """Submit runs as arrays and say so; ConfigError with Slurm's own words."""
        assert isinstance(cluster, SlurmCluster)
        folder = runs[0].folder.parent
        arrays = plan_arrays(len(runs), max_array_size(), cluster.jobs)
        names = name_arrays(folder, len(arrays))
        for array, name in zip(arrays, names, strict=True):
            for index, run in enumerate(runs[array.first : array.end]):
                run.assign_job(f"{name}_{index}")
                run.save()
        array_ids: list[str] = []
        for array, name in zip(arrays, names, strict=True):
            predecessor_id = None if array.predecessor is None else array_ids[array.predecessor]
            try:
                array_ids.append(submit_array(runs[array.first : array.end], cluster, array, name, predecessor_id))
            except Exception as error:
                refusal = describe_refusal(error, cluster)
                if array_ids:
                    refusal += f"; {array.first} of {len(runs)} runs are submitted; resume submits the others"
                raise ConfigError(refusal) from None
        sizes = list(map(len, arrays))
        say(f"submitted to Slurm: {describe_submission(array_ids, sizes)}")
        say(f"follow it: python -m topr_exp.sweeps status {shlex.quote(str(folder))}")

    def states(self, runs: Sequence[Run]) -> JobStates:
        arrays_by_option: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for run in runs:
            if run.job:
                array_name, _, _ = run.job.rpartition("_")
                arrays_by_option[clusters_option(run)].add(array_name)
        own_job_id = os.environ.get(distributed.JOB_ID)
        state_by_job: dict[str, JobState] = {}
        for option, names in arrays_by_option.items():
            selection = ("-n", ",".join(sorted(names)))
            if own_job_id is not None:  # a task asks about its own job, when a whole array may be preempted
                selection = ("-j", own_job_id)
            answer = run_slurm("squeue", *option, "-h", "-r", *selection, "-o", "%j_%K|%i|%T|%r")
            if answer.problem:
                return JobStates({}, f"Slurm does not answer ({answer.problem}); going on by the runs' files")
            state_by_job |= parse_jobs(answer.rows)
        return JobStates(state_by_job)

    def cancel(self, statuses: Sequence[RunStatus], launcher_claim: Path | None) -> list[str]:
        jobs_by_option: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for status in statuses:
            if status.job_id:
                jobs_by_option[clusters_option(status.run)].append(status.job_id)
        for option, job_ids in jobs_by_option.items():
            answer = run_slurm("scancel", *option, *job_ids, timeout=CANCEL_SECONDS)
            if answer.problem:
                raise TOPRError(f"scancel: {answer.problem}")
        return []

    def logs(self, run: Run) -> Path | None:
        array_name, _, index = (run.job or "").rpartition("_")
        folder = run.folder.parent / SCRIPTS / array_name
        for path in folder.glob("*_0_log.out"):
            is_of_single_job = path.name.count("_") == 2  # JOB_0_log.out; of an array, ARRAY_INDEX_0_log.out
            if is_of_single_job or path.name.endswith(f"_{index}_0_log.out"):
                return path
        return None

    def requeue(self) -> str:
        return run_slurm("scontrol", "requeue", os.environ["SLURM_JOB_ID"]).problem


def parse_jobs(rows: Sequence[Sequence[str]]) -> dict[str, JobState]:
    """Return the jobs in squeue's answer to `SlurmScheduler.states`, by `Run.job`."""
    state_by_job = {}
    for row in rows:
        if len(row) != JOB_COLUMNS:  # a heading: CLUSTER: NAME
            continue
        name_and_index, job_id, state, reason = row
        job = name_and_index.replace("_N/A", "_0")  # a job alone is no array, and has no index
        state_by_job[job] = JobState(job_id, JOB_STATES.get(state, "queued"), reason.replace("None", ""))
    return state_by_job


def clusters_option(run: Run) -> tuple[str, ...]:
    """Return the option that names the clusters to which a run's job was submitted; () for that of this machine."""
    clusters = value_of(run.settings, "cluster.additional_parameters.clusters")
    is_name = isinstance(clusters, str) and HARMLESS_VALUE.fullmatch(clusters)  # the settings may be a stranger's
    if not is_name or distributed.JOB_ID in os.environ:  # a job is on the cluster of its machine
        return ()
    return (f"--clusters={clusters}",)


# ---- submission


def describe_settings(cluster: SlurmCluster) -> str:
    """Format the settings of a cluster, without those left to it."""
    words = []
    for field in fields(cluster):
        value = getattr(cluster, field.name)
        if field.name != "name" and value is not None:
            words.append(f"{field.name}={show(value)}")
    return printable(f"cluster: {' '.join(words)}")


def max_array_size() -> int:
    """Return the largest number of jobs in an array, by Slurm's settings; Slurm's default if they don't tell."""
    limits: list[int] = []
    for row in run_slurm("scontrol", "show", "config").rows:
        limits += map(int, ARRAY_LIMITS.findall("|".join(row)))
    return max(1, min(limits, default=DEFAULT_MAX_ARRAY_SIZE))


def name_arrays(sweep: Path, array_count: int) -> list[str]:
    """Return names that no other arrays have, of any sweep: a random part is in them."""
    words = re.findall(r"[\w.]+", sweep.name)
    name = "-".join(["topr", *words, secrets.token_hex(4)])
    if array_count == 1:
        return [name]
    return [f"{name}-{number}" for number in range(1, array_count + 1)]


def submit_array(
    runs: Sequence[Run], cluster: SlurmCluster, array: Array, name: str, predecessor_id: str | None
) -> str:
    """Submit runs as one array, which begins after the end of its predecessor; returns its id."""
    folder = runs[0].folder.parent / SCRIPTS / name  # of scripts, and of the output of jobs before their runs begin
    parameters = {"name": name, "slurm_array_parallelism": array.parallel_runs}
    if predecessor_id is not None:
        parameters["slurm_dependency"] = f"afterany:{predecessor_id}"
    # sbatch's words come with the exception.
    with contextlib.redirect_stderr(io.StringIO()), without_variables_of_others(cluster):
        executor = make_executor(folder, cluster, parameters)
        jobs = executor.map_array(Task(), [run.folder.resolve() for run in runs])
    array_id, _, _ = jobs[0].job_id.partition("_")
    return str(array_id)


@contextlib.contextmanager
def without_variables_of_others(cluster: SlurmCluster) -> Iterator[None]:
    """Hide the variables that describe this process's own job and machine, which new jobs would inherit.

    And those by which sbatch would leave settings of the cluster unread.
    """
    names = {WANDB_CLIENT, *SCRIPT_VARIABLES}
    for option in cluster.additional_parameters or {}:
        names.add(f"SBATCH_{option.upper().replace('-', '_')}")
    if cluster.gpus_per_node is not None:
        names.add("SBATCH_GPUS_PER_NODE")
    if "SLURM_JOB_ID" in os.environ:  # elsewhere the user set them, for srun
        names |= {name for name in os.environ if name.startswith(JOB_PREFIXES)}
    hidden_variables = {}
    for name in names.difference(CLIENT_VARIABLES):
        if name in os.environ:
            hidden_variables[name] = os.environ.pop(name)
    try:
        yield
    finally:
        os.environ.update(hidden_variables)


def make_executor(folder: Path, cluster: SlurmCluster, parameters: Mapping[str, Any]) -> Any:
    """Make Submitit's executor with a cluster's settings and further parameters of Submitit's."""
    import submitit

    setup = list(cluster.setup or [])
    if cluster.threads:
        setup.append(f"export OMP_NUM_THREADS={cluster.threads}")
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")  # srun no longer takes it over (Slurm 22.05)
    settings = {
        "timeout_min": cluster.timeout_min,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "cpus_per_task": cluster.threads,
        "slurm_signal_delay_s": cluster.signal_delay_s,
    }
    additional_parameters = cluster.additional_parameters or {}
    if "no-requeue" not in additional_parameters:
        # A cluster may be set up never to requeue a preempted job unless the job asks for it.
        additional_parameters = {"requeue": True, **additional_parameters}
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(
        **{name: value for name, value in settings.items() if value is not None},
        **parameters,
        tasks_per_node=cluster.gpus_per_node or 1,
        slurm_stderr_to_stdout=True,
        slurm_srun_args=["--kill-on-bad-exit=1"],  # the other tasks would wait for one that failed
        slurm_setup=setup or None,
        slurm_additional_parameters=additional_parameters,
    )
    return executor


def describe_submission(array_ids: Sequence[str], sizes: Sequence[int]) -> str:
    """Format the jobs of a submission. sizes: number of runs of each array."""
    if len(array_ids) > 1:
        arrays = [f"{array_id} of {size}" for array_id, size in zip(array_ids, sizes, strict=True)]
        return f"arrays {', '.join(arrays)} runs"
    if sizes[0] > 1:
        return f"array {array_ids[0]} of {sizes[0]} runs"
    return f"job {array_ids[0]}"


def describe_refusal(error: Exception, cluster: SlurmCluster) -> str:
    """Format sbatch's errors, with the partitions that there are if the partition is the reason."""
    reasons = []
    for line in str(error).splitlines():
        _, separator, reason = line.partition("error:")
        if separator:
            reasons.append(reason.strip())
    text = "; ".join(reasons) or attempt.error_line(error)
    if "partition" in text:
        partition = (cluster.additional_parameters or {}).get("partition")
        partitions = {row[0] for row in run_slurm("sinfo", "-h", "-o", "%R").rows}
        if partitions:
            text += f" (partition={partition}; there are: {', '.join(sorted(partitions))})"
    if SUBMIT_LIMIT in text:
        text += "; launch a part of the sweep at a time, under the same name"
    return f"Slurm refuses the jobs: {text}"


# ---- a task of a job


class Task:
    """Process of a run in a job, as Submitit pickles it."""

    def __call__(self, folder: Path) -> None:
        """Be a process of the run in this folder; exits with another status than 0 where the run fails.

        Processes other than the first print to the job's log.
        """
        from submitit.helpers import TorchDistributedEnvironment

        run = read_run(folder)
        assert run is not None, f"{folder} is no run of a sweep any more"
        process_group = TorchDistributedEnvironment()
        process_group.export(set_cuda_visible_devices=False, overwrite=True)
        export_job()
        if process_group.rank == 0:
            print(printable(f"the run's output goes on in {run.log}"), flush=True)
            redirect(run.log)
        try:
            run_or_requeue(run, process_group.rank)
        except TOPRError as error:
            # Not raised: Submitit would print a traceback, and the run's is in its error.txt.
            print(printable(str(error)), file=sys.stderr, flush=True)
            raise SystemExit(1) from None

    def checkpoint(self, folder: Path) -> Any:
        """Requeue the task as it is: Submitit calls this at a time limit before the run listens."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, folder)


def run_or_requeue(run: Run, rank: int) -> None:
    """Do a run, or this process's part of it; one that was stopped exits after the first process requeued the job."""
    try:
        run_in_processes(run.enter())
    except Interrupted as stop:
        print(printable(str(stop)), file=sys.stderr, flush=True)
        if rank != 0:
            return  # without an error: a failing task would kill the first one, which requeues the job
        requeue_stopped_run(SlurmScheduler(), run, stop.signal)
        raise SystemExit(128 + stop.signal) from None


def export_job() -> None:
    """Set the variables that tell a run its job, and the CPUs to which its task may be bound."""
    variables = os.environ
    array_id = variables.get("SLURM_ARRAY_JOB_ID")
    index = variables.get("SLURM_ARRAY_TASK_ID")
    variables[distributed.JOB_ID] = f"{array_id}_{index}" if array_id else variables["SLURM_JOB_ID"]
    if "SLURM_CPUS_PER_TASK" in variables:
        variables[distributed.CPUS_PER_PROCESS] = variables["SLURM_CPUS_PER_TASK"]
