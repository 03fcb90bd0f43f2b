"""`python -m reproduce.rates FIGURE ...`: choose the learning rates of figures, by seeds that no figure reports.

A cell is a place and a loss of conf/learning_rates.yaml, and one run of FIGURE's experiments with another rate, two
seeds and validation problems in the place of the test. Each cell begins with three rates of one grid and is extended
until its choice, the higher mean, has a neighbour on both sides or is the grid's end; where a neighbour is a cliff, the
rate half-way to it is tried, too. A rate that is plainly worse with the first seed is not tried with the second.
FOLDER/rates.json has pass@1 of each run; it is written as runs end, and the same command goes on from it. Once every
cell has its choice, conf/learning_rates.yaml gets it and docs/results/rates.yaml what was tried: not before, since
records name the commit that made them, and conf is a part of that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from reproduce import records
from reproduce.__main__ import choose_figures, command_parser, refuse_changed_code, refuse_unrecorded
from reproduce.files import write_file
from reproduce.groups import RATE
from reproduce.selection import Record
from reproduce.tried_rates import GRID, HALF_STEPS, SEEDS, Tried, best_rate, half_steps, neighbourhood
from topr_exp import ConfigError, TOPRError, exit_status, run_sweep

if TYPE_CHECKING:
    from reproduce.figure import Figure
    from reproduce.jobs import Request
    from topr_exp import Job

HEAD = """# Learning rates for optim.lr, by place (a model; for long completions also the setting) and loss.
# `python -m reproduce.rates FIGURE` chooses them by the higher mean on validation problems of seeds 100 and 101, which
# no figure reports; docs/results/rates.yaml has what was tried. 3e-6 and 3e-3 are the ends of the grid. A loss without
# an entry there needs optim.lr in the papers' experiments (experiment=paper and those on it).
"""
HEAD_OF_TRIED = """# What the rates of conf/learning_rates.yaml were chosen from, by place, loss and rate: pass@1 (%)
# on validation problems of seeds 100 and 101. One number: plainly worse, not tried with the second seed.
"""
FIRST_RATE = 3e-4  # with both its neighbours, where conf has no rate yet
PLAIN_GAP = 10.0  # points below the best one with the first seed: not tried with the second
RUNS_BETWEEN_RECORDS = 4  # for each run at once
FAILED = 0.0  # pass@1 of a run that ended with a loss or gradient that was not finite


class Trial(NamedTuple):
    """A run of a cell."""

    rate: float
    seed: int


# ---- choices


def missing_trials(tried: Tried, first: float = FIRST_RATE, reach: int = 1) -> list[Trial]:
    """The runs that a choice lacks next; none where it is made.

    first: the rate to begin with, and `reach` on each side.
    """
    on_grid = {rate: tried[rate] for rate in GRID if rate in tried}
    start_index = min(max(GRID.index(first), reach), len(GRID) - 1 - reach)
    start = GRID[start_index]
    leader = start
    if on_grid:
        leader = leading_rate(on_grid)
    untried = {*neighbourhood(start, reach), *neighbourhood(leader)} - tried.keys()
    if untried:
        return first_trials(untried)
    second_trials = missing_second_trials(on_grid)
    if second_trials:
        return second_trials
    best = best_rate(on_grid)  # with both seeds, which another rate may lead
    untried = set(neighbourhood(best)) - tried.keys()
    if untried:
        return first_trials(untried)
    untried = half_steps(on_grid, best) - tried.keys()
    if untried:
        return first_trials(untried)
    return missing_second_trials(tried)


def first_trials(rates: Iterable[float]) -> list[Trial]:
    """Trials with the first seed."""
    return [Trial(rate, SEEDS[0]) for rate in sorted(rates)]


def missing_second_trials(tried: Tried) -> list[Trial]:
    """Trials with the second seed of the rates that are not plainly worse with the first."""
    best_score = tried[leading_rate(tried)][0]
    trials = []
    for rate, scores in sorted(tried.items()):
        if len(scores) < len(SEEDS) and scores[0] > best_score - PLAIN_GAP:
            trials.append(Trial(rate, SEEDS[1]))
    return trials


def leading_rate(tried: Tried) -> float:
    """The rate with the highest score of the first seed; of several, the lowest."""
    return max(tried, key=lambda rate: (tried[rate][0], -rate))


def first_rate(chosen: Any, tried: Tried) -> float:
    """The rate of the grid that a search begins with: conf's, where nothing was tried yet.

    Else it goes on where it was: a chosen rate half-way to a cliff does not say from which side.
    """
    on_grid = {rate: tried[rate] for rate in GRID if rate in tried}
    if on_grid:
        return leading_rate(on_grid)
    if not isinstance(chosen, float):
        return FIRST_RATE
    return min(GRID, key=lambda candidate: abs(np.log(candidate / chosen)))


# ---- cells


@dataclass(frozen=True, eq=False)
class Cell:
    """A place and a loss for which one rate is chosen."""

    place: str
    loss: str
    overrides: Sequence[str]  # of a run
    settings: Mapping[str, Any]  # of its record

    def job(self, trial: Trial) -> Job:
        from reproduce.jobs import SEARCH
        from topr_exp import plan_runs

        words = [*SEARCH, *self.overrides, f"{RATE}={trial.rate:g}", f"seed={trial.seed}"]
        (job,) = plan_runs(words)
        return job

    def settings_of(self, trial: Trial) -> dict[str, Any]:
        """The settings of a run's record, without composing those of the run."""
        return {**self.settings, RATE: trial.rate, "seed": trial.seed, "sampler.seed": trial.seed}

    def identity(self, trial: Trial) -> str:
        return records.identity_text(self.settings_of(trial))

    def tried(self, results: Mapping[str, Record]) -> Tried:
        """pass@1 of the runs that there are results of; results: by identity."""
        return scores_by_rate(self.identity, results)


