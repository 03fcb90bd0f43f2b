"""`python -m topr_exp.compare FOLDER... [--against GROUP]`: is one group of runs better than another?

Runs are grouped by what differs between their settings, seeds apart, as in the report. Each group's mean stands with
its 95 % interval, and its difference to a reference, paired by seed and by test problem, with the interval of that.
Each line says whether its interval is over seeds and problems, as samples of more, or over problems alone. With
several settings that differ, --against topr compares each group with the one that differs from it in being topr's.
Groups that were tested on other problems are named and not compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.exit_status import exit_status, print_warning
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.report.runs import Run
    from topr_exp.report.selection import Runs

FIGURES = ("pass@1", "maj", "invalid")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.compare", description=summary.split(": ", 1)[-1], epilog=details
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    parser.add_argument("--against", metavar="GROUP", help="its name, or a value of a setting (default: the first)")
    parser.add_argument("--figure", choices=FIGURES, default="pass@1", help="default: %(default)s")
    return exit_status(partial(print_comparison, parser.parse_args(arguments)))


def print_comparison(options: argparse.Namespace) -> int:
    from topr_exp.report.groups import TEST, group_runs, tell
    from topr_exp.report.results import record
    from topr_exp.report.selection import Runs

    comparison, groups, tests = group_runs(finished_runs(options.folders, options.figure)), {}, {}
    for one, other in comparison.repeats.items():
        print_warning(f"{one} has the settings and seeds of {other}: counted once")
    for label, members in comparison.groups.items():
        name = tuple(tell(key, members[0]) for key in comparison.keys) or (label,)
        groups[name] = Runs([record(run, figure=options.figure) for run in members])
        tests[name] = members[0].settings.get(TEST)
    print(table(groups, tests, options.against, options.figure))
    if comparison.confounded:
        print(f"also differs: {comparison.confounded}")
    return 0


def finished_runs(folders: Sequence[Path], figure: str) -> list[Run]:
    """The finished runs below some folders; ones that can't be read are left out, with a line.

    TOPRError where there are none, or where one does not have the figure.
    """
    from topr_exp.report.results import record
    from topr_exp.report.runs import find_runs

    everything, readable = find_runs(folders), []
    runs = [run for run in everything if run.status == "done"]
    if left := len(everything) - len(runs):
        print_warning(f"{left} unfinished run{'s are' if left > 1 else ' is'} left out")
    for run in runs:
        try:
            record(run)
        except TOPRError as error:
            print_warning(f"left out: {error}" + (f" ({'; '.join(run.notes)})" if run.notes else ""))
        else:
            readable.append(run)
    if not readable:
        raise TOPRError(f"none of the {len(everything)} runs there is finished and can be read")
    if figure == "maj" and (without := [run.name for run in readable if not run.evaluations[-1].get("maj@k")]):
        raise TOPRError(f"{without[0]} has no maj@K: its grader does not say what incorrect completions answer")
    return readable


def references(groups: Sequence[tuple[str, ...]], against: str | None) -> dict[tuple[str, ...], tuple[str, ...] | None]:
    """Map each group to its reference: one group, or where `against` is a value of a setting, its own at that value.

    None where there is no such group. ConfigError where `against` is neither.
    """
    if against is None or against in map(name_of, groups):
        one = next(group for group in groups if against in (None, name_of(group)))
        return dict.fromkeys(groups, one)
    places = {i for group in groups for i, value in enumerate(group) if value == against}
    if len(places) != 1:
        values = dict.fromkeys(value for group in groups if len(group) > 1 for value in group)
        raise ConfigError(f"--against {against}: no such group; allowed: {'; '.join([*map(name_of, groups), *values])}")
    (i,) = places
    wanted = {group: (*group[:i], against, *group[i + 1 :]) for group in groups}
    return {group: other if other in groups else None for group, other in wanted.items()}


def name_of(group: tuple[str, ...]) -> str:
    return ", ".join(group)


def table(
    groups: dict[tuple[str, ...], Runs], tests: dict[tuple[str, ...], Any], against: str | None, figure: str
) -> str:
    """A line for each group; tests: a number for the problems that each was tested on."""
    from topr_exp.report.selection import difference

    compared = references([*groups], against)
    title = f"{figure}, %"
    width = max(map(len, [title, *map(name_of, groups)]))
    head = against or name_of(next(iter(groups)))
    lines = [f"{title:<{width}}  runs  {'mean':<20}  {'over':<20}  minus {head}"]
    for group, runs in groups.items():
        found, other, told = runs.interval(figure), compared[group], ""
        if other is None:
            told = "nothing to compare with"
        elif tests[group] != tests[other]:
            told = "other test problems"
        elif other != group:
            minus = difference(groups[other], runs, figure)
            told = "no seed in common" if minus is None else f"{minus.percent(sign=True):<22}  {minus.over}"
        lines.append(
            f"{name_of(group):<{width}}  {len(runs):>4}  {found.percent():<20}  {found.over:<20}  {told}".rstrip()
        )
    problems = dict.fromkeys(str(runs.values(figure).shape[1]) for runs in groups.values())
    lines.append(f"[ ]: 95 %, {' and '.join(problems)} test problems; differences are paired by seed and problem")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
