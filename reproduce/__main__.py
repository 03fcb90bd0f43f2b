"""`python -m reproduce [FIGURE ...] [KEY=VALUE ...]`: run, draw and write the papers' figures.

`python -m reproduce bench` is another command: any loss's row in one table; `python -m reproduce real`, too: a study on
a real model. Without FIGURE, all of them. KEY=VALUE applies to every experiment, for example seed=0. Runs are in
outputs/paper; each is computed once for all figures, and the same command resumes. FOLDER gets each figure's numbers
(JSON), picture (PNG) and a section of README.md; what it holds of other runs of --full stays.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp import ConfigError, exit_status

if TYPE_CHECKING:
    from reproduce.figure import Figure
    from reproduce.jobs import FigurePlan, Request

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("docs/results")
CODE = ("topr_exp", "reproduce", "conf", "pyproject.toml")  # below ROOT: what numbers depend on
COMPARED = "COMPARED"  # in the folder of a check: it is over, and the next one computes again
# Settings that records don't hold, and that change no number.
OTHER_KEYS = ("output_dir", "sampler.prompts_per_shard")
OTHER_SECTIONS = ("cluster", "tracking", "checkpoint")
GROUPS = ("algo", "data", "model", "compose", "schedule")


def main(words: list[str] | None = None) -> int:
    """Run the command; exit status 1 where runs failed or a check found a difference, 2 for a mistake in settings."""
    return exit_status(partial(make_figures, parser().parse_intermixed_args(words)), resumes=True)


def command_parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m MODULE` whose help is the module's docstring."""
    summary, _, details = (doc or "").partition("\n\n")
    description = summary.split(": ", 1)[-1]
    command = argparse.ArgumentParser(prog=f"python -m {module}", description=description, epilog=details)
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (default: %(default)s)")
    command.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="default: %(default)s")
    return command


def parser() -> argparse.ArgumentParser:
    command = command_parser("reproduce", __doc__)
    command.add_argument("figures", nargs="*", metavar="FIGURE | KEY=VALUE", help="fig1 ... fig9, table1, agro_kl, ...")
    command.add_argument("--full", action="store_true", help="both bases, more seeds, questions beyond the papers")
    command.add_argument("--recorded", action="store_true", help="keep the records in FOLDER and run only the missing")
    action = command.add_mutually_exclusive_group()
    action.add_argument("--draw", action="store_true", help="draw and write the records and finished runs; run nothing")
    action.add_argument("--check", action="store_true", help="rerun, compare with the records in FOLDER; write nothing")
    action.add_argument("--list", action="store_true", help="list the runs that each figure needs; start nothing")
    return command


