"""`python -m reproduce.table2 FOLDER...`: Table 2 of the paper from verifier runs, the paper's figures beside.

What each problem adds to the figures is averaged over the runs (of the same algorithm) that were tested on it; the
intervals are those of the bootstrap over problems. How far the runs differ stands below.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from topr_exp.evaluation.intervals import t_half_width
from topr_exp.report.groups import TEST, group_runs
from topr_exp.report.runs import Run, find_runs
from topr_exp.runtime.exit_status import exit_status
from topr_exp.types import TOPRError
from topr_exp.verifier.figures import Tally, difference, summarise
from topr_exp.verifier.table import COLUMNS, WIDTH, cell

FILE = "verification.json"
TITLES = ("Verifier accuracy", "Invalid rate", "Weighted SC")
# TOPR, Table 2: an 8B verifier of the 70B model's solutions to MATH, in per cent.
PAPER = {"none": ("–", "–", "55.5"), "base": ("32.6", "34.2", "56.7"), "topr": ("70.9", "0.90", "61.5")}


@dataclass(frozen=True)
class Tested:
    """A verifier of a finished run, by what each problem adds to its figures."""

    run: Run
    problems: list[str]
    before: Tally
    after: Tally


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    kind: str  # none, base, oracle or an algorithm
    problems: list[str]  # of any of the runs
    together: Tally  # averaged over the runs
    figures: dict[str, Any]
    alone: list[dict[str, Any]]  # the figures of each run

    @property
    def selection(self) -> str:
        return {"none": "maj", "oracle": "oracle"}.get(self.kind, "weighted_sc")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m reproduce.table2", description=__doc__.split("\n\n")[-1])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    return exit_status(partial(print_table, parser.parse_args(arguments).folders))


def print_table(folders: Sequence[Path]) -> int:
    print(table2(find_runs(folders)))
    return 0


def table2(runs: Sequence[Run]) -> str:
    """The table of the verifiers among `runs`. TOPRError where there are none, or ones that nothing compares."""
    tested = [read_tested(run) for run in runs if run.status == "done" and (run.path / FILE).is_file()]
    if not tested:
        raise TOPRError("no finished run of a verifier (task=verifier) among these")
    asked = {name: [setting(one.run, name) for one in tested] for name in ("model.name", "task.solver", "data.name")}
    asked["task.test_solutions"] = [str(one.before.solutions) for one in tested]
    asked["data.eval_n"] = [str(one.before.verifications) for one in tested]
    for name, values in asked.items():
        if len(set(values)) > 1:
            raise TOPRError(f"these runs can't stand in one table: {name} is {' and '.join(sorted(set(values)))}")
    comparison = group_runs([one.run for one in tested])
    if keys := [key for key in comparison.keys if key not in ("algo.name", "data.seed", TEST)]:
        raise TOPRError(f"these runs can't stand in one table: they differ in {', '.join(keys)}")
    tested = [one for one in tested if one.run.name not in comparison.repeats]
    also = [f"also differs: {comparison.confounded}"] if comparison.confounded else []
    return "\n".join([*render(rows_of(tested), tested), *also])


def read_tested(run: Run) -> Tested:
    """Read a run's notes on each test problem; TOPRError for a damaged file."""
    try:
        stored = json.loads((run.path / FILE).read_text(encoding="utf-8"))
        tallies = {
            int(iteration): Tally(
                {name: np.array(column, dtype=np.float64) for name, column in values.items()},
                stored["solutions"],
                stored["verifications"],
            )
            for iteration, values in stored["iterations"].items()
        }
        return Tested(run, stored["problems"], tallies[0], tallies[max(tallies)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TOPRError(f"{run.path / FILE} can't be read ({' '.join(str(error).split())})") from error


def setting(run: Run, name: str) -> str:
    value: Any = run.config
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return str(value)


def rows_of(tested: Sequence[Tested]) -> list[Row]:
    """No verifier, the base, one row for each algorithm, the oracle."""
    model, k = setting(tested[0].run, "model.name"), tested[0].before.solutions
    base = [(one.problems, one.before) for one in tested]
    rows = [row(f"none (maj@{k})", "none", base), row(model, "base", base)]
    algos = sorted({setting(one.run, "algo.name") for one in tested}, key=lambda name: (name == "topr", name))
    for algo in algos:
        part = [(one.problems, one.after) for one in tested if setting(one.run, "algo.name") == algo]
        rows.append(row(f"{model}, {algo}", algo, part))
    return [*rows, row(f"oracle (pass@{k})", "oracle", base)]


def row(name: str, kind: str, parts: Sequence[tuple[list[str], Tally]]) -> Row:
    """Average the tallies of some runs problem by problem."""
    tallies = [pd.DataFrame(tally.values, index=problems) for problems, tally in parts]
    mean = pd.concat(tallies).groupby(level=0, sort=False).mean()
    _, first = parts[0]
    together = Tally({name: mean[name].to_numpy() for name in mean}, first.solutions, first.verifications)
    alone = [summarise(tally, resamples=2) for _, tally in parts]
    return Row(name, kind, [*mean.index], together, summarise(together), alone)


def gain(other: Row, row: Row) -> dict[str, float | None]:
    """The difference of a row's selection to another's, on the problems that both have."""
    theirs, ours = (pd.Series(each.together.values[each.selection], each.problems) for each in (other, row))
    shared = [problem for problem in row.problems if problem in theirs.index]
    return difference(theirs[shared].to_numpy(), ours[shared].to_numpy())


def render(rows: Sequence[Row], tested: Sequence[Tested]) -> list[str]:
    """The lines of the table and what belongs below it."""
    width = max(len(row.name) for row in rows) + 2
    lines = [f"{'%':<{width}}" + "".join(f"{title:>{WIDTH}}" for title in TITLES) + "   paper: the same three"]
    for row in rows:
        shown = [None, None] if row.selection != "weighted_sc" else [row.figures["accuracy"], row.figures["invalid"]]
        ours = "".join(f"{cell(figure):>{WIDTH}}" for figure in [*shown, row.figures[row.selection]])
        theirs = "".join(f"{value:>7}" for value in PAPER.get(row.kind, ()))
        lines.append(f"{row.name:<{width}}{ours}  {theirs}".rstrip())
    none, base = rows[0], rows[1]
    for row in rows[1:-1]:
        against = [none] if row is base else [none, base]
        changes = [f"weighted SC - {other.kind} {cell(gain(other, row))}" for other in against]
        balanced = f"balanced accuracy {cell(row.figures['balanced_accuracy'])}"
        lines.append(f"{row.name}: " + "; ".join([balanced, *changes]))
        if row is not base and len(row.alone) > 1:
            lines.append(f"  {len(row.alone)} runs, mean ± Student's t, 95 %: {', '.join(over_runs(row))}")
    first = tested[0]
    seeds = ", ".join(setting(one.run, "seed") for one in tested)
    lines.append(
        f"[ ]: 95 %, bootstrap over {len(base.together)} problems, differences paired by problem; seeds {seeds}"
    )
    lines.append(
        f"solver {setting(first.run, 'task.solver')} on {setting(first.run, 'data.name')}, "
        f"{cell(base.figures['solved'])} of its solutions correct; {first.before.verifications} verifications of each"
    )
    lines.append("paper: TOPR, Table 2 (Llama 3 8B verifies solutions of the 70B model to MATH, maj@32)")
    return lines


def over_runs(row: Row) -> list[str]:
    """The mean of each figure over the runs with the half-width of its interval."""
    found = []
    for column, title in COLUMNS.items():
        values = np.array([100 * share for figures in row.alone if (share := figures[column]["value"]) is not None])
        known = f"{values.mean():.1f} ± {float(t_half_width(values)):.1f}" if len(values) else "–"
        found.append(f"{title} {known}")
    return found


if __name__ == "__main__":
    sys.exit(main())
