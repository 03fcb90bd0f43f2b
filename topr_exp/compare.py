"""`python -m topr_exp.compare FOLDER... [--against GROUP]`: is one group of runs better than another?

Groups runs, as the report does, by the settings that differ, except seeds. For each group this prints the mean and the
difference to a reference group, paired by seed and test problem, with 95 % intervals; "over" says whether these are
over seeds and problems or over problems alone. If several settings differ, --against topr compares each group with the
one that has topr and is otherwise equal. What can't be compared (other test problems, no common seed) gives the reason.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pandas import DataFrame

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import Groups, differences, estimate, headlines, standing, versus
from topr_exp.report.groups import columns_of, group_runs, tell
from topr_exp.report.runs import find_runs
from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.terminal import plural, warn
from topr_exp.sweeps.sweep import aligned
from topr_exp.types import ConfigError, TOPRError

FIGURES = ("pass@1", "maj", "invalid")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = command_parser("topr_exp.compare", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    named = "reference: a group's name, or a setting's value (default: the first group)"
    parser.add_argument("--against", type=lambda text: text.replace("p~", "p̃"), metavar="GROUP", help=named)
    parser.add_argument("--figure", choices=FIGURES, default="pass@1", help="default: %(default)s")
    return exit_status(partial(print_comparison, parser.parse_args(arguments)))


def print_comparison(options: argparse.Namespace) -> int:
    found = compare(options.folders, options.against, options.figure)
    head = options.against or next(iter(found.groups))
    rows = versus(found.groups, found.differences, head, found.figure)
    print("\n".join(aligned([[*rows[0]], *([*row.values()] for row in rows)])))
    print("[ ]: 95 % each; differences are paired by seed and test problem", *found.remarks, sep="\n")
    return 0


@dataclass(frozen=True)
class Compared:
    """Groups of finished runs, and how far each is from its reference."""

    figure: str
    groups: Groups
    references: dict[str, str | None]
    differences: dict[str, Interval | str]  # or why there is none
    remarks: list[str]  # which group is above the others, and what else differs between them

    def frame(self) -> DataFrame:
        """A row a group, as `topr_exp.compare_runs` names the columns."""
        rows = []
        for label, runs in self.groups.items():
            row, less = {"group": label, "runs": len(runs)}, self.differences.get(label)
            row |= columns_of(f"final_{self.figure}", estimate(runs, self.figure))
            row |= {"against": None if less is None else self.references[label]}
            row |= columns_of("difference", None if isinstance(less, str) else less)
            rows.append(row | {"not_compared": less if isinstance(less, str) else None})
        frame = DataFrame(rows).set_index("group")
        frame.attrs["remarks"] = self.remarks
        return frame


def compare(folders: Sequence[Path], against: str | None, figure: str) -> Compared:
    """Compare groups of the finished runs in and below some folders; warns of what is left out."""
    if figure not in FIGURES:
        raise ConfigError(f"figure={figure}: expected one of {', '.join(FIGURES)}")
    everything = find_runs(folders)
    runs = [run for run in everything if run.status == "done"]
    if left := len(everything) - len(runs):
        warn(f"{plural(left, 'unfinished run')} left out")
    for run in runs:
        for fault in run.changed:
            warn(f"{run.name}, changed since it finished: {fault}")
    name = figure if figure != "maj" else headlines(runs)[-1]
    if not name.startswith(figure) or all(run.figure("final", name) is None for run in runs):
        raise TOPRError(f"no finished run there has {figure} ({plural(len(everything), 'run')})")
    found = group_runs(runs)
    for one, other in found.repeats.items():
        warn(f"{one} has the settings and seeds of {other}: counted once")
    keys = {label: tuple(tell(key, members[0]) for key in found.keys) for label, members in found.groups.items()}
    beside = references(keys, against)
    remarks = [standing(found.groups, name)] if name != "invalid" and len(keys) > 1 else []
    remarks += [f"also differs: {found.confounded}"] if found.confounded else []
    return Compared(name, found.groups, beside, differences(found.groups, beside, name), remarks)


def references(groups: Mapping[str, tuple[str, ...]], against: str | None) -> dict[str, str | None]:
    """Map each group to its reference: one group, or where `against` is a value of a setting, its own at that value.

    groups: name -> the values that tell it apart. None: no such group. ConfigError where `against` is neither.
    """
    if against is None or against in groups:
        return dict.fromkeys(groups, against or next(iter(groups)))
    places = {i for group in groups.values() for i, value in enumerate(group) if value == against}
    if len(places) != 1:
        values = dict.fromkeys(value for group in groups.values() if len(group) > 1 for value in group)
        raise ConfigError(f"--against {against}: no such group; allowed: {'; '.join([*groups, *values])}")
    (i,) = places
    names = {group: name for name, group in groups.items()}
    return {name: names.get((*group[:i], against, *group[i + 1 :])) for name, group in groups.items()}


if __name__ == "__main__":
    sys.exit(main())