def scores_by_rate(identity_of: Callable[[Trial], str], results: Mapping[str, Record]) -> Tried:
    """pass@1 of a cell's runs by rate, in the order of the seeds up to one without a result; results: by identity."""
    tried: Tried = {}
    for rate in sorted((*GRID, *HALF_STEPS)):
        for seed in SEEDS:
            result = results.get(identity_of(Trial(rate, seed)))
            if result is None:
                break
            tried.setdefault(rate, []).append(percent(result))
    return tried


def percent(record: Record) -> float:
    pass_at_1 = float(record["final"]["pass@1"])
    return round(100 * pass_at_1, 2)


def cells_of(figure: Figure, request: Request) -> list[Cell]:
    """The cells of a figure's experiments, each once."""
    from reproduce.jobs import SEARCH, command_words
    from topr_exp import plan_runs

    cells: dict[tuple[str, str], Cell] = {}
    for experiment in figure.experiments:
        for job in plan_runs([*SEARCH, *command_words(experiment, figure, request)]):
            assert job.composed is not None
            entry = job.composed.learning_rates
            cell = Cell(
                place=str(entry.place),
                loss=str(entry.loss),
                overrides=[word for word in job.overrides if not word.startswith((f"{RATE}=", "seed="))],
                settings=records.identifying_settings(job.config),
            )
            cells.setdefault((cell.place, cell.loss), cell)
    return list(cells.values())


# ---- the command


Launcher = Callable[[list["Job"], Sequence[str]], int]  # as `topr_exp.run_sweep`


@dataclass(frozen=True)
class RateFiles:
    """The files that choices are written into."""

    chosen: Path = records.LEARNING_RATES
    tried: Path = records.TRIED_RATES


def main(words: list[str] | None = None, launch: Launcher = run_sweep, files: RateFiles = RateFiles()) -> int:
    """Run the command; exit status 2 for a mistake in the settings. launch: runs jobs."""
    parser = command_parser("reproduce.rates", __doc__)
    parser.add_argument(
        "figures",
        nargs="+",
        metavar="FIGURE | KEY=VALUE",
        help="whose rates; settings of every run",
    )
    parser.add_argument("--full", action="store_true", help="both bases, where a figure has them")
    parser.add_argument("--list", action="store_true", help="say what each cell lacks, and start nothing")
    options = parser.parse_intermixed_args(words)
    return exit_status(partial(choose_rates, options, launch, files), resumes=True)


def choose_rates(options: argparse.Namespace, launch: Launcher, files: RateFiles) -> int:
    """Run what cells lack, a chunk at a time, then write the choices; returns the exit code of a signal, else 0."""
    request = read_request(options)
    if not options.list:
        refuse_changed_code(request.out)
    cells: list[Cell] = []
    for figure in request.figures:
        cells += cells_of(figure, request)
    results_file = options.out / "rates.json"
    results = records.records_by_identity(records.read(results_file))
    chosen_rates = records.read_rates(files.chosen)
    first_rates = {}
    for cell in cells:
        chosen_rate = chosen_rates.get(cell.place, {}).get(cell.loss)
        first_rates[cell] = first_rate(chosen_rate, cell.tried(results))
    code = 0
    while True:
        tried: dict[Cell, Tried] = {}
        missing: dict[Cell, list[Trial]] = {}
        trials_to_run: list[tuple[Cell, Trial]] = []
        for cell in cells:
            tried[cell] = cell.tried(results)
            missing[cell] = missing_trials(tried[cell], first_rates[cell])
            trials_to_run += [(cell, trial) for trial in missing[cell]]
        if results and not options.list:
            refuse_changed_code(request.out)  # it may have changed since the command began
            records.write(results_file, results.values(), {})
        if options.list or not trials_to_run or code:
            break
        chunk = trials_to_run[: RUNS_BETWEEN_RECORDS * options.jobs]
        code = run_trials(chunk, results, launch, cells[0].overrides)
    print_cells(tried, missing)
    if not options.list and not trials_to_run:
        write_rates(tried, files)
    return code


