"""`python -m topr_exp.grade`: grades completions on their own, JSON lines in, the same lines with verdicts out.

Each input line is an object with the strings `completion` and `gold`; it comes back, in order and without waiting for
further input, with `verdict`, `answer` and `path` (docs/grading.md), and `reward` where your own grader gives a number.
A malformed line comes back as {"line", "error"}, the rest is graded, and the exit status is 1. Exit status 2: a wrong
option, or a file that cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from topr_exp.grading import Grader
from topr_exp.grading.extraction import FORMATS
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.files import whole_file
from topr_exp.types import VERDICTS, ConfigError, TOPRError

READ_BYTES = 1 << 16


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return exit_status(partial(_grade, _options(arguments)))


def _grade(options: argparse.Namespace) -> int:
    started, number, counts = time.monotonic(), 0, Counter[str]()
    with (
        Grader(options.format, threshold=options.threshold) as grader,
        _source(options.input) as source,
        _sink(options.output) as sink,
    ):
        for lines in _lines(source):
            rows = [_row(line, place) for place, line in enumerate(lines, number + 1) if line.strip()]
            number += len(lines)
            outcomes = grader.grade((row["completion"], row["gold"]) for row in rows if "completion" in row)
            for row in rows:
                if "completion" not in row:
                    counts["malformed"] += 1
                else:
                    outcome = next(outcomes)
                    counts[outcome.verdict] += 1
                    row |= {"verdict": outcome.verdict, "answer": outcome.answer, "path": outcome.path}
                    row |= {} if outcome.reward is None else {"reward": outcome.reward}
                sink.write(json.dumps(row) + "\n")
            sink.flush()
    verdicts = ", ".join(f"{counts[name]} {name}" for name in (*VERDICTS, "malformed"))
    print(f"{verdicts}; {number / (time.monotonic() - started):,.0f} lines a second", file=sys.stderr)
    return 1 if counts["malformed"] else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m topr_exp.grade", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--format", required=True, help=f"{', '.join(FORMATS)}, or package.module:function for a grader of your own"
    )
    parser.add_argument("--in", dest="input", metavar="FILE", help="default: standard input")
    parser.add_argument("--out", dest="output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--threshold", type=float, default=1.0, help="a number of your own grader is correct from here on (default: 1)"
    )
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _source(name: str | None) -> Iterator[BinaryIO]:
    try:
        stream = open(sys.stdin.fileno() if name is None else name, "rb", closefd=name is not None)  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"--in {name}: {error.strerror}") from error
    with stream:
        yield stream


@contextlib.contextmanager
def _sink(name: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears (and replaces an older one) only when all of it is written."""
    if name is None:
        yield sys.stdout
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(whole_file(Path(name)))
        except OSError as error:
            raise ConfigError(f"--out {name}: {error.strerror}") from error
        text = io.TextIOWrapper(file, "ascii")
        yield text
        text.detach()


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that have come, without waiting for more; of the last one, what there is at the end."""
    begun: list[bytes] = []
    try:
        while data := source.read1(READ_BYTES):  # type: ignore[attr-defined]
            *lines, rest = data.split(b"\n")
            if lines:
                yield [b"".join([*begun, lines[0]]), *lines[1:]]
                begun = []
            begun.append(rest)
    except OSError as error:
        raise TOPRError(f"the input can't be read: {error.strerror}") from error
    yield [b"".join(begun)]


def _row(line: bytes, number: int) -> dict[str, Any]:
    """The parsed line, or its number and what is wrong with it."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        return {"line": number, "error": "not UTF-8"}
    except (ValueError, RecursionError) as error:
        return {"line": number, "error": f"not JSON: {error}"}
    if not isinstance(row, dict):
        return {"line": number, "error": f"not an object but {type(row).__name__}"}
    for name in ("completion", "gold"):
        if not isinstance(row.get(name), str):
            wrong = f"{name} is not a string but {type(row[name]).__name__}" if name in row else f"no {name}"
            return {"line": number, "error": wrong}
    return row


if __name__ == "__main__":
    sys.exit(main())
