"""`python -m reproduce bench [algo=NAME] [KEY=VALUE ...]`: give a loss its row of the bench, or every loss.

A row is a loss, yours too, with its settings; a column is a condition. Of each cell the learning rate is chosen by
seeds 100 and 101 on validation problems, from five rates and more where the best is at their end; seeds 0, 1 and 2 are
reported, as differences to TOPR. FOLDER gets bench/NAME.json, bench.md and bench.png. The same command goes on where
it stopped, and another row may be computed beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reproduce.__main__ import command_parser, is_of_repository, refuse_changed_code, refuse_unrecorded
from reproduce.bench.cells import Cell
from reproduce.bench.conditions import CONDITIONS, ROWS, Condition, Row, is_loss_word, row_of
from reproduce.bench.row_files import read_rows
from reproduce.bench.table import write_bench
from reproduce.bench.work import Launcher, RowWork
from reproduce.jobs import is_stopped
from reproduce.rates import refuse_other_clusters
from topr_exp import ConfigError, exit_status, run_sweep


def main(words: list[str] | None = None) -> int:
    """Run the command; exit status 1 where runs failed, 2 for a mistake in settings."""
    return exit_status(partial(make_bench, parser().parse_intermixed_args(words)), resumes=True)


def parser() -> argparse.ArgumentParser:
    command = command_parser("reproduce bench", __doc__)
    command.add_argument("words", nargs="*", metavar="KEY=VALUE", help="algo=NAME and settings; without, every loss")
    command.add_argument("--config-dir", type=Path, metavar="FOLDER", help="of your own YAMLs, as in docs/losses.md")
    names = ", ".join(condition.name for condition in CONDITIONS)
    command.add_argument("--conditions", metavar="NAME,...", help=f"columns to compute (default: all): {names}")
    command.add_argument("--small", action="store_true", help="seconds in place of minutes, to try the command")
    action = command.add_mutually_exclusive_group()
    action.add_argument("--draw", action="store_true", help="write table and picture from the records; run nothing")
    action.add_argument("--list", action="store_true", help="say what each cell lacks; start nothing")
    return command


def make_bench(options: argparse.Namespace, launch: Launcher = run_sweep) -> int:
    """Run what the rows lack, then write the table and the picture. launch: runs jobs, as `topr_exp.run_sweep`.

    Returns the exit code: 1 where runs failed.
    """
    refuse_unrecorded(settings_of_runs(options))
    refuse_other_clusters(settings_of_runs(options))
    if options.small and is_of_repository(options.out):
        raise ConfigError(f"--small: its numbers mean nothing, so {options.out} can't hold them; give another --out")
    if not (options.draw or options.list):
        refuse_changed_code(options.out)
    rows: Sequence[Row] = []
    if not options.draw:
        rows = chosen_rows(options.words)
    code = 0
    for row in rows:
        work = RowWork(row, cells_of_row(row, options), options.out, options.jobs, launch)
        if options.list:
            work.print_cells()
            continue
        code = max(code, work.run())
        if is_stopped(code):
            return code
    if not options.list:
        print(f"wrote {write_bench(read_rows(options.out), options.out)}", flush=True)
    return code


def settings_of_runs(options: argparse.Namespace) -> list[str]:
    """The words that every run gets, beside those of the loss."""
    return [word for word in options.words if not is_loss_word(word)]


def chosen_rows(words: Sequence[str]) -> Sequence[Row]:
    """The row of the loss that is named; all where none is."""
    loss_words = list(filter(is_loss_word, words))
    if not loss_words:
        return ROWS
    if not any(word.startswith("algo=") for word in loss_words):
        raise ConfigError(f"{loss_words[0]}: of which loss? give algo=NAME, too")
    return [row_of(loss_words)]


def cells_of_row(row: Row, options: argparse.Namespace) -> list[Cell]:
    """The cells of a row, in the order of the conditions."""
    search: list[str] = []
    if options.config_dir is not None:
        search = ["--config-dir", str(options.config_dir)]
    cluster = [f"cluster.jobs={options.jobs}", "cluster.threads=1"]
    cells = []
    for condition in chosen_conditions(options.conditions):
        words = [*condition.words(is_small=options.small), *cluster, *settings_of_runs(options), *row.words]
        last_word_of_key = {word.split("=", 1)[0]: word for word in words}
        cells.append(Cell(row, condition, [*search, *last_word_of_key.values()]))
    return cells


def chosen_conditions(names: str | None) -> Sequence[Condition]:
    """The conditions of --conditions; all without it."""
    if names is None:
        return CONDITIONS
    condition_of = {condition.name: condition for condition in CONDITIONS}
    conditions = []
    for name in map(str.strip, names.split(",")):
        if name not in condition_of:
            raise ConfigError(f"--conditions {name}: no such condition; allowed: {', '.join(condition_of)}")
        conditions.append(condition_of[name])
    return conditions


if __name__ == "__main__":
    sys.exit(main())
