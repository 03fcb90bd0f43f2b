"""`python -m topr_exp.report FOLDER... [--out FOLDER]`: write a page, figures and tables of the runs in some folders.

Groups runs by the settings that differ, except seeds, from their folders alone. Unfinished and damaged ones get a note.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from topr_exp.runtime.exit_status import command_parser, exit_status, user_path
from topr_exp.runtime.files import TEMPORARY, disk_errors, write_bytes
from topr_exp.runtime.json_files import read_object, write_json
from topr_exp.types import TOPRError

MANIFEST = "manifest.json"
SUBFOLDERS = ("figures", "tables")
FILES = re.compile(  # the names that a report's files can have
    r"report\.html|tables/(?:runs\.csv|groups\.csv|groups\.tex)|figures/captions\.txt"
    r"|figures/(?:(?:curve|training|sweep)_\w+|final|ess_by_age|pass_at_k|maj_at_k|correct_histogram|levels)\.(?:pdf|png)"
)
MOST_NAMES = 3  # in the title
AUTHOR = "python -m topr_exp.report"  # in a report's manifest


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("topr_exp.report", __doc__)
    parser.add_argument(
        "folders", nargs="+", type=user_path, metavar="FOLDER", help="a run, a sweep, or a folder of them"
    )
    parser.add_argument(
        "--out",
        type=user_path,
        metavar="FOLDER",
        help="output folder (default: report/ in the first); refused if it holds anything but a report",
    )
    return exit_status(partial(report, parser.parse_args(arguments)))


def report(options: argparse.Namespace) -> int:
    print(f"report: {write_report(options.folders, options.out)} (figures/ and tables/ beside it)")
    return 0


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of the runs in and below `folders`; returns the path of its page.

    out: where to; None is `report/` in the first folder. Replaces the files that an earlier report's manifest lists.
    TOPRError where there are no runs, where a file would be overwritten that no report wrote, where a folder is a link,
    or the disk refuses.
    """
    from topr_exp.report import drawing, plots, tables
    from topr_exp.report.grouping import group_runs
    from topr_exp.report.page import render_page
    from topr_exp.report.reader import find_runs

    run_groups = group_runs(find_runs(folders))
    target = out
    if target is None:
        target = folders[0] / "report"
        refuse_link(target)  # one that the user gives is their own choice
    for name in SUBFOLDERS:
        refuse_link(target / name)
    earlier_files = read_manifest(target)

    pictures, drawings = drawing.draw_files(plots.plot_runs(run_groups))
    texts = {
        "tables/runs.csv": tables.as_csv(tables.runs_frame(run_groups.runs)),
        "tables/groups.csv": tables.as_csv(tables.groups_frame(run_groups)),
        "tables/groups.tex": tables.groups_tex(run_groups),
        "report.html": render_page(page_title(folders), run_groups, drawings),
    }
    files = {f"figures/{name}": content for name, content in pictures.items()}
    for name, text in texts.items():
        files[name] = text.encode(errors="replace")
    replace_files(target, earlier_files, files)
    return target / "report.html"


def page_title(folders: Sequence[Path]) -> str:
    names = [folder.resolve().name for folder in folders]
    if len(names) > MOST_NAMES:
        shown_names = names[: MOST_NAMES - 1]
        names = [*shown_names, f"{len(names) - len(shown_names)} more"]
    return " and ".join(names)


def read_manifest(target: Path) -> set[str]:
    """The files of an earlier report in a folder; TOPRError for a folder of other files, without a manifest."""
    manifest, _ = read_object(target / MANIFEST)
    listed_files = manifest.get("files")
    if manifest.get("written_by") == AUTHOR and isinstance(listed_files, list):
        return {MANIFEST, *map(str, listed_files)}
    foreign_files = [path for path in target.glob("*") if not path.name.endswith(TEMPORARY)]
    refuse_foreign(target, foreign_files)
    return set()


def replace_files(target: Path, earlier_files: set[str], files: dict[str, bytes]) -> None:
    """Write files in place of an earlier report's; the manifest names a file before it is there."""
    assert all(map(FILES.fullmatch, files)), files.keys()
    present_files = set()
    for subfolder in SUBFOLDERS:
        for path in target.glob(f"{subfolder}/*"):
            present_files.add(f"{subfolder}/{path.name}")
    listed_files = present_files & earlier_files
    unlisted_files = present_files - earlier_files
    files_in_the_way = unlisted_files & files.keys()
    refuse_foreign(target, [target / name for name in files_in_the_way])
    with disk_errors(f"write in {target}"):
        target.mkdir(parents=True, exist_ok=True)
        write_manifest(target, earlier_files | files.keys())
        for name, content in files.items():
            path = target / name
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, content)
        obsolete_files = listed_files - files.keys()
        for name in obsolete_files:
            if FILES.fullmatch(name):  # whoever packed the folder wrote the manifest
                (target / name).unlink()
        write_manifest(target, files)


def write_manifest(target: Path, files: Iterable[str]) -> None:
    write_json(target / MANIFEST, {"written_by": AUTHOR, "files": sorted(files)})


def refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise TOPRError(f"{folder} is a symbolic link, and a report would be written elsewhere: give --out")


def refuse_foreign(target: Path, files: Sequence[Path]) -> None:
    if files:
        raise TOPRError(f"{target} holds files that no report listed ({files[0]}): give another --out, or move them")


if __name__ == "__main__":
    sys.exit(main())
