"""From figures to their files: which runs are missing, running them as one sweep, reading and drawing what is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.jobs import Job, Plan, check_sweep, plan
from topr_exp.paper import records
from topr_exp.paper.draw import drawing, save
from topr_exp.paper.figure import Figure
from topr_exp.paper.records import Record
from topr_exp.paper.selection import Runs


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    figures: Sequence[Figure]
    full: bool  # both bases, more seeds
    overrides: Sequence[str]  # of every experiment, last
    jobs: int
    recorded: bool  # what is recorded in `out` need not be computed again
    out: Path


def arguments(experiment: str, figure: Figure, request: Request) -> list[str]:
    """The command line of an experiment, each key once: the last one counts."""
    name, *own = experiment.split()
    cluster = [f"cluster.jobs={request.jobs}", "cluster.threads=1"]
    if any(text.startswith("cluster=") for text in request.overrides):
        cluster = []
    texts = [f"experiment={name}", *own, *(figure.wider if request.full else ()), *cluster, *request.overrides]
    return list({text.split("=", 1)[0]: text for text in texts}.values())


def jobs_of(figure: Figure, request: Request) -> tuple[dict[str, Job], Plan]:
    """The runs of a figure by identity. ConfigError for what can't be composed."""
    from hydra._internal.utils import get_args_parser

    found: dict[str, Job] = {}
    planned = None
    for experiment in figure.experiments:
        planned = plan(get_args_parser().parse_args(arguments(experiment, figure, request)))
        for job in planned.jobs:
            found.setdefault(records.identity_of(job.config), job)
    assert planned is not None, figure.name
    return found, planned


@dataclass(frozen=True)
class Need:
    """A figure with its runs."""

    figure: Figure
    jobs: dict[str, Job]  # by identity


def needs(request: Request) -> tuple[list[Need], list[Plan]]:
    """What each figure needs, and plans of the runs that are neither recorded nor finished, one a sweep's folder."""
    found = []
    todo: dict[Path, dict[Path, Job]] = {}
    launcher: dict[str, Any] = {}
    for figure in request.figures:
        jobs, planned = jobs_of(figure, request)
        found.append(Need(figure, jobs))
        known = records.known(records.read(request.out / f"{figure.name}.json")) if request.recorded else {}
        for key, job in jobs.items():
            if key not in known and not (job.config.folder / "DONE").exists():
                todo.setdefault(job.config.folder.parent, {}).setdefault(job.config.folder, job)
        launcher = planned.launcher
    plans = []
    for jobs_there in todo.values():
        # A figure's runs of all seeds together would leave the rest for last if it is stopped: the first seeds first.
        order = sorted(jobs_there.values(), key=lambda job: job.config.seed)
        check_sweep(order)
        plans.append(Plan(order, True, launcher))
    return found, plans


def stored(need: Need, request: Request) -> tuple[dict[str, Record], dict[str, Any]]:
    """What the figure's file records, and its extra numbers.

    Runs with settings that the figure no longer has (another learning rate, say) are left out.
    """
    content = records.read(request.out / f"{need.figure.name}.json")
    known = records.known(content)
    if others := known.keys() - need.jobs.keys():
        everything, _ = jobs_of(need.figure, dataclasses.replace(request, full=True, overrides=()))
        known = {key: record for key, record in known.items() if key not in others or key in everything}
    return known, content["extra"]


def run(request: Request, todo: list[Plan]) -> int:
    """Run them, a sweep after the other; returns the largest exit code, at once where a signal stopped one."""
    from topr_exp.sweeps.launch import launch

    first, worst = request.figures[0], 0
    for planned in todo:
        worst = max(worst, launch(planned, arguments(first.experiments[0], first, request)))
        if worst > 2:
            break
    return worst


def collect(need: Need, request: Request) -> tuple[list[Record], dict[str, Any]]:
    """The records of the figure's finished runs, beside those that are recorded and were not run again."""
    figure, (known, extra) = need.figure, stored(need, request)
    finished: list[tuple[Record, Path]] = []
    for job in need.jobs.values():
        folder = job.config.folder
        if (folder / "DONE").exists():
            record = records.trimmed(records.extract(folder), figure.metrics)
            finished.append((record | {"environment": records.environment_of(folder)}, folder))
    if figure.extra is not None and (finished or not extra):
        extra = {**extra, **figure.extra(finished)}
    found = known | {records.identity(nested(record["settings"])): record for record, _ in finished}
    return list(found.values()), extra


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested groups."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, last = key.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return found


def make(need: Need, request: Request) -> int:
    """Write a figure's numbers and its picture; returns how many runs it rests on."""
    found, extra = collect(need, request)
    figure, out = need.figure, request.out
    if found:
        records.write(out / f"{figure.name}.json", found, extra)
        with drawing():
            save(figure.draw(Runs(found), extra), out / f"{figure.name}.png")
    return len(found)


def check(need: Need, out: Path) -> list[str]:
    """Compare finished runs with what is recorded of them: a line for each run that differs or is not recorded."""
    figure = need.figure
    known = records.known(records.read(out / f"{figure.name}.json"))
    lines = []
    for key, job in need.jobs.items():
        name = job.config.folder.name
        if key not in known:
            lines.append(f"{name}: not recorded in {out / (figure.name + '.json')}")
        elif not (job.config.folder / "DONE").exists():
            lines.append(f"{name}: did not finish")
        else:
            differing = records.differences(
                known[key], records.trimmed(records.extract(job.config.folder), figure.metrics)
            )
            lines += [f"{name}: {'; '.join(differing[:3])}"] if differing else []
    return lines
