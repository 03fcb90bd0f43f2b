"""Claims: who makes which shard, so that twenty processes on a shared file system do no work twice.

A claim is a file created with O_CREAT | O_EXCL, which NFS keeps atomic (its locks are not relied upon). It
names host, process and start time, and a thread of the owner renews its modification time. A claim is dead
when its process is gone (seen from the same host) or its modification time is `stale` seconds old (from
another), measured on the file system's own clock, because the hosts' clocks may differ.

Correctness never rests on a claim: shards are functions of (key, index) and are renamed into place whole. A
claim that two processes hold for a moment costs double work and nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from topr_exp.store.files import unique_name

SUFFIX = ".claim"
TAKE_OVER = ".takeover"  # after the name of a claim: the right to delete it
STALE_SECONDS = 60.0
BEATS_PER_STALE = 4  # renewals within the time after which a claim counts as dead
EMPTY_SECONDS = 10.0  # a claim is written at once after its creation; one that stays empty has lost its owner

_held: set[str] = set()  # ids of the claims that this process holds


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a claim, as the claim file says."""

    host: str
    pid: int
    start: str  # when the process started, in the kernel's ticks since boot: tells a reused pid apart
    scope: str  # which table of processes the pid belongs to: boot and pid namespace
    id: str  # of this one claim

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}" if self.host else "an unknown process"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A claim file as found: its owner, its last renewal and its inode."""

    owner: Owner
    renewed: float  # modification time, the file system's clock
    inode: int


class Claim:
    """A claim that this process holds; leaving the `with` block gives it back."""

    def __init__(self, path: Path, descriptor: int, owner: Owner, stale: float) -> None:
        self._path, self._descriptor, self._owner = path, descriptor, owner
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(stale / BEATS_PER_STALE,), daemon=True)

    def kept(self) -> bool:
        """Whether it is still ours: a process that was suspended for long may have been taken for dead."""
        seen = look(self._path)
        return seen is not None and seen.owner.id == self._owner.id

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        with suppress(OSError):  # the folder may be gone (pruned); there is nothing left to give back then
            ours = os.stat(self._path).st_ino == os.fstat(self._descriptor).st_ino
            os.close(self._descriptor)  # before unlinking: NFS keeps an open file under another name
            if ours:
                self._path.unlink()
        _held.discard(self._owner.id)

    def _beat(self, interval: float) -> None:
        while not self._done.wait(interval):
            with suppress(OSError):  # taken over and deleted on another host (ESTALE)
                # The descriptor, not the path: whoever took over must not be kept alive by us.
                os.utime(self._descriptor)


def take(path: Path, stale: float = STALE_SECONDS) -> Claim | Owner:
    """Claim `path` for this process, over a dead owner if need be; the living owner if there is one.

    Raises OSError when the folder is not there or can't be written.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            seen = look(path)
            if seen is None:
                continue  # given back just now
            if is_alive(seen, path.parent, stale):
                return seen.owner
            remove(path, seen, stale)
            continue
        owner = _ourselves(unique_name())
        _held.add(owner.id)
        try:
            os.write(descriptor, json.dumps(asdict(owner)).encode())
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return Claim(path, descriptor, owner, stale)


def look(path: Path) -> Sighting | None:
    """Read a claim file; None when there is none. Opening it makes NFS fetch the current modification time."""
    try:
        with open(path, "rb") as file:
            status, text = os.fstat(file.fileno()), file.read()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # ESTALE: deleted on another host while we opened it
            return None
        raise
    try:
        owner = Owner(**json.loads(text))
    except (ValueError, TypeError):  # created and not yet written, or its owner died in between
        owner = Owner(host="", pid=0, start="", scope="", id="")
    return Sighting(owner, status.st_mtime, status.st_ino)


def is_alive(seen: Sighting, folder: Path, stale: float = STALE_SECONDS) -> bool:
    """Whether the owner of a claim in `folder` still works on it."""
    owner = seen.owner
    if owner.id and owner.scope == _scope():
        if owner.pid == os.getpid():
            return owner.id in _held  # else left behind by a program that this process ran before (exec)
        start = process_start(owner.pid)
        if start is None:
            return False
        if start and owner.start:
            return start == owner.start
    limit = stale if owner.id else min(stale, EMPTY_SECONDS)
    return filesystem_now(folder) - seen.renewed < limit


def is_here(owner: Owner) -> bool:
    """Whether the owner's process can be seen from here, so that its end is noticed at once."""
    return bool(owner.id) and owner.scope == _scope()


def remove(path: Path, seen: Sighting, stale: float) -> None:
    """Take a dead claim away, unless another process does so at this moment.

    Only who holds the claim's own take-over claim may delete it, so that nobody deletes the new claim of a
    process that was faster.
    """
    guard = take(path.with_name(path.name + TAKE_OVER), stale)
    if isinstance(guard, Owner):
        time.sleep(0.01)
        return
    with guard:
        again = look(path)
        if again is not None and (again.inode, again.owner.id) == (seen.inode, seen.owner.id):
            path.unlink(missing_ok=True)


def filesystem_now(folder: Path) -> float:
    """The time on the file system's own clock (the server's, for NFS), in seconds: `folder` is touched for it."""
    os.utime(folder)
    return os.stat(folder).st_mtime


def process_start(pid: int) -> str | None:
    """When a process of this host started; None when it is gone or a zombie; "" when that can't be told."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _exists(pid)  # no /proc here, or it hides other users' processes
    fields = status.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


@lru_cache(maxsize=1)
def _scope() -> str:
    """Two processes see each other's pids when these agree; a host's name alone does not say so (containers)."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _ourselves(claim_id: str) -> Owner:
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, process_start(pid) or "", _scope(), claim_id)
