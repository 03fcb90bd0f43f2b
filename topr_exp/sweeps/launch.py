"""From a plan to results: write the runs down, run what is unfinished here or on Slurm, print the table."""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from topr_exp.config.groups import ClusterConfig
from topr_exp.runs import attempt
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.plan import Job, Plan
from topr_exp.runs.preflight import INPUTS, compare_inputs, inputs_of
from topr_exp.runtime.exit_status import plural, printable, say, warn
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import slurm, sweep
from topr_exp.sweeps.clusters import LocalCluster, SlurmCluster
from topr_exp.sweeps.processes import run_locally
from topr_exp.sweeps.sweep import ACTIVE, DONE, FAILED, RUNNING, Run, Status, read_status, read_statuses
from topr_exp.types import TOPRError


def preview(plan: Plan) -> str:
    """List every run's overrides, folder and state (`dry_run=true`). Nothing is written."""
    config, rows = plan.jobs[0].config, []
    for job in plan.jobs:
        refuse_changed_inputs(job)
    statuses, queue = read_statuses(sweep.runs_of(plan.jobs, [], sweep.read_runs(config.folder.parent)))
    if queue.note:
        warn(queue.note)
    for number, each in enumerate(statuses, 1):
        words = " ".join(text for text in each.run.overrides if not text.startswith("dry_run="))
        rows.append([str(number), each.state, str(each.run.folder), printable(words, keep="")])
    count = f"{plural(len(rows), 'run')}, cluster={config.cluster.name}; nothing started"
    arrays = ""
    if isinstance(config.cluster, SlurmCluster):
        to_start = sum(each.state not in (DONE, *ACTIVE) for each in statuses)
        arrays = slurm.describe_arrays(to_start, config.cluster)
    return "\n".join([*sweep.aligned(rows), *filter(None, [arrays]), count])


def refuse_changed_inputs(job: Job) -> None:
    """Raise TOPRError where a run was begun with other inputs and goes on."""
    if not job.config.overwrite and (job.config.folder / INPUTS).exists():
        compare_inputs(RunFolder(job.config), inputs_of(job.config))


def launch(plan: Plan, arguments: list[str], *, reports: bool = True) -> int:
    """Start a sweep, or what is unfinished of it; returns the exit code. reports: write a report of finished runs."""
    for job in plan.jobs:
        refuse_changed_inputs(job)
    config = plan.jobs[0].config
    if isinstance(config.cluster, SlurmCluster):
        slurm.require()
    folder = Path(config.output_dir) / config.name
    with attempt.lock_run_folder(folder, sweep.CLAIM, "launched"):
        known = sweep.read_runs(folder)
        runs = sweep.runs_of(plan.jobs, arguments, known)
        sweep.record_runs(folder, [*known, *runs])
        if config.overwrite:
            start_all_anew(runs)
        described, (statuses, queue) = {run.folder for run in known}, read_statuses(runs)
        for each in statuses:
            at_work = each.state in ACTIVE or bool(queue.note and each.run.job)  # with the settings that are there
            if not at_work or each.run.folder not in described:
                each.run.save()
        return run_unfinished(runs, config.cluster, reports=reports)


def start_all_anew(runs: Sequence[Run]) -> None:
    """Move the folders of runs aside (`overwrite`); TOPRError while one of them waits or runs, or may do so."""
    statuses, queue = read_statuses(runs)
    if queue.note:
        raise TOPRError(f"overwrite=true: {queue.note}; some runs may be queued, so nothing was moved")
    for each in statuses:
        if each.state in ACTIVE:
            raise TOPRError(f"overwrite=true: run {each.run.number} is {each.state}; cancel it first")
    for run in runs:
        attempt.move_aside(run.folder)
        run.job, run.settings["overwrite"] = None, False  # a job that is queued again goes on


