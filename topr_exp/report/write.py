"""The report of some run folders: page, figures and tables in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topr_exp.report.figures import write_figures
from topr_exp.report.groups import different_bases, group_runs
from topr_exp.report.page import render_page
from topr_exp.report.runs import read_runs
from topr_exp.report.tables import groups_csv, groups_tex, runs_csv
from topr_exp.runtime.files import disk_errors, new_folder, write_text


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of the runs in and below `folders`; returns the path of its page.

    out: where to; None is `report/` in the first folder. TOPRError where there are no runs, or the disk refuses.
    """
    runs = read_runs(folders)
    comparison = group_runs(runs)
    target = out if out is not None else folders[0] / "report"
    with disk_errors(f"write in {target}"):
        (target / "tables").mkdir(parents=True, exist_ok=True)
    with new_folder(target / "figures") as figures:  # those of an earlier report go
        notes = write_figures(figures, runs, comparison) + different_bases(runs, comparison)
    write_text(target / "tables" / "runs.csv", runs_csv(runs, comparison))
    write_text(target / "tables" / "groups.csv", groups_csv(runs, comparison))
    write_text(target / "tables" / "groups.tex", groups_tex(runs, comparison))
    names = [folder.resolve().name for folder in folders]
    write_text(target / "report.html", render_page(" and ".join(names), runs, comparison, notes))
    return target / "report.html"
