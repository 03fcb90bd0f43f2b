"""Tables of the report as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.estimates import as_printed, estimate, majority_name, reward_name
from topr_exp.report.groups import Comparison, text
from topr_exp.report.runs import Run
from topr_exp.types import VERDICTS

OF_SUMMARY = ("baseline", "effective_positive", "positive_share", "n_train")
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "–": "--",
}  # fmt: skip


def measures(runs: Sequence[Run]) -> list[str]:
    """The figures that tables hold."""
    majority, reward = majority_name(runs), reward_name(runs)
    return ["pass@1", *([reward] if reward else []), *([majority] if majority else []), *VERDICTS]


def runs_csv(runs: Sequence[Run], comparison: Comparison) -> str:
    """One line a run: what differs, what was trained on, base and final figures with intervals over problems."""
    names = measures(runs)
    columns = [f"{part}_{name}{end}" for part in ("base", "final") for name in names for end in ("", "_low", "_high")]
    own = [f"{key} (setting)" if key in OF_SUMMARY else key for key in comparison.differing]
    table: list[list[Any]] = [["run", "folder", "status", "group", *own, "seed", *OF_SUMMARY, *columns]]
    for run, settings, label in zip(runs, comparison.settings, comparison.labels, strict=True):
        row: list[Any] = [run.name, str(run.path), run.status, label]
        row += [text(settings.get(key)) for key in [*comparison.differing, "seed"]]
        row += [run.figure(name) for name in OF_SUMMARY]
        for part in ("base", "final"):
            for name in names:
                row += numbers(estimate([run], name, part))
        table.append(row)
    return as_csv(table)


def groups_csv(runs: Sequence[Run], comparison: Comparison) -> str:
    """One line a group: means over its runs with 95 % intervals, and what the intervals are over."""
    names = measures(runs)
    ends = ("", "_low", "_high", "_interval_over")
    table: list[list[Any]] = [
        ["group", *comparison.keys, "runs"]
        + [f"{part}_{name}{end}" for part in ("base", "final") for name in names for end in ends]
    ]
    for label, members in comparison.groups.items():
        row: list[Any] = [
            label,
            *(text(comparison.settings[members[0]].get(key)) for key in comparison.keys),
            len(members),
        ]
        for part in ("base", "final"):
            for name in names:
                found = estimate([runs[i] for i in members], name, part)
                row += [*numbers(found), found.over if found is not None else None]
        table.append(row)
    return as_csv(table)


def numbers(found: Interval | None) -> list[float | None]:
    return [None, None, None] if found is None else [*found.as_dict().values()]


def as_csv(table: Sequence[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([safe_cell(cell) for cell in row] for row in table)
    return stream.getvalue()


def safe_cell(value: Any) -> Any:
    """A cell that a spreadsheet shows and does not compute: text that looks like a formula gets an apostrophe."""
    if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t", "\r"):
        return f"'{value}"
    return value


def groups_tex(runs: Sequence[Run], comparison: Comparison) -> str:
    r"""The groups as a LaTeX tabular (needs \usepackage{booktabs}), in percent with 95 % intervals."""
    names = measures(runs)
    heads = [*(comparison.keys or ["run"]), "runs", "base pass@1", *names]
    lines = [
        "% Percent (mean_reward as it is); 95 % intervals over a group's runs and the test problems.",
        r"\begin{tabular}{" + "l" * len(comparison.keys or ["run"]) + "r" * (len(names) + 2) + "}",
        r"\toprule",
        " & ".join(map(tex, heads)) + r" \\",
        r"\midrule",
    ]
    for label, members in comparison.groups.items():
        chosen = [runs[i] for i in members]
        first = [text(comparison.settings[members[0]].get(key)) for key in comparison.keys] or [label]
        cells = [tex(value) for value in first] + [str(len(members)), tex_cell(estimate(chosen, "pass@1", "base"))]
        lines.append(" & ".join([*cells, *(tex_cell(estimate(chosen, name), name) for name in names)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def tex_cell(found: Interval | None, name: str = "pass@1") -> str:
    return "--" if found is None else as_printed(found, name)


def tex(value: str) -> str:
    """Text as LaTeX shows it."""
    return "".join(TEX.get(character, character) for character in value)
