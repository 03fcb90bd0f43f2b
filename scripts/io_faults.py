"""Fail calls of a run to the disk, give the command again, compare every file: `make io-faults`.

Each point is one call of one kind in the whole run. A write, fsync, rename or unlink raises ENOSPC or EIO, after half
of the bytes where it is a write, or the process is killed there with SIGKILL. An open, read, close, stat or lock raises
what network file systems and failing disks give (EIO, EACCES, ESTALE, ENOLCK): that one call, or all of its kind from
there on. The run may end with one line of error or go on; given again it must end with the files of a run that nothing
disturbed. Runs are forked from one process that has loaded everything. Calls of C++ and Rust (mapped shards, weights)
are not counted; what makes their bytes durable is.
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
from typing import Any, NamedTuple

from topr_exp.models.model_folder import SHIPPED
from topr_exp.runs.finished import MARK

KILL = "kill"
OF_WRITING = ("ENOSPC", "EIO", KILL)
FAULTS = {
    "write": OF_WRITING,
    "fsync": OF_WRITING,
    "rename": OF_WRITING,
    "unlink": OF_WRITING,
    "open": ("EIO", "EACCES", "ESTALE"),
    "read": ("EIO", "ESTALE"),
    "close": ("EIO", "ESTALE"),
    "stat": ("EIO", "EACCES", "ESTALE"),
    "lock": ("EIO", "ENOLCK"),
}
WRITES = tuple(kind for kind, names in FAULTS.items() if names is OF_WRITING)
# The calls of `os` of each kind that take a path first; of the others see Disk.install.
CALLS = {
    "rename": ("rename", "replace"),
    "unlink": ("unlink", "remove"),
    "open": ("listdir", "scandir"),
    "stat": ("stat", "lstat"),
}
# Of the moment and the attempt, not of the result.
VOLATILE = {"seconds", "time", "began", "attempt", "command", "counts", "tokens", "tokens_per_second", "progress"}
SETTINGS = (
    "experiment=smoke", "cluster.threads=1", "data.train_problems=4", "data.test_problems=2", "data.n=4",
    "data.eval_n=2", "sampler.prompts_per_shard=2", "optim.batch_size=8", "checkpoint.every_seconds=0",
    "evaluation.every=2", "iterations=2", "sampler.max_new_tokens=8",
)  # fmt: skip
LONGEST_RUN = 120  # seconds, after which one is taken to wait for ever


class Fault(NamedTuple):
    """What a call raises (an error's name, or KILL), and whether all calls of its kind after it do, too."""

    name: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.name} from there on" if self.lasting else self.name


class Point(NamedTuple):
    """One call of a run: its kind, its number among those of the kind, and what becomes of it."""

    kind: str
    number: int
    fault: Fault

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {self.fault}"


def faults_of(kind: str) -> list[Fault]:
    """All that calls of a kind are made to raise."""
    once = [Fault(name) for name in FAULTS[kind]]
    return once if kind in WRITES else once + [Fault(name, lasting=True) for name in FAULTS[kind]]


