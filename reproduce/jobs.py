"""The runs that figures need: planned, told apart by identity, and run as sweeps where they are missing."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reproduce import records
from reproduce.figure import Figure
from topr_exp import ConfigError, Job, plan_runs, run_sweep

CONF = Path(__file__).with_name("conf")
SEARCH = ("--config-dir", str(CONF))  # where the experiments of our own studies are
RUNS_BETWEEN_RECORDS = 4  # for each run at once


@dataclass(frozen=True)
class Request:
    """The options of a command."""

    figures: Sequence[Figure]
    full: bool  # both bases, more seeds
    overrides: Sequence[str]  # of every experiment, last
    jobs: int  # runs at once
    recorded: bool  # runs that `out` has records of need not be computed again
    out: Path


@dataclass(frozen=True)
class FigurePlan:
    """A figure with its runs."""

    figure: Figure
    jobs: dict[str, Job]  # by identity
    left_out: Sequence[str] = ()  # experiments whose learning rate is still to be chosen


def is_study(experiment: str) -> bool:
    """Return True for an experiment of our own studies, which are in reproduce/conf."""
    return (CONF / "experiment" / f"{experiment.split()[0]}.yaml").is_file()


def command_words(experiment: str, figure: Figure, request: Request) -> list[str]:
    """The command line of an experiment, each key once: the last word of a key counts.

    An algorithm that the experiment gives settings stays: `algo=` among the overrides is not for it.
    """
    name, *settings = experiment.split()
    cluster = [f"cluster.jobs={request.jobs}", "cluster.threads=1"]
    if any(word.startswith("cluster=") for word in request.overrides):
        cluster = []
    overrides = list(request.overrides)
    if "algo." in experiment:
        overrides = [word for word in overrides if not word.startswith("algo=")]
    full_words: Sequence[str] = ()
    if request.full:
        full_words = figure.full_words
    words = [f"experiment={name}", *settings, *full_words, *cluster, *overrides]
    last_word_of_key = {word.split("=", 1)[0]: word for word in words}
    return list(last_word_of_key.values())


def plan_figure(figure: Figure, request: Request) -> FigurePlan:
    """The runs of a figure by identity. ConfigError for what can't be composed.

    Experiments with a learning rate that is still to be chosen are left out with a warning.
    """
    algorithms: list[str] | None = None
    for word in request.overrides:
        if word.startswith("algo="):
            algorithms = word.removeprefix("algo=").split(",")
    jobs: dict[str, Job] = {}
    left_out = []
    for experiment in figure.experiments:
        try:
            planned = plan_runs([*SEARCH, *command_words(experiment, figure, request)])
        except ConfigError as error:
            if "no learning rate was chosen" not in str(error):
                raise
            left_out.append(experiment)
            hint = f"or choose it: python -m reproduce.rates {figure.name}"
            print_warning(f"{experiment} is left out; {error}, {hint}")
            continue
        for job in planned:
            if algorithms is None or job.config.algo.name in algorithms:
                jobs.setdefault(records.identity_of(job.config), job)
    return FigurePlan(figure, jobs, left_out)


def plan_in_full(figure: Figure, request: Request) -> FigurePlan:
    """All runs that a figure may have, without the overrides of this command."""
    return plan_figure(figure, replace(request, full=True, overrides=()))


def missing_runs(plans: Sequence[FigurePlan], request: Request) -> list[list[Job]]:
    """The runs that are neither recorded nor finished, each once, by the folder of their sweep, first seeds first."""
    jobs_by_sweep: dict[Path, dict[Path, Job]] = {}
    for plan in plans:
        recorded: dict[str, Any] = {}
        if request.recorded:
            stored = records.read(request.out / f"{plan.figure.name}.json")
            recorded = records.records_by_identity(stored)
        for identity, job in plan.jobs.items():
            folder = job.config.folder
            if identity not in recorded and not is_finished(folder):
                jobs_of_sweep = jobs_by_sweep.setdefault(folder.parent, {})
                jobs_of_sweep.setdefault(folder, job)
    # All seeds of a figure together would leave the other figures for last if it is stopped.
    return [sorted(jobs.values(), key=lambda job: job.config.seed) for jobs in jobs_by_sweep.values()]


def is_finished(folder: Path) -> bool:
    return (folder / "DONE").exists()


def is_stopped(code: int) -> bool:
    """True for the exit code of a sweep that a signal stopped; 1 and 2 say that runs failed."""
    return code > 2


def run_all(request: Request, sweeps: Sequence[Sequence[Job]], record: Callable[[], Any]) -> int:
    """Run sweeps one after the other; returns the largest exit code, at once where a signal stopped one.

    record: called after every few runs with --recorded, so that records are kept as runs end.
    """
    first = request.figures[0]
    words = [*SEARCH, *command_words(first.experiments[0], first, request)]
    worst_code = 0
    for jobs in sweeps:
        chunk_size = len(jobs)
        if request.recorded:
            chunk_size = RUNS_BETWEEN_RECORDS * request.jobs
        for start in range(0, len(jobs), chunk_size):
            chunk = jobs[start : start + chunk_size]
            worst_code = max(worst_code, run_sweep(chunk, words))
            if is_stopped(worst_code):
                return worst_code
            if request.recorded:
                record()
    return worst_code


def print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