def make_figures(options: argparse.Namespace) -> int:
    """Run what is missing of the figures, then draw and write them; or compare with what is recorded, or only list."""
    from reproduce.check import check, finished_records, write_figure, write_records
    from reproduce.figures import FIGURES
    from reproduce.files import write_file
    from reproduce.jobs import is_stopped, missing_runs, plan_figure, run_all
    from reproduce.page import write_page

    began = time.monotonic()
    request = read_request(options)
    plans = [plan_figure(figure, request) for figure in request.figures]
    if not options.check:
        refuse_mixed_settings(plans, request)
    sweeps = missing_runs(plans, request)
    for plan in plans:
        print(f"{plan.figure.name:16} {len(plan.jobs):4} runs", flush=True)
    print(f"{sum(map(len, sweeps))} different runs to do", flush=True)
    if options.list:
        return 0
    if options.draw:
        sweeps = []
    if not options.check:
        refuse_runs_of_changed_code(plans, request.out)
        if sweeps:
            refuse_changed_code(request.out)
    code = run_all(request, sweeps, lambda: [write_records(plan, request, finished_records(plan)) for plan in plans])
    if is_stopped(code):
        return code
    if any(job.config.cluster.submits_jobs for jobs in sweeps for job in jobs):
        print("the same command draws the figures once the jobs have ended", flush=True)
        return code
    if options.check:
        agreements = [check(plan, request.out) for plan in plans]
        write_file(check_folder(request.overrides) / COMPARED, "")
        return int(not all(agreements))
    for plan in plans:
        print(f"{plan.figure.name}: drawn from {write_figure(plan, request)} runs", flush=True)
    page = write_page(FIGURES, request.out)
    print(f"wrote {page} in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return code


def is_of_repository(out: Path, root: Path = ROOT) -> bool:
    """True for the folder of the records that the repository holds."""
    return out.resolve() == root / RESULTS


def refuse_changed_code(out: Path, root: Path = ROOT) -> None:
    """Raise ConfigError where records for the repository would come from code that no commit has."""
    if not is_of_repository(out, root) or not (root / ".git").exists():
        return
    status = ["git", "-C", str(root), "status", "--porcelain", "--", *CODE]
    lines = subprocess.run(status, capture_output=True, text=True, check=True).stdout.splitlines()
    if lines:
        raise ConfigError(
            f"--out {out}: records name the commit that made them, but {lines[0][3:]} has uncommitted changes "
            f"({len(lines)} in all); commit them, or give another --out"
        )


def refuse_runs_of_changed_code(plans: Sequence[FigurePlan], out: Path) -> None:
    """Raise ConfigError for a finished run of code that no commit has, where it would be a record of the repository."""
    from reproduce.files import read_json
    from reproduce.jobs import is_finished

    if not is_of_repository(out):
        return
    for plan in plans:
        for job in plan.jobs.values():
            folder = job.config.folder
            if is_finished(folder) and read_json(folder / "environment.json").get("git_dirty"):
                raise ConfigError(
                    f"--out {out}: records name the commit that made them, but {folder} was begun with uncommitted "
                    "changes; remove it, or give another --out"
                )


def refuse_mixed_settings(plans: Sequence[FigurePlan], request: Request) -> None:
    """Raise ConfigError for overrides whose runs a figure would draw together with recorded ones of other settings."""
    from reproduce import records
    from reproduce.jobs import plan_in_full

    if not request.overrides:
        return
    for plan in plans:
        file = request.out / f"{plan.figure.name}.json"
        recorded = records.records_by_identity(records.read(file))
        if recorded.keys() <= plan.jobs.keys():
            continue
        full_plan = plan_in_full(plan.figure, request)
        if not plan.jobs.keys() <= full_plan.jobs.keys():
            raise ConfigError(
                f"--out {request.out}: the figure would mix runs with {' '.join(request.overrides)} and others "
                f"in {file.name}; give another --out"
            )


def read_request(options: argparse.Namespace) -> Request:
    """The options, checked; the runs of a check have their own folder, a new one unless a check was stopped."""
    from reproduce.jobs import Request

    if options.out.exists() and not options.out.is_dir():
        raise ConfigError(f"--out {options.out}: not a folder")
    overrides = [word for word in options.figures if "=" in word]
    refuse_unrecorded(overrides)
    figures = choose_figures(options)
    if options.check:
        folder = check_folder(overrides) / "check"
        if (folder / COMPARED).exists():
            shutil.rmtree(folder)
        overrides.append(f"output_dir={folder}")
    recorded = options.recorded and not options.check
    return Request(figures, options.full, overrides, options.jobs, recorded, options.out)


def check_folder(overrides: Sequence[str]) -> Path:
    """The output folder of a command line; of a check, once its own is the last override."""
    values = dict(word.split("=", 1) for word in overrides)
    return Path(values.get("output_dir", "outputs"))


def refuse_unrecorded(overrides: Sequence[str]) -> None:
    """Raise ConfigError for settings that records don't hold: runs that differ in them would pass for the same run."""
    from reproduce.records import KEYS, KEYS_BESIDE_THE_LOSS

    keys_outside_algo = [key for key in (*KEYS, *KEYS_BESIDE_THE_LOSS) if not key.startswith("algo.")]
    for word in overrides:
        key = word.lstrip("+~").split("=", 1)[0]
        section = key.split(".")[0]
        if key not in (*keys_outside_algo, *GROUPS, *OTHER_KEYS) and section not in ("algo", *OTHER_SECTIONS):
            raise ConfigError(
                f"{word}: results are told apart by other settings ({', '.join(['algo.*', *keys_outside_algo])}); "
                "for this one start the sweep itself: python -m topr_exp experiment=FIGURE"
            )


def choose_figures(options: argparse.Namespace) -> list[Figure]:
    """The figures that are named, or all; those that train their own model are left out where one is given."""
    from reproduce.figures import FIGURES

    names = [word for word in options.figures if "=" not in word]
    model = next((word for word in options.figures if word.startswith("model=")), None)
    figure_of = {figure.name: figure for figure in FIGURES}
    for name in names:
        if name not in figure_of:
            raise ConfigError(f"{name}: no such figure; allowed: {', '.join(figure_of)}")
        if model and figure_of[name].names_models:
            raise ConfigError(f"{model}: {name} trains another model; leave one of the two out")
    if names:
        return [figure for name, figure in figure_of.items() if name in names]
    default_figures = []
    for figure in FIGURES:
        if (options.full or not figure.only_full) and not (model and figure.names_models):
            default_figures.append(figure)
    return default_figures


if __name__ == "__main__":
    if sys.argv[1:2] in (["bench"], ["real"]):
        runpy.run_module(f"reproduce.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
    sys.exit(main())