def run_trials(
    trials: Sequence[tuple[Cell, Trial]], results: dict[str, Record], launch: Launcher, overrides: Sequence[str]
) -> int:
    """Run trials as one sweep and add their results, by identity; returns the exit code of a signal, else 0.

    TOPRError for a run that failed for another reason than its rate.
    """
    from reproduce.jobs import SEARCH, is_stopped

    trial_of_run = {cell.identity(trial): (cell, trial) for cell, trial in trials}  # two figures may have a cell
    jobs = {identity: cell.job(trial) for identity, (cell, trial) in trial_of_run.items()}
    code = launch(list(jobs.values()), [*SEARCH, *overrides])
    for identity, (cell, trial) in trial_of_run.items():
        folder = jobs[identity].config.folder
        result = result_of_run(folder, cell.settings_of(trial))
        if result is not None:
            results[identity] = result
        elif not is_stopped(code):
            error = error_of(folder) or "it did not end"
            raise TOPRError(f"{folder}: {error}; a rate is judged by loss and weights alone")
    if is_stopped(code):
        return code
    return 0


def read_request(options: argparse.Namespace) -> Request:
    """The options, checked: one run a cell, on validation problems."""
    from reproduce.jobs import Request

    overrides = [word for word in options.figures if "=" in word]
    if len(overrides) == len(options.figures):
        raise ConfigError("name the figures whose learning rates are to be chosen")
    refuse_unrecorded(overrides)
    refuse_other_clusters(overrides)
    figures = choose_figures(options)
    one_run = [f"{RATE}={FIRST_RATE:g}", f"seed={SEEDS[0]}", "data.test_split=validation", "evaluation.every=null"]
    return Request(
        figures=figures,
        full=options.full,
        overrides=[*overrides, *one_run],
        jobs=options.jobs,
        recorded=True,
        out=options.out,
    )


def refuse_other_clusters(overrides: Sequence[str]) -> None:
    """Raise ConfigError for a cluster whose jobs end after the command that starts them."""
    for word in overrides:
        if word.startswith("cluster=") and word != "cluster=local":
            raise ConfigError(f"{word}: only cluster=local chooses rates, since each choice waits for its runs")


def error_of(folder: Path) -> str:
    """The line with which a run failed; empty where there is none."""
    error_file = folder / "error.txt"
    if not error_file.is_file():
        return ""
    return error_file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]


def result_of_run(folder: Path, settings: Mapping[str, Any]) -> Record | None:
    """What a choice reads of a run that ended, and where that comes from; None for a run that broke off."""
    from reproduce.jobs import is_finished

    if not is_finished(folder):
        return failed_record(folder, settings)
    record = records.extract(folder, ())
    return {
        "run": record["run"],
        "settings": settings,
        "environment": record["environment"],
        "final": {"pass@1": record["final"]["pass@1"]},
    }


def failed_record(folder: Path, settings: Mapping[str, Any]) -> Record | None:
    """The record of a run that its rate ended: loss or gradient not finite, nothing correct; None for others."""
    if "not finite" not in error_of(folder):
        return None
    return {"run": folder.name, "settings": settings, "environment": {}, "final": {"pass@1": FAILED}}


def print_cells(tried: Mapping[Cell, Tried], missing: Mapping[Cell, Sequence[Trial]]) -> None:
    for cell, trials in missing.items():
        print(f"{cell.place:30} {cell.loss:20} {describe_choice(tried[cell], trials)}", flush=True)


def describe_choice(tried: Tried, missing: Sequence[Trial]) -> str:
    """The runs that a choice lacks, as RATE/SEED; or its rate, where it is complete."""
    if not missing:
        return f"{best_rate(tried):g}"
    lacking = [f"{trial.rate:g}/{trial.seed}" for trial in missing]
    return f"lacks {' '.join(lacking)}"


def write_rates(tried_of_cell: Mapping[Cell, Tried], files: RateFiles) -> None:
    """Write choices into conf, and what was tried for them beside the records."""
    rates, tried_rates = records.read_rates(files.chosen), records.read_rates(files.tried)
    for cell, tried in tried_of_cell.items():
        rates.setdefault(cell.place, {})[cell.loss] = best_rate(tried)
        tried_rates.setdefault(cell.place, {})[cell.loss] = tried
    write_yaml(files.chosen, HEAD, rates)
    write_yaml(files.tried, HEAD_OF_TRIED, tried_rates)


def write_yaml(path: Path, head: str, values: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110)
    write_file(path, head + text)


if __name__ == "__main__":
    sys.exit(main())
