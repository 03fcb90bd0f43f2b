"""Fail one write, fsync, rename or unlink of a run, give the command again, compare every file: `make io-faults`.

Each point is one call of one kind in the whole run. It raises ENOSPC or EIO, after half of the bytes where it is a
write, or the process is killed there with SIGKILL. The run may end with one line of error or go on; given again it must
end with the files of a run that nothing disturbed. Runs are forked from one process that has loaded everything.
Bytes that C++ and Rust write (weights, optimizer) are not counted; what makes them durable is.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
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
from typing import Any

FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "kill": None}
CALLS = {"fsync": ("fsync",), "rename": ("rename", "replace"), "unlink": ("unlink", "remove")}
KINDS = ("write", *CALLS)
# Of the moment and the attempt, not of the result.
VOLATILE = {"seconds", "time", "began", "attempt", "command", "counts", "tokens", "tokens_per_second", "progress"}
SETTINGS = (
    "experiment=smoke", "cluster.threads=1", "data.train_problems=4", "data.test_problems=2", "data.n=4",
    "data.eval_n=2", "sampler.prompts_per_shard=2", "optim.batch_size=8", "checkpoint.every_seconds=0",
    "evaluation.every=2", "iterations=2", "sampler.max_new_tokens=8",
)  # fmt: skip
Point = tuple[str, int, str]  # a kind of call, which one of them, and the fault


class Disk:
    """Counts the calls of this process, and makes one of them fail."""

    def __init__(self, point: Point | None) -> None:
        self.point, self.counts, self.pid = point, Counter[str](), os.getpid()

    def strikes(self, kind: str) -> bool:
        if os.getpid() != self.pid:  # workers that grade
            return False
        self.counts[kind] += 1
        return self.point is not None and self.point[:2] == (kind, self.counts[kind])

    def fail(self) -> None:
        assert self.point is not None
        if (number := FAULTS[self.point[2]]) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(number, os.strerror(number))

    def install(self) -> None:
        """Replace Python's calls by ones that count."""
        disk, opened = self, io.open

        class CountedFile(io.FileIO):
            def write(self, data: Any) -> int:
                if disk.strikes("write"):
                    super().write(memoryview(data)[: len(data) // 2])
                    disk.fail()
                return super().write(data)

        def counted_open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wxa") or str(file).startswith("/dev/"):
                return opened(file, mode, *args, **named)
            raw = CountedFile(file, mode.replace("b", "").replace("t", ""))
            if args[:1] == (0,) or named.get("buffering") == 0:
                return raw
            buffered = io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, named.get("encoding"))

        builtins.open = io.open = counted_open  # type: ignore[assignment]
        for kind, names in CALLS.items():
            for name in names:
                does = getattr(os, name) if kind != "fsync" else lambda descriptor: None  # no machine breaks down here
                setattr(os, name, self.counted(kind, does))

    def counted(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self.strikes(kind):
                self.fail()
            return function(*args, **named)

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
            disk = Disk(point)
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
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".claim"):
        if path.name == "log.txt":  # of all attempts, with their speeds
            continue
        data = path.read_bytes()
        if path.suffix in (".json", ".jsonl"):
            texts = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
            data = json.dumps([steady(json.loads(text)) for text in texts], sort_keys=True).encode()
        data = data.replace(str(folder).encode(), b"")
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def steady(value: Any) -> Any:
    """A JSON value without what changes from one run to the next."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if key not in VOLATILE}
    return [steady(each) for each in value] if isinstance(value, list) else value


def spread(counts: Counter[str], number: int) -> list[Point]:
    """So many points, evenly over the kinds, over each kind's calls and over the faults."""
    points, kinds = [], [kind for kind in KINDS if counts[kind]]
    for index, kind in enumerate(kinds):
        calls, share = counts[kind], number // len(kinds) + (index < number % len(kinds))
        step = max(1.0, len(FAULTS) * calls / share)
        for i in range(min(share, len(FAULTS) * calls)):
            points.append((kind, 1 + int(i * step) // len(FAULTS), list(FAULTS)[i % len(FAULTS)]))
    return points


def faults_found(root: Path, number: int) -> Iterator[tuple[Point, str | None]]:
    """Each point with what is wrong after it, None for nothing; the last one's files stay in `root`/out."""
    folder = root / "out"
    with contextlib.redirect_stdout(io.StringIO()):
        command(folder)  # children share what it loaded
    gc.collect()
    gc.freeze()
    shutil.rmtree(folder)
    status, counts, said = run_forked(folder)
    assert status == 0, said
    whole = contents(folder)
    for point in spread(counts, number):
        shutil.rmtree(folder)
        yield point, wrong_after(folder, point, whole)


def wrong_after(folder: Path, point: Point, whole: dict[str, str]) -> str | None:
    """What is wrong when a run that was disturbed at a point is given again; None for nothing."""
    status, _, said = run_forked(folder, point)
    if point[2] == "kill" and status != -signal.SIGKILL:
        return f"the call was not reached: {said}"
    if point[2] != "kill" and (status not in (0, 1) or "Traceback" in said):
        return f"ended with {status}: {said}"
    status, _, said = run_forked(folder)
    if status != 0:
        return f"given again it ended with {status}: {said}"
    found = contents(folder)
    apart = sorted(name for name in whole.keys() | found.keys() if whole.get(name) != found.get(name))
    return f"other files than in a whole run: {', '.join(apart)}" if apart else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--points", type=int, default=300, help="how many calls to fail, default 300")
    number, began, bad = parser.parse_args().points, time.monotonic(), 0
    done = 0
    with tempfile.TemporaryDirectory() as root:
        for done, (point, wrong) in enumerate(faults_found(Path(root), number), start=1):
            bad += wrong is not None
            print(f"{done:>4} {' '.join(map(str, point)):<20} {wrong or 'the same files'}", flush=True)
    print(f"{done} points, {bad} with other files or errors, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
