"""The report of some run folders: page, figures and tables in one folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from topr_exp.report.figures import MOST_LINES, plots, write_figures
from topr_exp.report.groups import different_bases, group_runs
from topr_exp.report.page import best_first, render_page
from topr_exp.report.runs import find_runs
from topr_exp.report.tables import as_csv, groups_frame, groups_tex, runs_csv
from topr_exp.runtime.files import TEMPORARY, disk_errors, write_json, write_whole
from topr_exp.runtime.jsonfiles import MISSING, read_object
from topr_exp.types import TOPRError

MANIFEST = "manifest.json"
AUTHOR = "python -m topr_exp.report"  # in a manifest of ours


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of the runs in and below `folders`; returns the path of its page.

    out: where to; None is `report/` in the first folder. Of an earlier report the files are replaced that its manifest
    lists. TOPRError where there are no runs, where a file would be overwritten that no report wrote, or the disk
    refuses.
    """
    runs = find_runs(folders)
    target = out if out is not None else folders[0] / "report"
    listed = read_manifest(target)
    comparison = group_runs(runs)
    groups = best_first(runs, comparison)
    notes = different_bases(runs, comparison)
    if len(groups) > MOST_LINES:
        notes.append(f"figures/ shows the {MOST_LINES} of {len(groups)} groups with the highest final pass@1")
    with tempfile.TemporaryDirectory() as scratch:
        drawn = plots(runs, comparison, groups)
        drawings = write_figures(Path(scratch), drawn)
        files = {f"figures/{path.name}": path.read_bytes() for path in sorted(Path(scratch).iterdir())}
    title = " and ".join(folder.resolve().name for folder in folders)
    texts = {
        "tables/runs.csv": runs_csv(runs, comparison),
        "tables/groups.csv": as_csv(groups_frame(runs, comparison)),
        "tables/groups.tex": groups_tex(runs, comparison),
        "report.html": render_page(title, runs, comparison, notes, drawn, drawings),
    }
    replace_files(target, listed, files | {name: text.encode(errors="replace") for name, text in texts.items()})
    return target / "report.html"


def read_manifest(target: Path) -> set[str]:
    """The files of an earlier report in a folder; TOPRError for one that holds others and no manifest."""
    stored, fault = read_object(target / MANIFEST)
    names = stored.get("files")
    if (
        isinstance(names, list)
        and stored.get("written_by") == AUTHOR
        and all(isinstance(name, str) and is_inside(name) for name in names)
    ):
        return set(names)
    others = [path for path in target.iterdir() if not path.name.endswith(TEMPORARY)] if target.is_dir() else []
    if fault == MISSING and not others:
        return set()
    reason = fault or "is not of a report"
    raise TOPRError(
        f"{target} holds files that no report listed ({MANIFEST} {reason}): give another --out, or move the folder"
    )


def is_inside(name: str) -> bool:
    """Check that a name stays within the folder that a report writes."""
    path = PurePosixPath(name)
    return (
        str(path) == name and str(path.parent) in (".", "figures", "tables") and path.name not in ("", "..", MANIFEST)
    )


def replace_files(target: Path, listed: set[str], files: dict[str, bytes]) -> None:
    """Write files in place of those that are listed; the manifest names a file before it is there."""
    for name in files.keys() - listed:
        if (target / name).exists():
            raise TOPRError(f"{target / name} is there and no report wrote it: give another --out, or move it")
    with disk_errors(f"write in {target}"):
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / MANIFEST, {"written_by": AUTHOR, "files": sorted(listed | files.keys())})
        for name, data in files.items():
            (target / name).parent.mkdir(exist_ok=True)
            write_whole(target / name, data)
        for name in listed - files.keys():
            (target / name).unlink(missing_ok=True)
        write_json(target / MANIFEST, {"written_by": AUTHOR, "files": sorted(files)})
