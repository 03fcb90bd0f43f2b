"""`python -m topr_exp.grade`: grades completions on their own, JSON lines in, the same lines with verdicts out.

Each input line is an object with the strings `completion` and `gold`; it comes back, in order and as soon as it is
decided, with `verdict`, `answer` and `path` (docs/grading.md), and `reward` where your own grader gives a number. A
malformed line comes back as {"line", "error"}, the rest is graded, and the exit status is 1. Exit status 2: a wrong
option, or a file that cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from topr_exp.grading import Grader, Outcome
from topr_exp.grading.extraction import FORMATS
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.files import unique_name
from topr_exp.types import VERDICTS, ConfigError, TOPRError

LINES_AHEAD = 1024


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return exit_status(partial(_grade, _options(arguments)))


def _grade(options: argparse.Namespace) -> int:
    with (
        Grader(options.format, options.workers, options.deadline, threshold=options.threshold) as grader,
        _source(options.input) as source,
        _sink(options.output) as sink,
    ):
        started = time.monotonic()
        job = _Job(grader, source, sink)
        job.run()
        print(job.summary(time.monotonic() - started), file=sys.stderr)
    return 1 if job.malformed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m topr_exp.grade", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--format", required=True, help=f"{', '.join(FORMATS)}, or package.module:function for a grader of your own"
    )
    parser.add_argument("--in", dest="input", metavar="FILE", help="default: standard input")
    parser.add_argument("--out", dest="output", metavar="FILE", help="default: standard output")
    parser.add_argument("--workers", type=int, help="processes for symbolic comparisons (default: one for each CPU)")
    parser.add_argument(
        "--deadline", type=float, help="seconds for one comparison (default: 1; for a call of your own grader 10)"
    )
    parser.add_argument(
        "--threshold", type=float, default=1.0, help="a number of your own grader is correct from here on (default: 1)"
    )
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _source(name: str | None) -> Iterator[BinaryIO]:
    if name is None:
        # Not sys.stdin, and never closed: after Ctrl-C the thread of `_lines` still waits in it, and closing would too.
        yield open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open(name, "rb"))
        except OSError as error:
            raise ConfigError(f"--in {name}: {error.strerror}") from error
        yield stream


@contextlib.contextmanager
def _sink(name: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears (and replaces an older one) only when all of it is written."""
    if name is None:
        yield sys.stdout
        return
    target = Path(name)
    temporary = target.with_name(f".{target.name}.{unique_name()}")
    try:
        stream = open(temporary, "x")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"--out {name}: {error.strerror}") from error
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


class _Job:
    """One pass over the input: rows wait in order until their outcome is there."""

    def __init__(self, grader: Grader, source: BinaryIO, sink: TextIO) -> None:
        self.grader, self.sink = grader, sink
        self.lines = _lines(source)
        self.waiting: deque[dict[str, Any]] = deque()  # rows under way, and errors behind them
        self.malformed = 0
        self.graded: Counter[str] = Counter()

    def run(self) -> None:
        for outcome in self.grader.grade(self._pairs()):
            self._pass_errors()
            row = self.waiting.popleft()
            reward = {} if outcome.reward is None else {"reward": outcome.reward}
            self._write({**row, "verdict": outcome.verdict, "answer": outcome.answer, "path": outcome.path, **reward})
            self._count(outcome)
            self._pass_errors()
        self._pass_errors()
        self.sink.flush()

    def summary(self, seconds: float) -> str:
        """One line for standard error: verdicts, paths, malformed lines, speed."""
        total = sum(self.graded[verdict] for verdict in VERDICTS)
        verdicts = ", ".join(f"{self.graded[name]} {name}" for name in VERDICTS)
        paths = ("string", "rational", "numeric", "symbolic", "timeout", "died", "raised", "user")
        by_path = ", ".join(f"{self.graded[name]} {name}" for name in paths if self.graded[name])
        return (
            f"{total} graded: {verdicts}; decided by: {by_path or 'nothing'}; {self.malformed} malformed; "
            f"{seconds:.1f} s, {total / max(seconds, 1e-9):,.0f} a second"
        )

    def _pairs(self) -> Iterator[tuple[str, str] | None]:
        for number, line in self.lines:
            if line is None:
                yield None  # nothing to read for now: finish what is open
                self.sink.flush()
            elif line.strip():
                yield from self._pair(number, line)

    def _pair(self, number: int, line: bytes) -> Iterator[tuple[str, str]]:
        row, error = _row(line)
        if error is None:
            self.waiting.append(row)
            yield row["completion"], row["gold"]
            return
        self.malformed += 1
        self.waiting.append({"line": number, "error": error})
        if len(self.waiting) == 1:
            self._pass_errors()

    def _pass_errors(self) -> None:
        while self.waiting and self.waiting[0].keys() == {"line", "error"}:
            self._write(self.waiting.popleft())

    def _write(self, row: dict[str, Any]) -> None:
        self.sink.write(json.dumps(row) + "\n")

    def _count(self, outcome: Outcome) -> None:
        self.graded[outcome.verdict] += 1
        self.graded[outcome.path] += 1


def _row(line: bytes) -> tuple[dict[str, Any], str | None]:
    """The parsed line, or what is wrong with it."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        return {}, "not UTF-8"
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    if not isinstance(row, dict):
        return {}, f"not an object but {type(row).__name__}"
    for name in ("completion", "gold"):
        if name not in row:
            return {}, f"no {name}"
        if not isinstance(row[name], str):
            return {}, f"{name} is not a string but {type(row[name]).__name__}"
    return row, None


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines, read by a thread so that results never wait for input; None when no further line has come yet."""
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(LINES_AHEAD)

    def read() -> None:
        try:
            for line in source:
                lines.put(line)
            lines.put(None)
        except OSError as error:
            lines.put(error)

    threading.Thread(target=read, name="grade-input", daemon=True).start()
    for number in itertools.count(1):
        try:
            line = lines.get_nowait()
        except queue.Empty:
            yield number, None
            line = lines.get()
        if line is None:
            return
        if isinstance(line, OSError):
            raise TOPRError(f"the input can't be read: {line.strerror}")
        yield number, line


if __name__ == "__main__":
    sys.exit(main())
