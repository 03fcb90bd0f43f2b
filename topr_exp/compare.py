"""`python -m topr_exp.compare FOLDER... [--against GROUP]`: is one group of runs better than another?

Runs are grouped by what differs between their settings, seeds apart, as in the report. Each group's mean stands with
its 95 % interval, and its difference to one group, paired by seed and by test problem, with the interval of that.
Intervals are over seeds and problems at once, as samples of more; with a single seed over problems alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.exit_status import exit_status
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.paper.selection import Runs
    from topr_exp.report.runs import Run

FIGURES = ("pass@1", "maj", "invalid")
SEEDS = ("seed", "sampler.seed", "data.seed")  # two runs are paired where all of these agree


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.compare", description=summary.split(": ", 1)[-1], epilog=details
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    parser.add_argument("--against", metavar="GROUP", help="its name as it is printed (default: the first one)")
    parser.add_argument("--figure", choices=FIGURES, default="pass@1", help="default: %(default)s")
    return exit_status(partial(show, parser.parse_args(arguments)))


def show(options: argparse.Namespace) -> int:
    found = grouped(options.folders, options.figure)
    against = options.against or next(iter(found))
    if against not in found:
        raise ConfigError(f"--against {against}: no such group; allowed: {'; '.join(found)}")
    print(table(found, against, options.figure))
    return 0


def grouped(folders: Sequence[Path], figure: str) -> dict[str, Runs]:
    """The finished runs below some folders by group.

    TOPRError where they were not tested on the same problems, or where one does not have the figure.
    """
    from topr_exp.paper.selection import Runs
    from topr_exp.report.compare import compare
    from topr_exp.report.runs import read_runs

    everything = read_runs(folders)
    runs = [run for run in everything if run.status == "done"]
    if not runs:
        raise TOPRError(f"none of the {len(everything)} runs there is finished")
    if left := len(everything) - len(runs):
        print(f"warning: {left} unfinished run{'s are' if left > 1 else ' is'} left out", file=sys.stderr)
    if figure == "maj" and (without := [run.name for run in runs if not run.evaluations[-1].get("maj@k")]):
        raise TOPRError(f"{without[0]} has no maj@K: its grader does not say what incorrect completions answer")
    tests = {str(gold_answers(run)): run for run in runs}
    if len(tests) > 1:
        one, other = list(tests.values())[:2]
        raise TOPRError(f"{one.name} and {other.name} were tested on different problems, which can't be paired")
    comparison = compare(runs)
    draws = [tuple(str(settings.get(key)) for key in SEEDS) for settings in comparison.settings]
    numbers = {draw: number for number, draw in enumerate(sorted(set(draws)))}
    records = [record(run, numbers[draw]) for run, draw in zip(runs, draws, strict=True)]
    return {label: Runs([records[i] for i in members]) for label, members in comparison.groups.items()}


def verdicts(run: Run) -> Path:
    """Where the verdicts of a run's last evaluation lie: in its own store or the shared one, wherever these are now."""
    name = Path(run.evaluations[-1]["verdicts"]).name
    places = [folder / "store" / "verdicts" / name for folder in (run.path, run.path.resolve().parents[1])]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise TOPRError(f"{run.name}: the verdicts of its evaluation are gone (neither {places[0]} nor {places[1]})")
    return found


def gold_answers(run: Run) -> Any:
    from topr_exp.store import Store

    place = verdicts(run)
    return Store(place.parent.parent).open(place).key["golds"]


def record(run: Run, draw: int) -> Any:
    """What `Runs` needs of a run; draw: a number for its seeds."""
    from topr_exp.paper.records import results

    return {"settings": {"seed": draw}, "final": results(run, {**run.evaluations[-1], "verdicts": verdicts(run)})}


def table(found: dict[str, Runs], against: str, figure: str) -> str:
    """A line for each group."""
    from topr_exp.paper.selection import difference

    title = f"{figure}, %"
    width = max(map(len, [*found, title]))
    problems = found[against].values(figure).shape[1]
    lines = [f"{title:<{width}}  runs  {'mean':<20}  minus {against}"]
    for label, group in found.items():
        line = f"{label:<{width}}  {len(group):>4}  {group.interval(figure).percent():<20}"
        if label != against:
            paired = difference(found[against], group, figure)
            line += "  no seed in common" if paired is None else f"  {paired.percent(sign=True)}"
        lines.append(line.rstrip())
    lines.append(f"95 % intervals over seeds and {problems} test problems; differences are paired by both")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
