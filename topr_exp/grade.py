"""`python -m topr_exp.grade`: grades completions on their own, JSON lines in, the same lines with verdicts out.

Each line of standard input is an object with the strings `completion` and `gold`; it comes back, in order and without
waiting for further input, with `verdict`, `answer` and `path` (docs/grading.md), and `reward` where your own grader
gives a number. A malformed line comes back as {"line", "error"}, the rest is graded, and the exit status is 1. Exit
status 2: a wrong option.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from topr_exp.grading import Grader
from topr_exp.grading.extraction import FORMATS
from topr_exp.runtime.exit_status import exit_status
from topr_exp.types import VERDICTS, TOPRError

READ_BYTES = 1 << 20
PATHS = ("string", "rational", "numeric", "symbolic", "timeout", "died", "raised", "user")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m topr_exp.grade", description=__doc__.split("\n\n")[0])
    own = "package.module:function for a grader of your own"
    parser.add_argument("--format", required=True, help=f"{', '.join(FORMATS)}, or {own}")
    parser.add_argument("--workers", type=int, help="processes for symbolic comparisons (default: one for each CPU)")
    deadline = "seconds for one comparison (default: 1; for a call of your own grader 10)"
    parser.add_argument("--deadline", type=float, help=deadline)
    threshold = "a number of your own grader is correct from here on (default: 1)"
    parser.add_argument("--threshold", type=float, default=1.0, help=threshold)
    return exit_status(partial(_grade, parser.parse_args(arguments)))


def _grade(options: argparse.Namespace) -> int:
    started, number, malformed = time.monotonic(), 0, 0
    with Grader(options.format, options.workers, options.deadline, threshold=options.threshold) as grader:
        for lines in _lines():
            rows = [_row(line, place) for place, line in enumerate(lines, number + 1) if line.strip()]
            number += len(lines)
            outcomes = grader.grade((row["completion"], row["gold"]) for row in rows if "completion" in row)
            for row in rows:
                if "completion" not in row:
                    malformed += 1
                else:
                    outcome = next(outcomes)
                    row |= {"verdict": outcome.verdict, "answer": outcome.answer, "path": outcome.path}
                    row |= {} if outcome.reward is None else {"reward": outcome.reward}
                print(json.dumps(row))
            sys.stdout.flush()
    counts, seconds = grader.counters, time.monotonic() - started
    verdicts = ", ".join(f"{counts[name]} {name}" for name in VERDICTS)
    paths = ", ".join(f"{counts[name]} {name}" for name in PATHS if counts[name])
    total = sum(counts[verdict] for verdict in VERDICTS)
    print(
        f"{total} graded: {verdicts}; decided by: {paths or 'nothing'}; {malformed} malformed; "
        f"{seconds:.1f} s, {total / max(seconds, 1e-9):,.0f} a second",
        file=sys.stderr,
    )
    return 1 if malformed else 0


def _lines() -> Iterator[list[bytes]]:
    """The lines of standard input that have come, without waiting for more; of the last one, what there is."""
    rest = b""
    try:
        while data := sys.stdin.buffer.read1(READ_BYTES):  # type: ignore[union-attr]
            *lines, rest = (rest + data).split(b"\n")
            yield lines
    except OSError as error:
        raise TOPRError(f"the input can't be read: {error.strerror}") from error
    yield [rest]


def _row(line: bytes, number: int) -> dict[str, Any]:
    """The parsed line, or its number and what is wrong with it."""
    error = ""
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        error = "not UTF-8"
    except (ValueError, RecursionError) as reason:
        error = f"not JSON: {reason}"
    else:
        if not isinstance(row, dict):
            error = f"not an object but {type(row).__name__}"
        elif wrong := [name for name in ("completion", "gold") if not isinstance(row.get(name), str)]:
            error = f"{wrong[0]} is no string" if wrong[0] in row else f"no {wrong[0]}"
    return {"line": number, "error": error} if error else dict(row)


if __name__ == "__main__":
    sys.exit(main())
