"""From a plan to results: check, write sweep.json, run what is unfinished here or on Slurm, print the table."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from topr_exp.config.cluster import ClusterConfig, LocalCluster, SlurmCluster
from topr_exp.config.schema import plain
from topr_exp.config.settings import Config
from topr_exp.runs.console import plural, say, warn
from topr_exp.runs.folder import RunFolder, refuse_other_experiment
from topr_exp.runs.inputs import refuse_changed_inputs
from topr_exp.runs.plan import Plan
from topr_exp.runtime.jsonfiles import read_object
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import slurm
from topr_exp.sweeps.local import run_locally
from topr_exp.sweeps.status import (
    ACTIVE,
    DONE,
    count_states,
    is_running,
    read_statuses,
    report,
    status_table,
    wait_for_slurm,
)
from topr_exp.sweeps.sweep import Run, Sweep, lock_sweep
from topr_exp.types import TOPRError


def preview(plan: Plan) -> str:
    """List every run's overrides, folder and state (`dry_run=true`). Nothing is written."""
    rows = [(str(i), state_before(job.config), str(job.config.folder)) for i, job in enumerate(plan.jobs, 1)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row, job in zip(rows, plan.jobs, strict=True):
        overrides = [on_one_line(text) for text in job.overrides if not text.startswith("dry_run=")]
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([*cells, " ".join(overrides)]).rstrip())
    where = plan.jobs[0].config.cluster.name
    todo = [job.config for row, job in zip(rows, plan.jobs, strict=True) if row[1] != "done"]
    time = [expected_time(todo)] if todo else []
    return "\n".join([*lines, *time, f"{plural(len(rows), 'run')}, cluster={where}; nothing started"])


def on_one_line(override: str) -> str:
    """An override as bash takes it where it holds line breaks, else as it is."""
    return "$'" + override.replace("\n", "\\n") + "'" if "\n" in override else override


def state_before(config: Config) -> str:
    """Classify a run as new, resumable, running or done; TOPRError when it would be refused.

    (Its folder holds another experiment, or what it was begun with has changed.)
    """
    folder = config.folder
    refuse_other_experiment(config, read_object(folder / "config.json")[0] or None)
    refuse_changed_inputs(RunFolder(config), config)
    if (folder / "DONE").exists():
        return "done"
    if is_running(folder):
        return "running"
    return "resumable" if (folder / "config.json").exists() else "new"


def launch(plan: Plan, arguments: list[str]) -> int:
    """Start a sweep, or what is unfinished of it; returns the exit code."""
    # Refuses a folder that holds another experiment, before anything starts.
    states = {state_before(job.config) for job in plan.jobs}
    config = plan.jobs[0].config
    if isinstance(config.cluster, SlurmCluster):
        slurm.require()
    folder = Path(config.output_dir) / config.name
    if states == {"done"} and not os.access(folder, os.W_OK, effective_ids=True):
        sweep = Sweep.open(folder)
        return show_results(sweep, sweep.add(plan.jobs, arguments), 0, new=False)
    with lock_sweep(folder):
        sweep = Sweep.open(folder)
        runs = sweep.add(plan.jobs, arguments)
        sweep.save()
        return run_unfinished(sweep, runs, config.cluster, plan.launcher)


def run_unfinished(sweep: Sweep, runs: Sequence[Run], cluster: ClusterConfig, launcher: dict[str, Any]) -> int:
    """Run what is unfinished and active nowhere, here or on Slurm; print the table of all; return the exit code."""
    slurm.recover(sweep)
    before, queue = read_statuses(sweep, runs)
    unfinished = [each.run for each in before if each.state != DONE]
    todo = [each.run for each in before if each.state not in (DONE, *ACTIVE)]
    if todo and not queue.answered:
        raise TOPRError(f"{'; '.join(queue.notes)}: some runs may be queued already; try again when Slurm answers")
    say(f"sweep {sweep.folder}: {count_states(before)}; {len(todo)} to start")
    code, flag = 0, StopFlag()
    try:
        with flag.listening(), flag.immediate():
            if isinstance(cluster, SlurmCluster):
                if todo:
                    say(slurm.submit(sweep, todo, cluster, launcher))
                if not cluster.wait:
                    return 0
                wait_for_slurm(sweep, unfinished)
            elif isinstance(cluster, LocalCluster) and todo:
                run_locally(sweep, todo, cluster.jobs, cluster.threads, partial(report, sweep))
    except Interrupted as stop:
        code = 128 + stop.signal
        warn(f"stopped by {stop.signal.name}; jobs in Slurm go on" if cluster.name == "slurm" else str(stop))
    return show_results(sweep, runs, code, new=bool(todo))


def show_results(sweep: Sweep, runs: Sequence[Run], code: int, *, new: bool) -> int:
    """Print how the runs stand, and a report where there are new results; the exit code, 1 where some are unfinished.

    code: other than 0 where the sweep was stopped.
    """
    statuses, _ = read_statuses(sweep, runs)
    say("\n" + status_table(statuses))
    if new and not code:
        publish(sweep.folder)
    unfinished = any(each.state != DONE for each in statuses)
    if unfinished and not code:
        say(f"why: python -m topr_exp.sweeps logs {sweep.folder} RUN; go on: ... resume {sweep.folder}")
    return code or int(unfinished)


def publish(folder: Path) -> None:
    """Write the report of a sweep. What goes wrong there is a warning: the runs are what counts."""
    from topr_exp.report.__main__ import write_report

    try:
        say(f"report: {write_report([folder])}")
    except Exception as error:
        warn(f"no report ({' '.join(str(error).split())[:300]}); try python -m topr_exp.report {folder}")


# What decides how much a run samples, grades and trains. Algorithms differ in cost too, but by less.
SIZE = {
    "data": ("name", "source", "train_problems", "n", "test_problems", "eval_n", "shots"),
    "model": ("path", "dtype"),
    "sampler": ("name", "max_new_tokens"),
    "compose": ("name", "n_examples", "pairs_per_problem"),
    "optim": ("epochs", "batch_size"),
    "schedule": None,  # all of it
    "evaluation": None,
    "iterations": None,
}
ENOUGH = 2000  # folders that are looked at: a dry run answers at once


def expected_time(configs: Sequence[Config]) -> str:
    """In words, about how long these runs take together; what it goes by stands in it."""
    took: dict[str, list[float]] = {}
    first = configs[0]
    for path in islice(Path(first.output_dir).glob("*/*/summary.json"), ENOUGH):
        try:
            settings = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))["resolved"]
            seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"].values()
            took.setdefault(size(settings), []).append(sum(seconds))
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # another version's, or being written
    known = [found for config in configs if (found := took.get(size(plain(config))))]
    if not known:
        return f"how long: not known, no run of this size has finished below {first.output_dir}"
    jobs = first.cluster.jobs if isinstance(first.cluster, LocalCluster) else len(configs)
    total = sum(median(found) for found in known) / min(jobs, len(configs))
    text = f"about {clock(total)}, as finished runs of this size took here"
    rest = len(configs) - len(known)
    return f"{text}; {plural(rest, 'run')} not counted, of a size that none had" if rest else text


def size(settings: dict[str, Any]) -> str:
    """Key of runs that take about as long. settings: nested, as config.json holds them."""
    found = {}
    for group, keys in SIZE.items():
        values = settings.get(group)
        found[group] = {key: values.get(key) for key in keys} if keys and isinstance(values, dict) else values
    return json.dumps(found, sort_keys=True, default=str)


def clock(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