class Disk:
    """Counts the calls of this process on files of some folders, and makes those of a point fail."""

    def __init__(self, point: Point | None, folders: tuple[str, ...]) -> None:
        self.point, self.folders = point, folders
        self.counts, self.pid = Counter[str](), os.getpid()
        self.descriptors: set[int] = set()  # open files of these folders

    def watches(self, file: Any) -> bool:
        if isinstance(file, int):
            return file in self.descriptors
        return os.fsdecode(file).startswith(self.folders)

    def strikes(self, kind: str) -> bool:
        if os.getpid() != self.pid:  # workers that grade
            return False
        self.counts[kind] += 1
        if self.point is None or self.point.kind != kind:
            return False
        number = self.counts[kind]
        return number == self.point.number or (self.point.fault.lasting and number > self.point.number)

    def fail(self, path: Any = None) -> None:
        """path: the file's, of calls that are given one: the error then names it, as the kernel's does."""
        assert self.point is not None
        name = self.point.fault.name
        if name == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number), path)

    def call(self, kind: str, path: Any = None) -> None:
        """Count a call, and fail where it is the point's."""
        if self.strikes(kind):
            self.fail(path)

    def install(self) -> None:
        """Replace Python's calls by ones that count."""
        for kind, names in CALLS.items():
            for name in names:
                setattr(os, name, self.counted(kind, getattr(os, name)))
        os.fsync = self.counted("fsync", lambda descriptor: None, everywhere=True)  # no machine breaks down here
        os.open = self.counted_open_of_os(os.open)  # type: ignore[assignment]
        os.close = self.counted_close(os.close)  # type: ignore[assignment]
        os.pread = self.counted("read", os.pread)  # type: ignore[assignment]
        fcntl.flock = self.counted("lock", fcntl.flock)  # type: ignore[assignment]
        builtins.open = io.open = self.counted_open(io.open)  # type: ignore[assignment]

    def counted(self, kind: str, function: Callable[..., Any], *, everywhere: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if everywhere or named.get("dir_fd") is not None or (args and self.watches(args[0])):
                self.call(kind, None if isinstance(args[0], int) else args[0])
            return function(*args, **named)

        return call

    def counted_open_of_os(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, *args: Any, **named: Any) -> int:
            watched = self.watches(path)
            if watched:
                self.call("open", path)
            descriptor = function(path, *args, **named)
            if watched:
                self.descriptors.add(descriptor)
            return descriptor

        return call

    def counted_close(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            watched = self.watches(descriptor)
            function(descriptor)  # Linux closes it whatever close() says
            if watched:
                self.descriptors.discard(descriptor)
                self.call("close")

        return call

    def counted_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        class CountedFile(io.FileIO):
            def write(self, data: Any) -> int:
                if disk.strikes("write"):
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

        def call(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if "+" in mode or not disk.watches(file):
                return function(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if opener is None and not isinstance(file, int):
                disk.call("open", file)
            raw = CountedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered = io.BufferedReader(raw) if raw.readable() else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return call


def run_forked(output_dir: Path, point: Point | None = None) -> tuple[int, Counter[str], str]:
    """A run in a child: how it ended (negative: a signal), what it called, what it printed on standard error."""
    said, counted = output_dir.parent / "said", output_dir.parent / "counted"
    counted.unlink(missing_ok=True)
    if (pid := os.fork()) == 0:
        status = 70
        try:
            for descriptor, path in ((1, os.devnull), (2, said)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
            signal.alarm(LONGEST_RUN)
            disk = Disk(point, (f"{output_dir}/", str(SHIPPED)))
            disk.install()
            status = command(output_dir)
            disk.point = None
            counted.write_text(json.dumps(disk.counts))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    counts = Counter(json.loads(counted.read_text())) if counted.exists() else Counter[str]()
    return status, counts, said.read_text(errors="replace")


def command(output_dir: Path) -> int:
    """The command that is given, and given again."""
    from topr_exp.pipeline import run
    from topr_exp.runtime.exit_status import exit_status

    return exit_status(lambda: 0 if run(config_of(output_dir)) else 1, resumes=True)


@functools.cache  # once, since nothing is written in composing
def config_of(output_dir: Path) -> Any:
    from topr_exp.config.compose_overrides import parse_arguments
    from topr_exp.runs.plan import plan

    (job,) = plan(parse_arguments([*SETTINGS, f"output_dir={output_dir}"])).jobs
    return job.config


def contents(folder: Path) -> dict[str, str]:
    """Every file by its path with a digest of what is not of the moment; locks and what was printed aside."""
    digests = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".claim"):
        if path.name == "log.txt":  # of all attempts, with their speeds
            continue
        data = path.read_bytes() if path.name != MARK else b""  # the checksums of all that is compared here
        if path.suffix in (".json", ".jsonl"):
            texts = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
            data = json.dumps([steady(json.loads(text)) for text in texts], sort_keys=True).encode()
        data = data.replace(str(folder).encode(), b"")
        digests[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return digests


def steady(value: Any) -> Any:
    """A JSON value without what changes from one run to the next."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if key not in VOLATILE}
    return [steady(each) for each in value] if isinstance(value, list) else value


def spread(counts: Counter[str], number: int) -> list[Point]:
    """So many points, evenly over the kinds, over each kind's calls and over the faults."""
    kinds = [kind for kind in FAULTS if counts[kind]]
    points = []
    for index, kind in enumerate(kinds):
        faults, share = faults_of(kind), number // len(kinds) + (index < number % len(kinds))
        possible = len(faults) * counts[kind]
        step = max(1.0, possible / share)
        for i in range(min(share, possible)):
            points.append(Point(kind, 1 + int(i * step) // len(faults), faults[i % len(faults)]))
    return points


def one_of_each(counts: Counter[str]) -> list[Point]:
    """Every error of every kind at a call of its own, evenly over the kind's calls; of reads each second one lasts."""
    points = []
    for kind, names in FAULTS.items():
        for index, name in enumerate(names):
            fault = Fault(name, lasting=kind not in WRITES and index % 2 == 1)
            points.append(Point(kind, 1 + index * (counts[kind] - 1) // (len(names) - 1), fault))
    return points


def try_points(root: Path, choose: Callable[[Counter[str]], list[Point]]) -> Iterator[tuple[Point, str | None]]:
    """Each chosen point with what is wrong after it, None for nothing; the last one's files stay in `root`/out."""
    folder = root / "out"
    with contextlib.redirect_stdout(io.StringIO()):
        command(folder)  # children share what it loaded
    gc.collect()
    gc.freeze()
    shutil.rmtree(folder)
    status, counts, said = run_forked(folder)
    assert status == 0, said
    whole = contents(folder)
    for point in choose(counts):
        shutil.rmtree(folder, ignore_errors=True)
        yield point, wrong_after(folder, point, whole)


def wrong_after(folder: Path, point: Point, whole: dict[str, str]) -> str | None:
    """What is wrong when a run that was disturbed at a point is given again; None for nothing."""
    status, _, said = run_forked(folder, point)
    if point.fault.name == KILL and status != -signal.SIGKILL:
        return f"the call was not reached: {said}"
    if point.fault.name != KILL and (status not in (0, 1) or "Traceback" in said):
        return f"ended with {status}: {said}"
    status, _, said = run_forked(folder)
    if status != 0:
        return f"given again it ended with {status}: {said}"
    repeated = contents(folder)
    names = sorted(name for name in whole.keys() | repeated.keys() if whole.get(name) != repeated.get(name))
    return f"other files than in a whole run: {', '.join(names)}" if names else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--points", type=int, default=300, help="how many calls to fail, default 300")
    number, began, bad = parser.parse_args().points, time.monotonic(), 0
    done = 0
    with tempfile.TemporaryDirectory() as root:
        outcomes = try_points(Path(root), lambda counts: spread(counts, number))
        for done, (point, wrong) in enumerate(outcomes, start=1):
            bad += wrong is not None
            print(f"{done:>4} {point!s:<28} {wrong or 'the same files'}", flush=True)
    print(f"{done} points, {bad} with other files or errors, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
