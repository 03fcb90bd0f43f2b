"""`python -m reproduce.rates FIGURE ...`: choose the learning rates of figures, by seeds that no figure reports.

A cell is a place and a loss of conf/learning_rates.yaml, and one run of FIGURE's experiments with another rate, two
seeds and validation problems in the place of the test. Each cell begins with three rates of one grid and is extended
until its choice, the higher mean, has a neighbour on both sides or is the grid's end; a rate that is plainly worse with
the first seed is not tried with the second. FOLDER/rates.json has pass@1 of each run, conf/learning_rates.yaml the
choice, docs/results/rates.yaml what was tried; all are written as runs end, and the same command goes on from them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from reproduce import records
from reproduce.groups import RATE
from topr_exp.runs.attempt import last_error
from topr_exp.runs.records import Record
from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.files import write_text
from topr_exp.runtime.terminal import say
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from reproduce.figure import Figure
    from reproduce.jobs import Request
    from topr_exp.runs.plan import Job

HEAD = """# Learning rates for optim.lr, by place (a model; for long answers also the setting) and loss.
# `python -m reproduce.rates FIGURE` chooses them by the higher mean on validation problems of seeds 100 and 101, which
# no figure reports; docs/results/rates.yaml has what was tried. 3e-6 and 3e-3 are the ends of the grid. A loss without
# an entry there has its optimizer's default.
"""
HEAD_OF_TRIED = """# What the rates of conf/learning_rates.yaml were chosen from, by place, loss and rate: pass@1 (%)
# on validation problems of seeds 100 and 101. One number: plainly worse, not tried with the second seed.
"""
GRID = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
FIRST = 3e-4  # with both its neighbours, where conf has no rate yet
SEEDS = (100, 101)
PLAINLY = 10.0  # points below the best one with the first seed: not tried with the second
CHUNK = 4  # runs a job between two records
FAILED = 0.0  # pass@1 of a run that ended with an error, such as a gradient that is not finite
Tried = dict[float, list[float]]  # pass@1 in percent by rate: of the first seed, or of both


def wanted(tried: Tried, first: float = FIRST) -> list[tuple[float, int]]:
    """The runs (rate, seed) that a choice lacks; none where it is made."""
    start = GRID[min(max(GRID.index(first), 1), len(GRID) - 2)]
    top = max(tried, key=lambda rate: (tried[rate][0], -rate), default=start)  # by the first seed
    missing = {rate for best in (start, top) for rate in around(best) if rate not in tried}
    if not missing:
        close = [rate for rate, values in tried.items() if values[0] > tried[top][0] - PLAINLY]
        if single := [rate for rate in close if len(tried[rate]) < len(SEEDS)]:
            return [(rate, SEEDS[1]) for rate in sorted(single)]
        missing = {rate for rate in around(choice(tried)) if rate not in tried}
    return [(rate, SEEDS[0]) for rate in sorted(missing)]


def around(rate: float) -> tuple[float, ...]:
    """A rate of the grid and its neighbours."""
    at = GRID.index(rate)
    return GRID[max(at - 1, 0) : at + 2]


def choice(tried: Tried) -> float:
    """The rate with the higher mean over both seeds; of two, the lower."""
    both = {rate: float(np.mean(values)) for rate, values in tried.items() if len(values) == len(SEEDS)}
    return min(both, key=lambda rate: (-both[rate], rate))


# ---- cells


@dataclass(frozen=True, eq=False)
class Cell:
    """What one rate is chosen for."""

    place: str
    loss: str
    overrides: Sequence[str]  # of a run
    settings: Mapping[str, Any]  # of its record

    def job(self, rate: float, seed: int) -> Job:
        from reproduce.jobs import SEARCH
        from topr_exp.config.compose_overrides import parse_arguments
        from topr_exp.runs.plan import plan

        (job,) = plan(parse_arguments([*SEARCH, *self.overrides, f"optim.lr={rate:g}", f"seed={seed}"])).jobs
        return job

    def key(self, rate: float, seed: int) -> str:
        """A run's identity, without composing its settings."""
        return json.dumps({**self.settings, RATE: rate, "seed": seed, "sampler.seed": seed}, sort_keys=True)

    def tried(self, known: Mapping[str, Record]) -> Tried:
        found = {
            rate: [percent(known[key]) for seed in SEEDS if (key := self.key(rate, seed)) in known] for rate in GRID
        }
        return {rate: values for rate, values in found.items() if values}


def read_of(record: Record) -> Record:
    """What a choice reads of a record, and where that comes from."""
    kept = {name: record[name] for name in ("run", "settings", "environment")}
    return kept | {"final": {"pass@1": record["final"]["pass@1"]}}


def percent(record: Record) -> float:
    return round(100 * float(record["final"]["pass@1"]), 2)


