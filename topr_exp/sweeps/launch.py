"""From a plan to results: check, write the sweep down, run what is unfinished here or on Slurm, print the table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from topr_exp import interrupts
from topr_exp.config import Config
from topr_exp.console import plural, say, warn
from topr_exp.jobs import Plan
from topr_exp.run_folder import RunFolder
from topr_exp.sweeps import slurm
from topr_exp.sweeps.config import ClusterConfig, LocalCluster, SlurmCluster
from topr_exp.sweeps.local import run_here
from topr_exp.sweeps.queue import Queue
from topr_exp.sweeps.status import (
    ACTIVE,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    Status,
    accuracy,
    alive,
    clock,
    counts,
    look,
    read,
    status,
    table,
)
from topr_exp.sweeps.sweep import Run, Sweep, hold
from topr_exp.types import TOPRError

POLL_SECONDS = (2.0, 15.0)  # between two looks at runs in Slurm: at first, and at most
LOOKS = 3  # that must agree before runs without a result count as ended


def preview(plan: Plan) -> str:
    """What would start (`dry_run=true`): every run's overrides, folder and state. Nothing is written."""
    rows = [(str(i), readiness(job.config), str(job.config.folder)) for i, job in enumerate(plan.jobs, 1)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row, job in zip(rows, plan.jobs, strict=True):
        overrides = [text for text in job.overrides if not text.startswith("dry_run=")]
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([*cells, " ".join(overrides)]).rstrip())
    where = plan.jobs[0].config.cluster.name
    return "\n".join([*lines, f"{plural(len(rows), 'run')}, cluster={where}; nothing started"])


def readiness(config: Config) -> str:
    """Whether a run is new, resumable, running or done; TOPRError when its folder holds another experiment."""
    folder = config.folder
    RunFolder(config).refuse_another(read(folder / "config.json"))
    if (folder / "DONE").exists():
        return "done"
    if alive(folder):
        return "running"
    return "resumable" if (folder / "config.json").exists() else "new"


def launch(plan: Plan, arguments: list[str]) -> int:
    """Start a sweep, or what is unfinished of it; returns the exit code."""
    for job in plan.jobs:
        readiness(job.config)  # refuses a folder that holds another experiment, before anything starts
    config = plan.jobs[0].config
    if isinstance(config.cluster, SlurmCluster):
        slurm.require()
    folder = Path(config.output_dir) / config.name
    with hold(folder):
        sweep = Sweep.open(folder)
        runs = sweep.add(plan.jobs, arguments)
        sweep.save()
        return drive(sweep, runs, config.cluster, plan.launcher)


def drive(sweep: Sweep, runs: Sequence[Run], cluster: ClusterConfig, launcher: dict[str, Any]) -> int:
    """Run what is unfinished and at work nowhere, here or on Slurm; print the table of all; return the exit code."""
    slurm.recover(sweep)
    before, queue = look(sweep, runs)
    done = [each.run for each in before if each.state == DONE]
    todo = [each.run for each in before if each.state not in (DONE, *ACTIVE)]
    if todo and not queue.answered:
        raise TOPRError(f"{'; '.join(queue.notes)}: some runs may be queued already; try again when Slurm answers")
    say(f"sweep {sweep.folder}: {counts(before)}; {len(todo)} to start")
    code = 0
    try:
        with interrupts.listening():
            if isinstance(cluster, SlurmCluster):
                if todo:
                    say(slurm.submit(sweep, todo, cluster, launcher))
                if not cluster.wait:
                    return 0
                watch(sweep, [run for run in runs if run not in done])
            elif isinstance(cluster, LocalCluster) and todo:
                run_here(sweep, todo, cluster.jobs, cluster.threads, partial(report, sweep))
    except interrupts.Interrupted as stop:
        code = 128 + stop.signal
        warn(f"stopped by {stop.signal.name}; jobs in Slurm go on" if cluster.name == "slurm" else str(stop))
    after, _ = look(sweep, runs)
    say("\n" + table(after))
    if todo and not code:
        publish(sweep.folder)
    unfinished = [each for each in after if each.state != DONE]
    if unfinished and not code:
        say(f"why: python -m topr_exp.sweeps logs {sweep.folder} RUN; go on: ... resume {sweep.folder}")
    return code or int(bool(unfinished))


def publish(folder: Path) -> None:
    """Write the report of a sweep. What goes wrong there is a warning: the runs are what counts."""
    from topr_exp.report.runs import read_runs
    from topr_exp.report.table2 import table2, verifiers
    from topr_exp.report.write import write_report

    try:
        say(f"report: {write_report([folder])}")
        runs = read_runs([folder])
        if verifiers(runs):
            say("\n" + table2(runs))
    except Exception as error:
        warn(f"no report ({' '.join(str(error).split())[:300]}); try python -m topr_exp.report {folder}")


def report(sweep: Sweep, run: Run | None, message: str) -> None:
    """Say how a run ended; with no run, how the sweep stands while nothing ends."""
    if run is None:
        working = [each for each in look(sweep, sweep.runs)[0] if each.state == RUNNING]
        shown = ", ".join(f"run {each.run.number} {each.stage}" for each in working[:4])
        say(f"{clock()} {len(working)} running: {shown}{' ...' if len(working) > 4 else ''}")
        return
    say(f"{clock()} {line(status(sweep.path(run), run, None, Queue()), message)}")


def line(each: Status, message: str = "") -> str:
    """What became of a run, in one line."""
    text = f"run {each.run.number} {each.state} ({each.run.folder})"
    if each.state == DONE:
        return f"{text}: pass@1 {accuracy(each)}"
    return f"{text}: {message or each.error}" if message or each.error else text


def watch(sweep: Sweep, runs: Sequence[Run]) -> None:
    """Wait for runs in Slurm, telling every change, until none of them is queued or at work.

    Submitit's own waiting ends with the first job that was cancelled, and never where accounting is off.
    """
    seen: dict[int, str] = {}
    told: set[str] = set()
    pause, quiet = POLL_SECONDS[0], 0
    while True:
        statuses, queue = look(sweep, runs)
        for note in [note for note in queue.notes if note not in told]:
            warn(note)
            told.add(note)
        for each in statuses:
            if seen.get(each.run.number, QUEUED) != each.state:
                say(f"{clock()} {line(each)}")
                pause = POLL_SECONDS[0]
            seen[each.run.number] = each.state
        if all(each.state in (DONE, FAILED) for each in statuses):
            return
        # A shared file system may show the end of a run later than Slurm does: look more than once.
        quiet = 0 if not queue.answered or any(each.state in ACTIVE for each in statuses) else quiet + 1
        if quiet == LOOKS:
            return
        time.sleep(POLL_SECONDS[0] if quiet else pause)
        pause = min(pause * 1.2, POLL_SECONDS[1])
