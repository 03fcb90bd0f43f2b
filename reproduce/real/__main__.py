"""`python -m reproduce real [KEY=VALUE ...]`: study a real model, SmolLM2-135M-Instruct on GSM8K, on a GPU.

It imitates GSM8K's solutions (SFT), samples 8 completions of 1,024 problems once, and trains on them with five losses,
effective proportions of positives of 0.1, 0.2, 0.5 and that of the completions (c = 0), and three seeds. Each step
takes at most ten minutes on one H200; records and tables are written after each. The same command, or another machine
with the same FOLDER, goes on where it stopped. KEY: data.source, model.path and others that change no number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reproduce.__main__ import OTHER_SECTIONS, command_parser
from reproduce.files import plural
from reproduce.rates import refuse_other_clusters
from reproduce.real.plan import ASSUMPTIONS, MODEL, SEEDS, Step, minutes_of, plan_steps
from reproduce.real.solutions import write_stand_in
from reproduce.real.study import Study
from topr_exp import ConfigError, TOPRError, exit_status

ALLOWED_KEYS = ("data.source", "model.path", "optim.micro_batch_size", "sampler.prompts_per_shard")
OUT, SMALL_OUT = Path("outputs/real"), Path("outputs/real-small")


def main(words: list[str] | None = None) -> int:
    """Run the command; exit status 1 where a run failed or there is no GPU, 2 for a mistake in settings."""
    return exit_status(partial(make_study, parser().parse_intermixed_args(words)), resumes=True)


def parser() -> argparse.ArgumentParser:
    command = command_parser("reproduce real", __doc__)
    command.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of every run")
    command.add_argument("--minutes", type=float, metavar="M", help="start no step that would end later")
    command.add_argument("--plan", action="store_true", help="list the steps with their minutes; start nothing")
    command.add_argument("--small", action="store_true", help="try the steps on a CPU: a tiny model, sums, one seed")
    command.set_defaults(jobs=1, out=None)
    return command


def make_study(options: argparse.Namespace) -> int:
    """Do the steps that are missing; returns the exit status."""
    refuse_other_settings(options.words)
    study = open_study(options)
    if options.plan:
        print_plan(study, is_small=options.small)
        return 0
    if not options.small:
        refuse_missing_gpu(study)
    return run_steps(study, options.minutes)


def open_study(options: argparse.Namespace) -> Study:
    """The study in --out or its default; with --small that of the tiny model on sums, with one seed."""
    cluster = f"cluster.jobs={options.jobs}"
    if not options.small:
        return Study(options.out or OUT, [f"model={MODEL}", cluster, *options.words], plan_steps())
    folder = options.out or SMALL_OUT
    problems = folder / "problems"
    write_stand_in(problems)
    words = ["model=tiny", f"data.source={problems}", cluster, "cluster.threads=1", *options.words]
    return Study(folder, words, plan_steps(SEEDS[:1]))


def refuse_other_settings(words: Sequence[str]) -> None:
    """Raise ConfigError for settings in which runs would differ from those that are planned."""
    refuse_other_clusters(words)
    for word in words:
        key = word.split("=", 1)[0]
        if key not in ALLOWED_KEYS and key.split(".")[0] not in OTHER_SECTIONS:
            sections = [f"{section}..." for section in OTHER_SECTIONS]
            raise ConfigError(f"{word}: the study sets it; allowed: {', '.join([*ALLOWED_KEYS, *sections])}")


def refuse_missing_gpu(study: Study) -> None:
    """Raise TOPRError where no GPU is seen, which says what would be done."""
    import torch

    if not torch.cuda.is_available():
        raise TOPRError(
            f"no GPU is seen: {describe_work(study)}; --plan lists the steps, --small tries them on this machine"
        )


# ---- the plan


def minutes_left(study: Study, step: Step) -> float:
    """The minutes that a step takes at most; 0 for one that is done."""
    return 0.0 if study.is_done(step) else minutes_of(step, study.config, study.record_of_cell)


def describe_work(study: Study) -> str:
    missing_steps = [step for step in study.steps if not study.is_done(step)]
    minutes = sum(minutes_left(study, step) for step in missing_steps)
    return f"{plural(len(missing_steps), 'step')} take at most {minutes:.0f} minutes on one H200 by estimate"


def print_plan(study: Study, *, is_small: bool) -> None:
    """A line a step: its number, its runs, whether it is done, and its minutes, which are known for a GPU alone."""
    for number, step in enumerate(study.steps, 1):
        minutes = "" if is_small else f"{minutes_left(study, step):5.1f} minutes"
        state = "done" if study.is_done(step) else minutes
        print(f"{number:3} {step.name:32} {plural(max(len(step.cells), 1), 'run'):7} {state}".rstrip())
    if not is_small:
        print(f"{describe_work(study)}, {ASSUMPTIONS}")


def run_steps(study: Study, minutes: float | None) -> int:
    """Do the missing steps in order; minutes: no step begins that would end later. Returns the exit status."""
    began, count = time.monotonic(), len(study.steps)
    for number, step in enumerate(study.steps, 1):
        if study.is_done(step):
            continue
        if minutes is not None:
            needed, remaining = minutes_left(study, step), minutes - (time.monotonic() - began) / 60
            if needed > remaining:
                print(f"step {number} of {count} needs {needed:.1f} minutes: not begun; the same command goes on")
                return 0
        print(f"step {number} of {count}: {step.name}", flush=True)
        status = study.run(step)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
