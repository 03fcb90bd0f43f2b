"""The runs that figures need: which are neither recorded nor finished, and running those as sweeps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.figure import Figure
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import Job, Plan, check_sweep, plan
from topr_exp.runtime.terminal import warn
from topr_exp.types import ConfigError

CONF = Path(__file__).with_name("conf")
SEARCH = ("--config-dir", str(CONF))  # where the experiments of our own studies are


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
    """The command line of an experiment, each key once: the last counts, but an algorithm with settings stays."""
    name, *own = experiment.split()
    cluster = [f"cluster.jobs={request.jobs}", "cluster.threads=1"]
    if any(text.startswith("cluster=") for text in request.overrides):
        cluster = []
    given = [text for text in request.overrides if "algo." not in experiment or not text.startswith("algo=")]
    texts = [f"experiment={name}", *own, *(figure.wider if request.full else ()), *cluster, *given]
    return list({text.split("=", 1)[0]: text for text in texts}.values())


def is_study(experiment: str) -> bool:
    """Return True for an experiment of our own studies, which are in reproduce/conf."""
    return (CONF / "experiment" / f"{experiment.split()[0]}.yaml").is_file()


def jobs_of(figure: Figure, request: Request, left_out: list[str] | None = None) -> dict[str, Job]:
    """The runs of a figure by identity. ConfigError for what can't be composed.

    Experiments with a learning rate that is still to be chosen are left out with a warning, and added to `left_out`.
    """
    asked = next((text[5:].split(",") for text in request.overrides if text.startswith("algo=")), None)
    found: dict[str, Job] = {}
    for experiment in figure.experiments:
        try:
            jobs = plan(parse_arguments([*SEARCH, *arguments(experiment, figure, request)])).jobs
        except ConfigError as error:
            if "no learning rate was chosen" not in str(error):
                raise
            if left_out is not None:
                left_out.append(experiment)
            warn(f"{experiment} is left out; {error}, or choose it: python -m reproduce.rates {figure.name}")
            continue
        for job in jobs:
            if asked is None or job.config.algo.name in asked:
                found.setdefault(records.identity_of(job.config), job)
    return found


@dataclass(frozen=True)
class Need:
    """A figure with its runs."""

    figure: Figure
    jobs: dict[str, Job]  # by identity
    left_out: Sequence[str] = ()  # experiments whose learning rate is still to be chosen


def needs(request: Request) -> tuple[list[Need], list[Plan]]:
    """What each figure needs, and plans of the runs that are neither recorded nor finished, one a sweep's folder."""
    found = []
    todo: dict[Path, dict[Path, Job]] = {}
    for figure in request.figures:
        left_out: list[str] = []
        jobs = jobs_of(figure, request, left_out)
        found.append(Need(figure, jobs, left_out))
        known = records.known(records.read(request.out / f"{figure.name}.json")) if request.recorded else {}
        for key, job in jobs.items():
            if key not in known and not (job.config.folder / "DONE").exists():
                todo.setdefault(job.config.folder.parent, {}).setdefault(job.config.folder, job)
    plans = []
    for jobs_there in todo.values():
        # A figure's runs of all seeds together would leave the rest for last if it is stopped: the first seeds first.
        order = sorted(jobs_there.values(), key=lambda job: job.config.seed)
        check_sweep(order)
        plans.append(Plan(order, True))
    return found, plans


def run(request: Request, todo: list[Plan], record: Callable[[], Any]) -> int:
    """Run them, a sweep after the other; returns the largest exit code, at once where a signal stopped one.

    With --recorded, `record` is called after every few runs, so that what is recorded can be kept as it comes.
    """
    from topr_exp.sweeps.launch import launch

    first, worst = request.figures[0], 0
    for planned in todo:
        size = 4 * request.jobs if request.recorded else len(planned.jobs)
        for start in range(0, len(planned.jobs), size):
            part = Plan(planned.jobs[start : start + size], True)
            words = [*SEARCH, *arguments(first.experiments[0], first, request)]
            worst = max(worst, launch(part, words, reports=False))
            if worst > 2:
                return worst
            if request.recorded:
                record()
    return worst
