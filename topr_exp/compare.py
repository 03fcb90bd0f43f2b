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
from typing import Any

from pandas import DataFrame

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import Groups, comparison_rows, differences, estimate, headlines
from topr_exp.report.grouping import group_runs, setting_text
from topr_exp.report.ranking import standing
from topr_exp.report.reader import find_runs
from topr_exp.report.tables import interval_columns
from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.terminal import plural, warn
from topr_exp.sweeps.status_table import align_columns
from topr_exp.types import ConfigError, TOPRError

FIGURES = ("pass@1", "maj", "invalid")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("topr_exp.compare", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    reference = "reference: a group's name, or a setting's value (default: the first group)"
    parser.add_argument("--against", type=lambda text: text.replace("p~", "p̃"), metavar="GROUP", help=reference)
    parser.add_argument("--figure", choices=FIGURES, default="pass@1", help="default: %(default)s")
    return exit_status(partial(print_comparison, parser.parse_args(arguments)))


def print_comparison(options: argparse.Namespace) -> int:
    compared = compare(options.folders, options.against, options.figure)
    reference = options.against or next(iter(compared.groups))
    rows = comparison_rows(compared.groups, compared.differences, reference=reference, name=compared.figure)
    lines = [list(rows[0])]
    lines += [list(row.values()) for row in rows]
    print("\n".join(align_columns(lines)))
    print("[ ]: 95 % each; differences are paired by seed and test problem", *compared.remarks, sep="\n")
    return 0


@dataclass(frozen=True)
class Compared:
    """Groups of finished runs with their differences to a reference."""

    figure: str
    groups: Groups
    references: dict[str, str | None]
    differences: dict[str, Interval | str]  # or the reason for having none
    remarks: list[str]  # which group is above the others, and what else differs between them

    def frame(self) -> DataFrame:
        """Tabulate the groups, one a row, as `topr_exp.compare_runs` names the columns."""
        rows = []
        for label, runs in self.groups.items():
            to_reference = self.differences.get(label)
            is_compared = isinstance(to_reference, Interval)
            row: dict[str, Any] = {"group": label, "runs": len(runs)}
            row |= interval_columns(f"final_{self.figure}", estimate(runs, self.figure))
            row["against"] = self.references[label] if to_reference is not None else None
            row |= interval_columns("difference", to_reference if isinstance(to_reference, Interval) else None)
            row["not_compared"] = None if is_compared else to_reference
            rows.append(row)
        frame = DataFrame(rows).set_index("group")
        frame.attrs["remarks"] = self.remarks
        return frame


def compare(folders: Sequence[Path], against: str | None, figure: str) -> Compared:
    """Compare groups of the finished runs in and below some folders; warns of runs that are left out or changed."""
    if figure not in FIGURES:
        raise ConfigError(f"figure={figure}: expected one of {', '.join(FIGURES)}")
    all_runs = find_runs(folders)
    runs = [run for run in all_runs if run.status == "done"]
    if len(runs) < len(all_runs):
        warn(f"{plural(len(all_runs) - len(runs), 'unfinished run')} left out")
    for run in runs:
        for fault in run.changed:
            warn(f"{run.name}, changed since it finished: {fault}")
    name = figure if figure != "maj" else headlines(runs)[-1]
    if not name.startswith(figure) or all(run.figure("final", name) is None for run in runs):
        raise TOPRError(f"no finished run there has {figure} ({plural(len(all_runs), 'run')})")
    comparison = group_runs(runs)
    for repeat, counted in comparison.repeats.items():
        warn(f"{repeat} has the settings and seeds of {counted}: counted once")
    settings = {}
    for label, members in comparison.groups.items():
        settings[label] = tuple(setting_text(key, members[0]) for key in comparison.keys)
    reference_of = references(settings, against)
    remarks = []
    if name != "invalid" and len(settings) > 1:
        remarks.append(standing(comparison.groups, name))
    if comparison.confounded:
        remarks.append(f"also differs: {comparison.confounded}")
    to_reference = differences(comparison.groups, reference_of, name)
    return Compared(name, comparison.groups, reference_of, to_reference, remarks)


def references(groups: Mapping[str, tuple[str, ...]], against: str | None) -> dict[str, str | None]:
    """Map each group to its reference: one group for all, or the group that has the value `against` and is equal else.

    groups: name -> the values that tell it apart. None: no such group. ConfigError where `against` is neither.
    """
    if against is None or against in groups:
        return dict.fromkeys(groups, against or next(iter(groups)))
    positions: set[int] = set()
    values: dict[str, None] = {}  # in the order of the groups
    for group in groups.values():
        positions |= {position for position, value in enumerate(group) if value == against}
        if len(group) > 1:
            values |= dict.fromkeys(group)
    if len(positions) != 1:
        raise ConfigError(f"--against {against}: no such group; allowed: {'; '.join([*groups, *values])}")
    (position,) = positions
    label_of = {group: label for label, group in groups.items()}
    reference_of = {}
    for label, group in groups.items():
        reference_of[label] = label_of.get((*group[:position], against, *group[position + 1 :]))
    return reference_of


if __name__ == "__main__":
    sys.exit(main())
