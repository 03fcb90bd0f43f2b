"""`python -m topr_exp.difficulty RUN`: Figure 9's statistic of a run's completions, for any list of p̃."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from topr_exp.runtime.exit_status import exit_status


def main(arguments: list[str] | None = None) -> int:
    """Print the table (or JSON); exit status 1, with one line, for a folder that has no graded completions."""
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.difficulty",
        description="How much of the training signal problems of each difficulty get, by effective proportion "
        "(TOPR, Figure 9): difficulty is the accuracy of the model that sampled, weights are 1-c and 1+c.",
    )
    parser.add_argument("run", type=Path, help="a run's folder, outputs/NAME/RUN")
    parser.add_argument("--effective-positive", type=float, nargs="+", default=None, metavar="P")
    parser.add_argument("--iteration", type=int, default=1, help="whose completions (default: 1, those of the base)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    args = parser.parse_args(arguments)
    if not all(0 <= p <= 1 for p in args.effective_positive or ()):
        parser.error("--effective-positive must lie in [0, 1]")
    return exit_status(partial(show, args))


def show(args: argparse.Namespace) -> int:
    from topr_exp.report.problem_weights import EFFECTIVE_POSITIVE, difficulty_of_run, difficulty_table

    found = difficulty_of_run(args.run, args.iteration, args.effective_positive or EFFECTIVE_POSITIVE)
    print(json.dumps(found, indent=2) if args.json else difficulty_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
