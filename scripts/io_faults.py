"""Fail calls of a run to the disk, give the command again, compare every file: `make io-faults`.

Each point is one call of one kind in the whole run. A write, fsync, rename or unlink raises ENOSPC or EIO, after half
of the bytes where it is a write, or the process is killed there with SIGKILL. An open, read, close, stat or lock raises
the errors of network file systems and failing disks (EIO, EACCES, ESTALE, ENOLCK): that one call, or all of its kind
from there on. The run may end with one line of error or continue; given again it must end with the files of an
undisturbed run. Runs are forked from one process that has loaded everything. Calls of C++ and Rust (mapped shards,
weights) are not counted; the calls that make their bytes durable are.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import fcntl
import functools
import gc
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from topr_exp.config.model_choice import SHIPPED
from topr_exp.runs.finished import DONE_FILE

KILL = "kill"
WRITE_ERRORS = ("ENOSPC", "EIO", KILL)
ERRORS = {
    "write": WRITE_ERRORS,
    "fsync": WRITE_ERRORS,
    "rename": WRITE_ERRORS,
    "unlink": WRITE_ERRORS,
    "open": ("EIO", "EACCES", "ESTALE"),
    "read": ("EIO", "ESTALE"),
    "close": ("EIO", "ESTALE"),
    "stat": ("EIO", "EACCES", "ESTALE"),
    "lock": ("EIO", "ENOLCK"),
}
WRITE_KINDS = ("write", "fsync", "rename", "unlink")
# The calls of `os` of each kind that take a path first; of the others see Disk.install.
CALLS = {
    "rename": ("rename", "replace"),
    "unlink": ("unlink", "remove"),
    "open": ("listdir", "scandir"),
    "stat": ("stat", "lstat"),
}
# Keys that differ from attempt to attempt.
VOLATILE = {"seconds", "time", "began", "attempt", "command", "counts", "tokens", "tokens_per_second", "progress"}
SETTINGS = (
    "experiment=smoke",
    "cluster.threads=1",
    "data.train_problems=4",
    "data.test_problems=2",
    "data.n=4",
    "data.eval_n=2",
    "sampler.prompts_per_shard=2",
    "optim.batch_size=8",
    "checkpoint.every_seconds=0",
    "evaluation.every=2",
    "iterations=2",
    "sampler.max_new_tokens=8",
)
MAX_RUN_SECONDS = 120  # after which a run counts as hanging


class Fault(NamedTuple):
    """What a call raises (an error's name, or KILL), and whether all later calls of its kind do, too."""

    name: str
    is_lasting: bool = False

    def __str__(self) -> str:
        if self.is_lasting:
            return f"{self.name} from there on"
        return self.name


class Point(NamedTuple):
    """One call of a run: its kind, its number among the calls of that kind from 1, and its fault."""

    kind: str
    number: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {self.fault}"


def faults_of(kind: str) -> list[Fault]:
    """List the faults that calls of a kind are tried with."""
    names = ERRORS[kind]
    faults = [Fault(name) for name in names]
    if kind not in WRITE_KINDS:
        faults += [Fault(name, is_lasting=True) for name in names]
    return faults


def path_or_none(file: Any) -> Any:
    """The path that a call names; None for an open file."""
    if isinstance(file, int):
        return None
    return file


class Disk:
    """Counts the calls of this process on files of some folders, and makes those of a point fail."""

    def __init__(self, point: Point | None, folders: tuple[str, ...]) -> None:
        self.point = point
        self.folders = folders
        self.counts = Counter[str]()  # calls by kind
        self.pid = os.getpid()
        self.descriptors: set[int] = set()  # open files of these folders

    def watches(self, file: Any) -> bool:
        if isinstance(file, int):
            return file in self.descriptors
        return os.fsdecode(file).startswith(self.folders)

    def count(self, kind: str) -> bool:
        """Count a call; True if it has to fail."""
        if os.getpid() != self.pid:  # workers that grade
            return False
        self.counts[kind] += 1
        if self.point is None or self.point.kind != kind:
            return False
        number = self.counts[kind]
        if self.point.fault.is_lasting:
            return number >= self.point.number
        return number == self.point.number

    def fail(self, path: Any = None) -> NoReturn:
        """Raise the point's error, naming the path of calls that have one, as the kernel's does."""
        assert self.point is not None
        name = self.point.fault.name
        if name == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number), path)

    def call(self, kind: str, path: Any = None) -> None:
        """Count a call, and fail if it is the point's."""
        if self.count(kind):
            self.fail(path)

    def install(self) -> None:
        """Replace Python's calls by counting ones."""
        for kind, names in CALLS.items():
            for name in names:
                setattr(os, name, self.counted(kind, getattr(os, name)))
        os.fsync = self.counted_fsync
        os.open = self.counted_open_of_os(os.open)  # type: ignore[assignment]
        os.close = self.counted_close(os.close)  # type: ignore[assignment]
        os.pread = self.counted("read", os.pread)  # type: ignore[assignment]
        fcntl.flock = self.counted("lock", fcntl.flock)  # type: ignore[assignment]
        builtins.open = io.open = self.counted_open(io.open)  # type: ignore[assignment]

    def counted_fsync(self, descriptor: Any) -> None:
        """Count every fsync, and do nothing: no machine breaks down here."""
        self.call("fsync", path_or_none(descriptor))

    def counted(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            is_watched = bool(arguments) and self.watches(arguments[0])
            if is_watched or options.get("dir_fd") is not None:
                self.call(kind, path_or_none(arguments[0]))
            return function(*arguments, **options)

        return call

    def counted_open_of_os(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, *arguments: Any, **options: Any) -> int:
            is_watched = self.watches(path)
            if is_watched:
                self.call("open", path)
            descriptor = function(path, *arguments, **options)
            if is_watched:
                self.descriptors.add(descriptor)
            return descriptor

        return call

    def counted_close(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            is_watched = self.watches(descriptor)
            function(descriptor)  # Linux closes it whatever close() says
            if is_watched:
                self.descriptors.discard(descriptor)
                self.call("close")

        return call

    def counted_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        counted_file = file_class(self)

        def call(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if "+" in mode or not self.watches(file):
                return function(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if opener is None and not isinstance(file, int):
                self.call("open", file)
            raw = counted_file(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            if raw.readable():
                buffered: Any = io.BufferedReader(raw)
            else:
                buffered = io.BufferedWriter(raw)
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(buffered, encoding, errors, newline)

        return call


def file_class(disk: Disk) -> type[io.FileIO]:
    """Make the class of open files whose calls a disk counts."""

    class CountedFile(io.FileIO):
        def write(self, data: Any) -> int:
            if disk.count("write"):
                super().write(memoryview(data)[: len(data) // 2])
                disk.fail()
            return super().write(data)

        def readinto(self, buffer: Any) -> Any:
            disk.call("read")
            return super().readinto(buffer)

        def readall(self) -> bytes:
            disk.call("read")
            return super().readall()

        def close(self) -> None:
            if not self.closed:
                disk.descriptors.discard(self.fileno())
                super().close()
                disk.call("close")

    return CountedFile


class RunEnd(NamedTuple):
    """How a run ended."""

    status: int  # negative: a signal
    counts: Counter[str]  # calls by kind; empty if it was killed
    errors: str  # standard error


def run_forked(output_dir: Path, point: Point | None = None) -> RunEnd:
    """Run the command in a child, in which the calls of a point fail."""
    errors, counts = output_dir.parent / "errors", output_dir.parent / "counts"
    counts.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        run_as_child(output_dir, point, errors, counts)
    _, wait_status = os.waitpid(child, 0)
    calls = Counter[str]()
    if counts.exists():
        calls.update(json.loads(counts.read_text()))
    return RunEnd(os.waitstatus_to_exitcode(wait_status), calls, errors.read_text(errors="replace"))


def run_as_child(output_dir: Path, point: Point | None, errors: Path, counts: Path) -> NoReturn:
    """Run the command in this forked process and end it; write standard error and the counts of calls to files."""
    status = 70
    try:
        for descriptor, path in ((1, os.devnull), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
        signal.alarm(MAX_RUN_SECONDS)
        disk = Disk(point, (f"{output_dir}/", str(SHIPPED)))
        disk.install()
        status = command(output_dir)
        disk.point = None
        counts.write_text(json.dumps(disk.counts))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def command(output_dir: Path) -> int:
    """Run the command that is given, and given again; returns its exit status."""
    from topr_exp.pipeline import run
    from topr_exp.runtime.exit_status import exit_status

    return exit_status(lambda: int(not run(config_of(output_dir))), resumes=True)


@functools.cache  # once, since composing writes nothing
def config_of(output_dir: Path) -> Any:
    from topr_exp.config.compose_overrides import parse_arguments
    from topr_exp.runs.plan import plan

    (job,) = plan(parse_arguments([*SETTINGS, f"output_dir={output_dir}"])).jobs
    return job.config


def file_digests(folder: Path) -> dict[str, str]:
    """Hash every file but locks and logs, by path, without values that differ from attempt to attempt."""
    folder_bytes = str(folder).encode()
    digests = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix == ".claim" or path.name == "log.txt":
            continue
        content = steady_content(path).replace(folder_bytes, b"")
        name = str(path.relative_to(folder))
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def steady_content(path: Path) -> bytes:
    """Return a file's bytes without values that differ from attempt to attempt."""
    if path.name == DONE_FILE:  # the checksums of files that are compared anyway
        return b""
    content = path.read_bytes()
    if path.suffix == ".json":
        texts = [content.decode()]
    elif path.suffix == ".jsonl":
        texts = content.decode().splitlines()
    else:
        return content
    values = [steady_value(json.loads(text)) for text in texts]
    return json.dumps(values, sort_keys=True).encode()


def steady_value(value: Any) -> Any:
    """Return a JSON value without volatile keys."""
    if isinstance(value, dict):
        return {key: steady_value(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [steady_value(item) for item in value]
    return value


def spread_points(counts: Counter[str], total: int) -> list[Point]:
    """Choose points evenly over the kinds, over each kind's calls and over the faults."""
    kinds = [kind for kind in ERRORS if counts[kind]]
    points = []
    for index, kind in enumerate(kinds):
        share = total // len(kinds)
        if index < total % len(kinds):
            share += 1
        faults = faults_of(kind)
        possible = len(faults) * counts[kind]
        step = max(1.0, possible / share)
        for i in range(min(share, possible)):
            number = 1 + int(i * step) // len(faults)
            points.append(Point(kind, number, faults[i % len(faults)]))
    return points


def one_of_each_kind(counts: Counter[str]) -> list[Point]:
    """Choose a call of each kind, later from kind to kind, with different errors, some of which last."""
    last_index = len(ERRORS) - 1
    points = []
    for index, (kind, names) in enumerate(ERRORS.items()):
        is_lasting = kind not in WRITE_KINDS and index % 2 == 1
        fault = Fault(names[index % len(names)], is_lasting)
        number = 1 + index * (counts[kind] - 1) // last_index
        points.append(Point(kind, number, fault))
    return points


def try_points(root: Path, choose: Callable[[Counter[str]], list[Point]]) -> Iterator[tuple[Point, str | None]]:
    """Try the points that `choose` names by the counts of calls; with each its problem, or None.

    The files of the last point stay in `root`/out.
    """
    folder = root / "out"
    with contextlib.redirect_stdout(io.StringIO()):
        command(folder)  # so that children share its imports
    gc.collect()
    gc.freeze()
    shutil.rmtree(folder)
    end = run_forked(folder)
    assert end.status == 0, end.errors
    undisturbed = file_digests(folder)
    for point in choose(end.counts):
        shutil.rmtree(folder, ignore_errors=True)
        yield point, problem_after(folder, point, undisturbed)


def problem_after(folder: Path, point: Point, undisturbed: dict[str, str]) -> str | None:
    """Disturb a run at a point, run it again, and describe the remaining problem; None without one.

    undisturbed: the digests of the files of an undisturbed run.
    """
    end = run_forked(folder, point)
    if point.fault.name == KILL and end.status != -signal.SIGKILL:
        return f"the call was not reached: {end.errors}"
    if point.fault.name != KILL and (end.status not in (0, 1) or "Traceback" in end.errors):
        return f"ended with {end.status}: {end.errors}"
    end = run_forked(folder)
    if end.status != 0:
        return f"given again it ended with {end.status}: {end.errors}"
    repeated = file_digests(folder)
    different = []
    for name in sorted(undisturbed.keys() | repeated.keys()):
        if undisturbed.get(name) != repeated.get(name):
            different.append(name)
    if different:
        return f"other files than in a whole run: {', '.join(different)}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--points", type=int, default=300, help="how many calls to fail, default 300")
    total = parser.parse_args().points
    start_time = time.monotonic()
    count = problem_count = 0
    with tempfile.TemporaryDirectory() as root:
        for point, problem in try_points(Path(root), lambda counts: spread_points(counts, total)):
            count += 1
            problem_count += problem is not None
            print(f"{count:>4} {point!s:<28} {problem or 'the same files'}", flush=True)
    print(f"{count} points, {problem_count} with other files or errors, {time.monotonic() - start_time:.0f} s")
    return int(problem_count > 0)


if __name__ == "__main__":
    sys.exit(main())
