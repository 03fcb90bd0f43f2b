"""Launch of a sweep: describe its runs on disk, start those that are unfinished, print the results."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from topr_exp.config.groups import ClusterConfig
from topr_exp.runs import overwrite, run_lock
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import INPUTS, compare_inputs, hash_inputs
from topr_exp.runs.plan import Job
from topr_exp.runs.run_files import LAUNCH
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import align_columns, one_line, plural, printable, say, warn
from topr_exp.sweeps.registry import SCHEDULERS, read_statuses
from topr_exp.sweeps.run_status import RunState, RunStatus
from topr_exp.sweeps.status_table import count_states, status_table
from topr_exp.sweeps.sweep import CLAIM, Run, make_runs, newest_run, read_runs, record_runs
from topr_exp.types import TOPRError

MAX_ERROR_LENGTH = 300  # characters of why there is no report


def preview(jobs: Sequence[Job]) -> str:
    """List every run's state, folder and overrides (`dry_run=true`). Nothing is written."""
    config = jobs[0].config
    refuse_changed_inputs(jobs)
    runs = make_runs(jobs, [], read_runs(config.folder.parent))
    statuses, problem = read_statuses(runs)
    if problem:
        warn(problem)
    rows = []
    for number, status in enumerate(statuses, 1):
        overrides = [override for override in status.run.overrides if not override.startswith("dry_run=")]
        rows.append([str(number), status.state, str(status.run.folder), printable(" ".join(overrides), keep="")])
    lines = align_columns(rows)
    start_count = sum(status.needs_start for status in statuses)
    scheduler = SCHEDULERS[config.cluster.name]
    submission = scheduler.preview(start_count, config.cluster)
    if submission:
        lines.append(submission)
    lines.append(f"{plural(len(rows), 'run')} {scheduler.place}; nothing started")
    return "\n".join(lines)


def refuse_changed_inputs(jobs: Sequence[Job]) -> None:
    """Raise TOPRError if a run would go on with other inputs than it began with."""
    for job in jobs:
        if not job.config.overwrite and (job.config.folder / INPUTS).exists():
            compare_inputs(RunFolder(job.config), hash_inputs(job.config))


def launch(jobs: Sequence[Job], arguments: list[str], *, reports: bool = True) -> int:
    """Start a sweep, or what is unfinished of it; returns the exit code. reports: write a report of finished runs."""
    refuse_changed_inputs(jobs)
    config = jobs[0].config
    SCHEDULERS[config.cluster.name].check_available()
    folder = Path(config.output_dir) / config.name
    with run_lock.lock_run_folder(folder, CLAIM, "launched"):
        earlier_runs = read_runs(folder)
        runs = make_runs(jobs, arguments, earlier_runs)
        record_runs(folder, [*earlier_runs, *runs])
        if config.overwrite:
            move_run_folders(runs)
        described_folders = {run.folder for run in earlier_runs}
        statuses, problem = read_statuses(runs)
        for status in statuses:
            run = status.run
            may_be_active = status.is_active or bool(problem and run.job)  # and began with the settings on disk
            if not may_be_active or run.folder not in described_folders:
                run.save()
        return run_unfinished(runs, config.cluster, reports=reports)


def move_run_folders(runs: Sequence[Run]) -> None:
    """Move the folders of runs aside (`overwrite`); TOPRError while one of them waits or runs, or may do so."""
    statuses, problem = read_statuses(runs)
    if problem:
        raise TOPRError(f"overwrite=true: {problem}; some runs may be queued, so nothing was moved")
    for status in statuses:
        if status.is_active:
            raise TOPRError(f"overwrite=true: run {status.run.number} is {status.state}; cancel it first")
    for run in runs:
        overwrite.move_aside(run.folder)
        run.assign_job(None)
        run.settings["overwrite"] = False  # a job that is requeued goes on


def run_unfinished(
    runs: Sequence[Run], cluster: ClusterConfig, *, reports: bool = True, missing: Sequence[RunStatus] = ()
) -> int:
    """Start the runs that are neither done nor active, and print all results unless jobs were submitted.

    missing: runs of the sweep that can't be started, since their settings are lost. Returns the exit code: 0 if all
    runs are done, or jobs of the others wait or run.
    """
    folder = runs[0].folder.parent
    statuses, problem = read_statuses(runs)
    runs_to_start = [status.run for status in statuses if status.needs_start]
    if runs_to_start and problem:
        raise TOPRError(
            f"{problem}: some runs may be queued already; try again when Slurm answers, or where it never will set "
            f'"job": null in their {LAUNCH}'
        )
    say(f"sweep {folder}: {count_states([*statuses, *missing])}; {len(runs_to_start)} to start")
    signal_code = 0
    if runs_to_start:
        try:
            SCHEDULERS[cluster.name].submit(runs_to_start, cluster)
        except Interrupted as stop:
            signal_code = 128 + stop.signal
            warn(str(stop))
        if cluster.submits_jobs:
            return 0
    statuses, _ = read_statuses(runs)
    statuses = [*statuses, *missing]
    say("\n" + status_table(statuses))
    if signal_code:
        return signal_code
    if runs_to_start and reports:
        publish(folder)
    if missing:
        say(f"again: {launch_command(runs)}")
    unfinished = [status for status in statuses if status.state != RunState.DONE]
    if unfinished:
        return advise_on_unfinished(folder, unfinished, cluster)
    if reports and not runs_to_start:
        sweep = shlex.quote(str(folder))
        say(f"next: python -m topr_exp.report {sweep}\n      python -m topr_exp.compare {sweep}")
    return 0


def advise_on_unfinished(folder: Path, unfinished: Sequence[RunStatus], cluster: ClusterConfig) -> int:
    """Say how to follow the runs, or to learn why they are not finished; returns the exit code."""
    sweep = shlex.quote(str(folder))
    if cluster.submits_jobs and all(status.is_active for status in unfinished):
        say(f"follow it: python -m topr_exp.sweeps status {sweep}")
        return 0
    say(f"why: python -m topr_exp.sweeps logs {sweep} RUN; go on: ... resume {sweep}")
    return 1


def launch_command(runs: Sequence[Run]) -> str:
    """Return the command that launched a sweep last, which makes its missing runs again."""
    newest = newest_run(runs)
    return f"cd {shlex.quote(newest.cwd)} && {shlex.join(['python', '-m', 'topr_exp', *newest.arguments])}"


def publish(folder: Path) -> None:
    """Write the report of a sweep; an error there is a warning, since the runs are what counts."""
    from topr_exp.report.__main__ import write_report

    sweep = shlex.quote(str(folder))
    try:
        say(f"report: {write_report([folder])}\nnext: python -m topr_exp.compare {sweep}")
    except Exception as error:
        warn(f"no report ({one_line(error, MAX_ERROR_LENGTH)}); try python -m topr_exp.report {sweep}")
