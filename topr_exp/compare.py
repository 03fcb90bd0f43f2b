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
from itertools import chain
from pathlib import Path
from typing import Any

from pandas import DataFrame

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import Groups, comparison_rows, differences, estimate, headlines
from topr_exp.report.grouping import group_runs, setting_text
from topr_exp.report.ranking import standing
from topr_exp.report.reader import Run, find_runs
from topr_exp.report.tables import interval_columns
from topr_exp.runtime.exit_status import command_parser, exit_status, user_path
from topr_exp.runtime.terminal import align_columns, plural, warn
from topr_exp.types import ConfigError, TOPRError

FIGURES = ("pass@1", "maj", "invalid")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("topr_exp.compare", __doc__)
    parser.add_argument(
        "folders", nargs="+", type=user_path, metavar="FOLDER", help="a run, a sweep, or a folder of them"
    )
    parser.add_argument(
        "--against",
        type=lambda text: text.replace("p~", "p̃"),  # which is easier to type
        metavar="GROUP",
        help="reference: a group's name, or a setting's value (default: the first group)",
    )
    parser.add_argument("--figure", choices=FIGURES, default="pass@1", help="default: %(default)s")
    return exit_status(partial(print_comparison, parser.parse_args(arguments)))


def print_comparison(options: argparse.Namespace) -> int:
    comparison = compare(options.folders, options.against, options.figure)
    reference = options.against or next(iter(comparison.groups))
    rows = comparison_rows(comparison.groups, comparison.differences, reference=reference, name=comparison.figure)
    table = [list(rows[0])]  # titles
    for row in rows:
        table.append(list(row.values()))
    print("\n".join(align_columns(table)))
    caption = "[ ]: 95 %"
    if comparison.differences:
        caption = "[ ]: 95 % each; differences are paired by seed and test problem"
    print(caption, *comparison.remarks, sep="\n")
    return 0


@dataclass(frozen=True)
class Comparison:
    """Groups of finished runs with their differences to a reference."""

    figure: str
    groups: Groups
    references: dict[str, str | None]  # label -> label
    differences: dict[str, Interval | str]  # or the reason for having none; a group that is its own reference is absent
    remarks: list[str]  # which group is above the others, and what else differs between them

    def frame(self) -> DataFrame:
        """Tabulate the groups, one a row, as `topr_exp.compare_runs` names the columns."""
        rows = []
        for label, runs in self.groups.items():
            difference = self.differences.get(label)
            interval = difference if isinstance(difference, Interval) else None
            row: dict[str, Any] = {"group": label, "runs": len(runs)}
            row |= interval_columns(f"final_{self.figure}", estimate(runs, self.figure))
            row["against"] = self.references[label] if difference is not None else None
            row |= interval_columns("difference", interval)
            row["not_compared"] = difference if isinstance(difference, str) else None
            rows.append(row)
        frame = DataFrame(rows).set_index("group")
        frame.attrs["remarks"] = self.remarks
        return frame


def compare(folders: Sequence[Path], against: str | None, figure: str) -> Comparison:
    """Compare groups of the finished runs in and below some folders; warns of runs that are left out or changed."""
    if figure not in FIGURES:
        raise ConfigError(f"figure={figure}: expected one of {', '.join(FIGURES)}")
    all_runs = find_runs(folders)
    runs = finished_runs(all_runs)
    name = figure
    if figure == "maj":
        name = headlines(runs)[-1]  # maj@K; another figure where no run has one
    if not name.startswith(figure) or all(run.summary_number("final", name) is None for run in runs):
        raise TOPRError(f"no finished run there has {figure} ({plural(len(all_runs), 'run')})")
    run_groups = group_runs(runs)
    for repeat, counted_run in run_groups.repeats.items():
        warn(f"{repeat} has the settings and seeds of {counted_run}: counted once")
    values_by_label = {}
    missing_by_label = {}
    for label, members in run_groups.groups.items():
        values_by_label[label] = tuple(setting_text(key, members[0]) for key in run_groups.keys)
        missing_by_label[label] = missing_settings(run_groups.keys, members)
    reference_by_label = choose_references(values_by_label, against, missing_by_label)
    remarks = []
    if name != "invalid" and len(run_groups.groups) > 1:
        remarks.append(standing(run_groups.groups, name))
    if run_groups.confounded:
        remarks.append(f"also differs: {run_groups.confounded}")
    to_reference = differences(run_groups.groups, reference_by_label, name)
    return Comparison(name, run_groups.groups, reference_by_label, to_reference, remarks)


def finished_runs(runs: Sequence[Run]) -> list[Run]:
    """The finished ones of some runs; warns of the others, and of runs that changed since."""
    complete_runs = [run for run in runs if run.is_done]
    if len(complete_runs) < len(runs):
        warn(f"{plural(len(runs) - len(complete_runs), 'unfinished run')} left out")
    for run in complete_runs:
        for fault in run.changed:
            warn(f"{run.name}, changed since it finished: {fault}")
    return complete_runs


def missing_settings(keys: Sequence[str], runs: Sequence[Run]) -> set[int]:
    """The positions of those keys that are settings of other losses than that of the runs."""
    positions = set()
    for position, key in enumerate(keys):
        if key.startswith("algo.") and not any(key in run.settings for run in runs):
            positions.add(position)
    return positions


def choose_references(
    values_by_label: Mapping[str, tuple[str, ...]], against: str | None, missing_by_label: Mapping[str, set[int]]
) -> dict[str, str | None]:
    """Map each group to its reference: one group for all, or the group that has the value `against` and is equal else.

    values_by_label: the values that tell a group from the others, in the order of their keys. missing_by_label: the
    positions of settings that a group's loss does not have, in which others may differ from it where none is equal.
    None: no such group, or several. ConfigError where `against` is neither a group nor a value.
    """
    if against is None or against in values_by_label:
        reference = against or next(iter(values_by_label))
        return dict.fromkeys(values_by_label, reference)
    positions: set[int] = set()
    for values in values_by_label.values():
        positions |= {position for position, value in enumerate(values) if value == against}
    if len(positions) != 1:
        all_values = chain.from_iterable(values_by_label.values())
        allowed = dict.fromkeys([*values_by_label, *all_values])
        raise ConfigError(f"--against {against}: no such group; allowed: {'; '.join(allowed)}")
    (position,) = positions
    label_by_values = {values: label for label, values in values_by_label.items()}
    candidates = {label: values for label, values in values_by_label.items() if values[position] == against}
    reference_by_label = {}
    for label, values in values_by_label.items():
        reference_values = (*values[:position], against, *values[position + 1 :])
        equal_label = label_by_values.get(reference_values)
        reference_by_label[label] = equal_label or find_reference(candidates, reference_values, missing_by_label)
    return reference_by_label


def find_reference(
    candidates: Mapping[str, tuple[str, ...]],
    reference_values: tuple[str, ...],
    missing_by_label: Mapping[str, set[int]],
) -> str | None:
    """Find the only group that has these values, its missing settings apart; None where there is none, or several."""
    matches = []
    for label, values in candidates.items():
        pairs = enumerate(zip(values, reference_values, strict=True))
        differing = {position for position, (value, reference_value) in pairs if value != reference_value}
        if differing <= missing_by_label[label]:
            matches.append(label)
    if len(matches) == 1:
        return matches[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
