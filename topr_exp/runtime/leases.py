"""Leases: which process makes a shard or runs a run, so that twenty on a shared file system do no work twice.

A lease is a file (`*.claim`) created with O_CREAT | O_EXCL, which NFS keeps atomic; file locks are not relied upon. It
names host, process and start time, and a thread of its owner renews its modification time. Its owner counts as dead
when the process is gone (seen from the same host) or when the modification time is `stale` seconds old (from another
one). Ages are measured on the file system's own clock, because the hosts' clocks may differ.

Correctness never rests on a lease: shards are functions of (key, index) and are renamed into place whole. A lease
that two processes hold for a moment costs double work and nothing else.

Not filelock's SoftFileLease: it replaces a dead owner's file by an atomic exchange, which NFS refuses, so that there
the file of a killed process blocks everyone for ever. Nor can others ask it whether an owner is alive.
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

from topr_exp.runtime.files import unique_name

SUFFIX = ".claim"
TAKE_OVER = ".takeover"  # after the name of a lease: the right to delete it
STALE_SECONDS = 60.0
RENEWALS_PER_STALE = 4  # within the time after which an owner counts as dead
EMPTY_SECONDS = 10.0  # a lease is written at once after its creation; one that stays empty has lost its owner

_held: set[str] = set()  # ids of the leases that this process holds


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lease, as its file says."""

    host: str
    pid: int
    start: str  # when the process started, in the kernel's ticks since boot: tells a reused pid apart
    scope: str  # which table of processes the pid belongs to: boot and pid namespace
    id: str  # of this one lease

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}" if self.host else "an unknown process"

    def is_here(self) -> bool:
        """Whether its process can be seen from here, so that its end is noticed at once."""
        return bool(self.id) and self.scope == _scope()


@dataclass(frozen=True, slots=True)
class LeaseFile:
    """A lease as it was found: whose it is, and when that was renewed on the file system's clock."""

    path: Path
    owner: Owner
    renewed: float

    @classmethod
    def read(cls, path: Path) -> LeaseFile | None:
        """None when there is no file. Opening it makes NFS fetch the current modification time."""
        try:
            with open(path, "rb") as file:
                renewed, text = os.fstat(file.fileno()).st_mtime, file.read()
        except PermissionError:  # of a user who keeps it to themselves: its age is known all the same
            return cls(path, Owner(host="", pid=0, start="", scope="", id="unread"), os.stat(path).st_mtime)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):  # ESTALE: deleted on another host while we opened it
                return None
            raise
        try:
            owner = Owner(**json.loads(text))
        except (ValueError, TypeError, RecursionError):  # created and not yet written, or its owner died in between
            owner = Owner(host="", pid=0, start="", scope="", id="")
        return cls(path, owner, renewed)

    def is_alive(self, stale: float = STALE_SECONDS) -> bool:
        """Whether the owner's process still runs, as far as that can be told from here."""
        owner = self.owner
        if owner.is_here():
            if owner.pid == os.getpid():
                return owner.id in _held  # else left behind by a program that this process ran before (exec)
            start = process_start(owner.pid)
            if start is None:
                return False
            if start and owner.start:
                return start == owner.start
        limit = stale if owner.id else min(stale, EMPTY_SECONDS)
        # From the future, since the clock was set back: nobody has renewed it on the clock that counts now.
        return abs(filesystem_now(self.path.parent) - self.renewed) < limit


class Lease:
    """A lease that this process holds; leaving the `with` block gives it back."""

    def __init__(self, path: Path, descriptor: int, owner: Owner, stale: float) -> None:
        self._path, self._descriptor, self._owner = path, descriptor, owner
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(stale / RENEWALS_PER_STALE,), daemon=True)

    def is_ours(self) -> bool:
        """Whether nobody took it over: a process that was suspended for long may have been taken for dead."""
        found = LeaseFile.read(self._path)
        return found is not None and found.owner.id == self._owner.id

    def __enter__(self) -> Lease:
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

    def _renew(self, interval: float) -> None:
        while not self._done.wait(interval):
            with suppress(OSError):  # taken over and deleted on another host (ESTALE)
                # The descriptor, not the path: whoever took over must not be kept alive by us.
                os.utime(self._descriptor)


def acquire(path: Path, stale: float = STALE_SECONDS) -> Lease | Owner:
    """Take the lease `path` for this process, over a dead owner if need be; the living owner if there is one.

    Raises OSError when the folder is not there or can't be written.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            if owner := living_owner(path, stale):
                return owner
            remove_if_dead(path, stale)
            continue
        owner = _this_process(unique_name())
        _held.add(owner.id)
        try:
            os.write(descriptor, json.dumps(asdict(owner)).encode())
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return Lease(path, descriptor, owner, stale)


def living_owner(path: Path, stale: float = STALE_SECONDS) -> Owner | None:
    """The living process that holds the lease `path`, if any."""
    found = LeaseFile.read(path)
    return found.owner if found is not None and found.is_alive(stale) else None


def remove_if_dead(path: Path, stale: float = STALE_SECONDS) -> None:
    """Delete the lease of a dead owner, unless another process does so at this moment.

    Only the holder of a second lease, for this, looks whether the first is dead and deletes it: so nobody deletes the
    new lease of a process that was faster.
    """
    right = acquire(path.with_name(path.name + TAKE_OVER), stale)
    if isinstance(right, Owner):
        time.sleep(0.01)
        return
    with right:
        found = LeaseFile.read(path)
        if found is not None and not found.is_alive(stale):
            path.unlink(missing_ok=True)


def filesystem_now(folder: Path) -> float:
    """The time on the file system's own clock (the server's, for NFS), in seconds: `folder` is touched for it.

    By this host's clock for who may not touch the folder: an onlooker, since taking a lease needs the same right.
    """
    try:
        os.utime(folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return time.time()
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


def _this_process(lease_id: str) -> Owner:
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, process_start(pid) or "", _scope(), lease_id)
