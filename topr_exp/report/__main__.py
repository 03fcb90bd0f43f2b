"""`python -m topr_exp.report FOLDER... [--out FOLDER]`: a page, figures and tables of the runs below some folders.

Reads only what the runs wrote, and needs no settings: runs are grouped by what differs between them, seeds apart.
Unfinished and damaged runs are shown as far as they got, with a note.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from topr_exp.runtime.exit_status import exit_status


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.report", description=summary.split(": ", 1)[-1], epilog=details
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run, a sweep, or a folder of them")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where to write (default: report/ in the first); a folder that holds anything but a report is refused",
    )
    return exit_status(partial(report, parser.parse_args(arguments)))


def report(options: argparse.Namespace) -> int:
    from topr_exp.report.write import write_report

    print(f"report: {write_report(options.folders, options.out)} (figures/ and tables/ beside it)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
