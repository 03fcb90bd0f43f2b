"""`python -m topr_exp.grade --format math < FILE`: grade completions, JSON lines in and out.

Each line is an object with `completion`, a string, and `gold`, a string or a number; it comes back, in order and
without waiting for further input, with `verdict`, `answer` and `path` (docs/graders.md), and `reward` where your own
grader gives a number.
A malformed line comes back as {"line", "error"}, the rest is graded, and the exit status is 1.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from topr_exp.data.problems import as_text, refuse_no_number
from topr_exp.data.user_lines import json_fault
from topr_exp.grading import Grader
from topr_exp.grading.extraction import FORMATS
from topr_exp.runtime.exit_status import CommandParser, exit_status
from topr_exp.types import VERDICTS, ConfigError, TOPRError

READ_BYTES = 1 << 16
SETTING_PREFIX = "data.grader."
ALLOWED_TYPES = {"completion": (str,), "gold": (str, int, float)}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = CommandParser(prog="python -m topr_exp.grade", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--format", required=True, help=f"{', '.join(FORMATS)}, or package.module.name of your own grader"
    )
    parser.add_argument(
        "--threshold", type=float, default=1.0, help="smallest number of your own grader that is correct (default: 1)"
    )
    parser.add_argument(
        "settings", nargs="*", metavar=f"{SETTING_PREFIX}KEY=VALUE", help="settings of your own grader, if it has any"
    )
    return exit_status(partial(grade_input, parser.parse_args(arguments)))


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """The settings of a user's grader by key; a value that is not JSON is a text."""
    settings: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        name = key.removeprefix(SETTING_PREFIX)
        if name == key:
            raise ConfigError(f"{word}: expected {SETTING_PREFIX}KEY=VALUE, a setting of your own grader")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def grade_input(options: argparse.Namespace) -> int:
    """Grade standard input, line by line; returns 1 where a line is malformed."""
    start_time = time.monotonic()
    line_count = 0
    counts = Counter[str]()
    with Grader(options.format, threshold=options.threshold, settings=parse_settings(options.settings)) as grader:
        for lines in read_line_batches():
            rows = []
            for line in lines:
                line_count += 1
                if line.strip():
                    rows.append(parse_line(line, line_count))
            add_verdicts(rows, grader)
            for row in rows:
                counts[row.get("verdict", "malformed")] += 1
                print(json.dumps(row))
            sys.stdout.flush()
    verdicts = ", ".join(f"{counts[name]} {name}" for name in (*VERDICTS, "malformed"))
    lines_per_second = line_count / (time.monotonic() - start_time)
    print(f"{verdicts}; {lines_per_second:,.0f} lines a second", file=sys.stderr)
    if counts["malformed"]:
        return 1
    return 0


def add_verdicts(rows: list[dict[str, Any]], grader: Grader) -> None:
    """Grade the rows that are well-formed, in place."""
    well_formed = [row for row in rows if "completion" in row]
    pairs = [(row["completion"], as_text(row["gold"])) for row in well_formed]
    for row, outcome in zip(well_formed, grader.grade(pairs), strict=True):
        row["verdict"] = outcome.verdict
        row["answer"] = outcome.answer
        row["path"] = outcome.path
        if outcome.reward is not None:
            row["reward"] = outcome.reward


def read_line_batches() -> Iterator[list[bytes]]:
    """Yield the complete lines of standard input that have come, without waiting for more; at its end the last line."""
    line_start: list[bytes] = []  # pieces of a line whose end has not come
    try:
        while data := sys.stdin.buffer.read1(READ_BYTES):  # type: ignore[union-attr]
            *lines, unfinished_line = data.split(b"\n")
            if lines:
                lines[0] = b"".join([*line_start, lines[0]])
                yield lines
                line_start = []
            line_start.append(unfinished_line)
    except OSError as error:
        raise TOPRError(f"the input can't be read: {error.strerror}") from error
    yield [b"".join(line_start)]


def parse_line(line: bytes, number: int) -> dict[str, Any]:
    """The parsed line, or its number and what is wrong with it."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        return {"line": number, "error": "not UTF-8"}
    except (ValueError, RecursionError) as error:
        return {"line": number, "error": f"not JSON: {json_fault(error)}"}
    if not isinstance(row, dict):
        return {"line": number, "error": f"not an object but {type(row).__name__}"}
    for name, allowed_types in ALLOWED_TYPES.items():
        if name not in row:
            return {"line": number, "error": f"no {name}"}
        if not isinstance(row[name], allowed_types) or isinstance(row[name], bool):
            expected = "a string" if allowed_types == (str,) else "a string or a number"
            return {"line": number, "error": f"{name} is not {expected} but {type(row[name]).__name__}"}
    if not as_text(row["gold"]).strip():
        return {"line": number, "error": "gold is empty"}
    try:
        refuse_no_number("", as_text(row["gold"]))
    except TOPRError as error:
        return {"line": number, "error": str(error).removeprefix(": ")}  # the place, which is empty here
    return row


if __name__ == "__main__":
    sys.exit(main())
