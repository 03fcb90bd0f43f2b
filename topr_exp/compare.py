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
from topr_exp.report.grouping import count_failed, group_runs, setting_text
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
    settings_by_label = {}
    for label, members in run_groups.groups.items():
        settings_by_label[label] = group_settings(run_groups.keys, members)
    references = choose_references(settings_by_label, against)
    remarks = []
    if name != "invalid" and len(run_groups.groups) > 1:
        remarks.append(standing(run_groups.groups, name, count_failed(run_groups, all_runs)))
    if run_groups.confounded:
        remarks.append(f"also differs: {run_groups.confounded}")
    to_reference = differences(run_groups.groups, references, name)
    return Comparison(name, run_groups.groups, references, to_reference, remarks)


def finished_runs(runs: Sequence[Run]) -> list[Run]:
    """The finished ones of some runs; warns of the others, and of runs that changed since."""
    complete_runs = [run for run in runs if run.is_done]
    if len(complete_runs) < len(runs):
        warn(f"{plural(len(runs) - len(complete_runs), 'unfinished run')} left out")
    for run in complete_runs:
        for fault in run.changed:
            warn(f"{run.name}, changed since it finished: {fault}")
    return complete_runs


@dataclass(frozen=True)
class GroupSettings:
    """The settings that tell a group from the others."""

    texts: dict[str, str]  # by key, as labels show them
    missing_keys: set[str]  # those that the group's loss does not have


def group_settings(keys: Sequence[str], runs: Sequence[Run]) -> GroupSettings:
    """The settings of these keys that the runs of a group share."""
    texts = {key: setting_text(key, runs[0]) for key in keys}
    missing_keys = set()
    for key in keys:
        if key.startswith("algo.") and not any(key in run.settings for run in runs):
            missing_keys.add(key)
    return GroupSettings(texts, missing_keys)


def choose_references(settings_by_label: Mapping[str, GroupSettings], against: str | None) -> dict[str, str | None]:
    """Map each group to its reference: one group for all, or the one with the setting `against` that is equal else.

    None: no such group, or several. ConfigError where `against` is neither a group nor a setting.
    """
    if against is None or against in settings_by_label:
        reference = against or next(iter(settings_by_label))
        return dict.fromkeys(settings_by_label, reference)
    key = find_key(settings_by_label, against)
    candidates = {label: settings for label, settings in settings_by_label.items() if settings.texts[key] == against}
    references = {}
    for label, settings in settings_by_label.items():
        references[label] = find_reference(candidates, {**settings.texts, key: against})
    return references


def find_key(settings_by_label: Mapping[str, GroupSettings], text: str) -> str:
    """Find the key of which some groups have this setting; ConfigError where there is none, or several."""
    keys: set[str] = set()
    allowed = list(settings_by_label)
    for settings in settings_by_label.values():
        keys |= {key for key, setting in settings.texts.items() if setting == text}
        allowed += settings.texts.values()
    if len(keys) != 1:
        raise ConfigError(f"against {text}: no such group; allowed: {'; '.join(dict.fromkeys(allowed))}")
    return keys.pop()


def find_reference(candidates: Mapping[str, GroupSettings], texts: Mapping[str, str]) -> str | None:
    """Find the group with these settings, else the only one that differs in its missing keys alone; None: no such."""
    matches = []
    for label, settings in candidates.items():
        differing_keys = {key for key, text in texts.items() if settings.texts[key] != text}
        if not differing_keys:
            return label
        if differing_keys <= settings.missing_keys:
            matches.append(label)
    if len(matches) == 1:
        return matches[0]
    return None


if __name__ == "__main__":
    sys.exit(main())