def cells_of(figure: Figure, request: Request) -> list[Cell]:
    """The cells of a figure's experiments, each once."""
    from reproduce.jobs import SEARCH, arguments
    from topr_exp.config.compose_overrides import Composer, parse_arguments
    from topr_exp.config.load import load

    found: dict[tuple[str, str], Cell] = {}
    for experiment in figure.experiments:
        composer = Composer(parse_arguments([*SEARCH, *arguments(experiment, figure, request)]))
        for overrides, composed in composer.jobs(composer.base()):
            place, loss = str(composed.learning_rates.place), str(composed.learning_rates.loss)
            known = [text for text in overrides if not text.startswith((f"{RATE}=", "seed="))]
            settings = json.loads(records.identity_of(load(composed)))
            found.setdefault((place, loss), Cell(place, loss, known, settings))
    return [*found.values()]


# ---- the command


def main(given: list[str] | None = None) -> int:
    """The command; exit status 2 for a mistake in the settings."""
    parser = command_parser("reproduce.rates", __doc__)
    parser.add_argument("figures", nargs="+", metavar="FIGURE | KEY=VALUE", help="whose rates; settings of every run")
    parser.add_argument("--full", action="store_true", help="both bases, where a figure has them")
    parser.add_argument("--list", action="store_true", help="say what each cell lacks, and start nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="FOLDER", help="default: %(default)s")
    return exit_status(partial(choose, parser.parse_args(given)), resumes=True)


def choose(options: argparse.Namespace) -> int:
    """Run what cells lack, a chunk at a time, and write down what is known; returns the exit code."""
    from reproduce.__main__ import chosen
    from reproduce.jobs import SEARCH, Request
    from reproduce.tables import FIGURES
    from topr_exp.runs.plan import Plan
    from topr_exp.sweeps.launch import launch

    overrides = [text for text in options.figures if "=" in text]
    if len(overrides) == len(options.figures):
        raise ConfigError("name the figures whose learning rates are to be chosen")
    if other := [text for text in overrides if text.startswith("cluster=") and text != "cluster=local"]:
        raise ConfigError(f"{other[0]}: only cluster=local chooses rates, since each choice waits for its runs")
    figures = chosen(FIGURES, options)
    own = [f"{RATE}={FIRST:g}", f"seed={SEEDS[0]}", "data.test_split=validation", "evaluation.every=null"]
    request = Request(figures, options.full, [*overrides, *own], options.jobs, True, options.out)
    cells = [cell for figure in figures for cell in cells_of(figure, request)]
    file, code = options.out / "rates.json", 0
    known, failed = records.known(records.read(file)), dict[str, Record]()
    begin = {cell: nearest(records.read_rates().get(cell.place, {}).get(cell.loss)) for cell in cells}
    while True:
        tried = {cell: cell.tried(known | failed) for cell in cells}
        lacking = {cell: wanted(tried[cell], begin[cell]) for cell in cells}
        write_rates({cell: tried[cell] for cell, runs in lacking.items() if not runs})
        if known:
            records.write(file, known.values(), {})
        todo = [(cell, *run) for cell, runs in lacking.items() for run in runs]
        if options.list or not todo or code > 2:
            for cell, runs in lacking.items():
                shown = " ".join(f"{rate:g}/{seed}" for rate, seed in runs)
                say(f"{cell.place:30} {cell.loss:20} {f'lacks {shown}' if runs else f'{choice(tried[cell]):g}'}")
            return code
        jobs = {cell.key(rate, seed): cell.job(rate, seed) for cell, rate, seed in todo[: CHUNK * options.jobs]}
        code = launch(Plan([*jobs.values()], True), [*SEARCH, *cells[0].overrides], reports=False)
        for key, job in jobs.items():
            folder = job.config.folder
            if (folder / "DONE").exists():
                known[key] = read_of(records.extract(folder, ()))
            elif "not finite" in (why := last_error(folder)):
                failed[key] = {"final": {"pass@1": FAILED}}
            elif code <= 2:
                raise TOPRError(f"{folder}: {why or 'it did not end'}; a rate is judged by loss and weights alone")


def nearest(rate: Any) -> float:
    """The rate of the grid that a choice begins with."""
    return min(GRID, key=lambda each: abs(np.log(each / rate))) if isinstance(rate, float) else FIRST


def write_rates(made: Mapping[Cell, Tried]) -> None:
    """Write choices that are made into conf, and what was tried for them beside the records."""
    if not made:
        return
    rates, how = records.read_rates(), records.read_rates(records.TRIED)
    for cell, tried in made.items():
        rates.setdefault(cell.place, {})[cell.loss] = choice(tried)
        how.setdefault(cell.place, {})[cell.loss] = tried
    for path, head, found in ((records.LEARNING_RATES, HEAD, rates), (records.TRIED, HEAD_OF_TRIED, how)):
        write_text(path, head + yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=110))


if __name__ == "__main__":
    sys.exit(main())