def run_unfinished(
    runs: Sequence[Run], cluster: ClusterConfig, *, reports: bool = True, missing: Sequence[Status] = ()
) -> int:
    """Run what is unfinished and active nowhere and print all results, or submit it; returns the exit code.

    missing: runs of the sweep that can't be started, since what was written down of them is gone.
    """
    folder = runs[0].folder.parent
    before, queue = read_statuses(runs)
    todo = [each.run for each in before if each.state not in (DONE, *ACTIVE)]
    if todo and queue.note:
        raise TOPRError(
            f"{queue.note}: some runs may be queued already; try again when Slurm answers, or where it never will set "
            f'"job": null in their {sweep.FILE}'
        )
    say(f"sweep {folder}: {sweep.count_states([*before, *missing])}; {len(todo)} to start")
    if todo and isinstance(cluster, SlurmCluster):
        say(slurm.submit(folder, todo, cluster))
        return 0
    code, stop = 0, StopFlag()
    try:
        if todo and isinstance(cluster, LocalCluster):
            with stop.listening():
                run_locally(todo, cluster.jobs, stop, report, Ticker(todo))
            stop.check()
    except Interrupted as stopped:
        code = 128 + stopped.signal
        warn(str(stopped))
    return show_results(runs, code, new=bool(todo) and reports, missing=missing)


def report(run: Run, error: BaseException | None) -> None:
    """Say how a run of this machine ended."""
    now = read_status(run)
    say(f"{time.strftime('%H:%M:%S')} {replace(now, error=str(error or now.error))}")


class Ticker:
    """Says how far runs of this machine are, after 10 seconds and then once a minute."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.began = runs, time.monotonic()
        self.due = self.began + 10

    def __call__(self) -> None:
        if (now := time.monotonic()) >= self.due:
            self.due = now + 60
            statuses = [read_status(run) for run in self.runs]
            say(f"{time.strftime('%H:%M:%S')} {progress(statuses, now - self.began)}")


def progress(statuses: Sequence[Status], seconds: float) -> str:
    """How many runs have ended, about how long the others take, and how far those at work are."""
    ended = sum(each.state in (DONE, FAILED) for each in statuses)
    left = seconds / ended * (len(statuses) - ended) if ended else None
    about = "" if left is None else f", about {math.ceil(left / 60)} min left"
    working = [f"run {each.run.number} {each.stage}" for each in statuses if each.state == RUNNING]
    return f"{ended} of {plural(len(statuses), 'run')} ended{about}" + (f"; {', '.join(working)}" if working else "")


def show_results(runs: Sequence[Run], code: int, *, new: bool, missing: Sequence[Status] = ()) -> int:
    """Print how the runs stand and any new report; returns `code` if the sweep was stopped, else 1 if unfinished."""
    folder, statuses = runs[0].folder.parent, [*read_statuses(runs)[0], *missing]
    say("\n" + sweep.status_table(statuses))
    if new and not code:
        publish(folder)
    unfinished = any(each.state != DONE for each in statuses)
    if missing and not code:
        say(f"again: {launch_command(runs)}")
    if unfinished and not code:
        say(f"why: python -m topr_exp.sweeps logs {folder} RUN; go on: ... resume {folder}")
    return code or int(unfinished)


def launch_command(runs: Sequence[Run]) -> str:
    """The command that launched a sweep last, which makes what is missing of it again."""
    newest = max(runs, key=lambda run: run.launched)
    return f"cd {shlex.quote(newest.cwd)} && {shlex.join(['python', '-m', 'topr_exp', *newest.arguments])}"


def publish(folder: Path) -> None:
    """Write the report of a sweep. What goes wrong there is a warning: the runs are what counts."""
    from topr_exp.report.__main__ import write_report

    try:
        say(f"report: {write_report([folder])}\nnext: python -m topr_exp.compare {folder}")
    except Exception as error:
        warn(f"no report ({' '.join(str(error).split())[:300]}); try python -m topr_exp.report {folder}")
