"""`python -m reproduce [FIGURE ...] [KEY=VALUE ...]`: run, draw and write the papers' figures.

Without FIGURE, all of them. KEY=VALUE applies to every experiment, for example seed=0. Runs are in outputs/paper; each
is computed once for all figures, and the same command resumes. FOLDER gets each figure's numbers (JSON), picture (PNG)
and a section of README.md; results of other runs in it stay.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from reproduce.figure import Figure
    from reproduce.jobs import Request

COMPARED = "COMPARED"  # in the folder of a check: it is over, and the next one computes again


def main(given: list[str] | None = None) -> int:
    """The command; exit status 1 where runs failed or a check found a difference, 2 for a mistake in the settings."""
    return exit_status(partial(make_figures, parser().parse_intermixed_args(given)), resumes=True)


def parser() -> argparse.ArgumentParser:
    top = command_parser("reproduce", __doc__)
    top.add_argument("figures", nargs="*", metavar="FIGURE | KEY=VALUE", help="fig1 ... fig9, table1, agro_kl, ...")
    top.add_argument("--full", action="store_true", help="both bases, more seeds, questions beyond the papers")
    top.add_argument("--recorded", action="store_true", help="keep the records in FOLDER and run only what is missing")
    instead = top.add_mutually_exclusive_group()  # of running what is missing
    for option, what in {
        "--draw": "draw and write what is recorded or finished; starts nothing",
        "--check": "rerun and compare with the records in FOLDER; writes nothing",
        "--list": "list what each figure needs; starts nothing",
    }.items():
        instead.add_argument(option, action="store_true", help=what)
    top.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (default: %(default)s)")
    top.add_argument("--out", type=Path, default=Path("docs/results"), metavar="FOLDER", help="default: %(default)s")
    return top


def make_figures(options: argparse.Namespace) -> int:
    """Run what is missing of the figures, then draw and write them; or compare with what is recorded, or only list."""
    from reproduce.check import check, write_figure, write_records
    from reproduce.jobs import needs, run
    from reproduce.page import write_page
    from reproduce.tables import FIGURES
    from topr_exp.runs.preflight import check_machine
    from topr_exp.runtime.files import write_text
    from topr_exp.runtime.terminal import say

    began = time.monotonic()
    request = request_of(options)
    found, todo = needs(request)
    for need in found:
        say(f"{need.figure.name:16} {len(need.jobs):4} runs")
    jobs = [job for planned in todo for job in planned.jobs]
    say(f"{len(jobs)} different runs to do")
    if options.list:
        return 0
    if options.draw:
        todo = []
    check_machine(job.config for planned in todo for job in planned.jobs)
    code = run(request, todo, lambda: [write_records(need, request) for need in found])
    if code > 2:  # stopped by a signal
        return code
    if any(job.config.cluster.submits_jobs for planned in todo for job in planned.jobs):
        say("the same command draws the figures once the jobs have ended")
        return code
    if options.check:
        agreed = [check(need, request.out) for need in found]
        write_text(Path(request.overrides[-1].split("=", 1)[1]) / COMPARED, "")
        return int(not all(agreed))
    for need in found:
        say(f"{need.figure.name}: drawn from {write_figure(need, request)} runs")
    say(f"wrote {write_page(FIGURES, request.out)} in {(time.monotonic() - began) / 60:.1f} minutes")
    return code


def request_of(options: argparse.Namespace) -> Request:
    """What was asked for, checked; the runs of a check have their own folder, a new one unless a check was stopped."""
    from reproduce.jobs import Request
    from reproduce.tables import FIGURES

    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out {options.out}: not a folder")
    overrides = [text for text in options.figures if "=" in text]
    check_overrides(overrides)
    figures = chosen(FIGURES, options)
    if options.check:
        given = dict(text.split("=", 1) for text in overrides)
        place = Path(given.get("output_dir", "outputs")) / "check"
        if (place / COMPARED).exists():
            shutil.rmtree(place)
        overrides.append(f"output_dir={place}")
    recorded = options.recorded and not options.check
    return Request(figures, options.full, overrides, options.jobs, recorded, options.out)


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse settings that records don't hold: runs that differ in them would pass for the same run."""
    from reproduce.records import KEYS, KEYS_OF_LOSSES

    known = (*KEYS, *KEYS_OF_LOSSES)
    groups = ("algo", "data", "model", "compose", "schedule")
    others = ("output_dir", "sampler.prompts_per_shard", "optim.score_batch_size")
    for text in overrides:
        key = text.lstrip("+~").split("=", 1)[0]
        if key not in (*known, *groups, *others) and key.split(".")[0] not in ("cluster", "tracking", "checkpoint"):
            raise ConfigError(
                f"{text}: results are told apart by other settings ({', '.join(known)}); "
                "for this one start the sweep itself: python -m topr_exp experiment=FIGURE"
            )


def chosen(figures: Sequence[Figure], options: argparse.Namespace) -> list[Figure]:
    """The figures that are named, or all; those that train their own model are left out where one is given."""
    names = [text for text in options.figures if "=" not in text]
    given = next((text for text in options.figures if text.startswith("model=")), None)
    known = {figure.name: figure for figure in figures}
    for name in names:
        if name not in known:
            raise ConfigError(f"{name}: no such figure; allowed: {', '.join(known)}")
        if given and known[name].own_model:
            raise ConfigError(f"{given}: {name} trains another model; leave one of the two out")
    if names:
        return [figure for figure in figures if figure.name in names]
    return [each for each in figures if (options.full or not each.only_full) and not (given and each.own_model)]


if __name__ == "__main__":
    sys.exit(main())
