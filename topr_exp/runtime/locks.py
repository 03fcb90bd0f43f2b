"""Kernel locks (flock) on files, so that processes on a shared file system do no work twice.

A lock is on a file `*.claim`, which names host and process for messages. It ends with its process; when it is given
back, its file is deleted. Correctness never rests on a lock: shards are renamed into place, and a run compares its
attempt's number before it writes. A link or a FIFO in a lock's place can't be taken, and nobody holds it.
(Not filelock: without the right to write it can't tell who holds a lock.)
"""

import errno
import fcntl
import os
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from topr_exp.runtime.files import open_in_place, open_own_file
from topr_exp.runtime.terminal import warn_once

SUFFIX = ".claim"
PROC = Path("/proc")
RETRY_SECONDS = 0.001
NOT_A_LOCK = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EMLINK)  # of `open_own_file`: a link, a FIFO
REMOVED = (errno.ENOENT, errno.ESTALE)  # the second on NFS, by another host: also of a file that is open here
LOCKS_REFUSED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_held_descriptors: set[int] = set()  # of the locks of this process


def _close_held_descriptors() -> None:
    """Close a forked child's copies, which would keep the locks when its parent is killed."""
    while _held_descriptors:
        _close(_held_descriptors.pop())


def _close(descriptor: int) -> None:
    """Close a lock's descriptor, which frees the lock even if close() fails; no data is at stake."""
    with suppress(OSError):
        os.close(descriptor)


os.register_at_fork(after_in_child=_close_held_descriptors)


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a lock, as the lock's file names it."""

    host: str
    pid: int

    def __str__(self) -> str:
        if not self.host:
            return "an unknown process"
        return f"{self.host}:{self.pid}"

    def is_on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    def has_open(self, path: Path) -> bool:
        """True if the process has the file open, as a lock's owner must: anybody can write a number into a file."""
        status = path.lstat()
        for descriptor in (PROC / f"{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed by now
                if os.path.samestat(descriptor.stat(), status):
                    return True
        return False


UNKNOWN_OWNER = Owner("", 0)


class HeldLock:
    """A lock of this process, given back at the end of the `with` block; a forked child's copy does nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held_descriptors.add(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor in _held_descriptors:
            self._give_back()

    def _give_back(self) -> None:
        _held_descriptors.discard(self._descriptor)
        _close(self._descriptor)


class Lock(HeldLock):
    """An exclusive lock, whose file is deleted when it is given back."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self._path = path

    def _give_back(self) -> None:
        with suppress(OSError):  # the folder may have been pruned; then there is nothing to give back
            if _is_at(self._path, self._descriptor):
                self._path.unlink()
        super()._give_back()


class FileLock(HeldLock):
    """A shared or exclusive lock on a file that stays; given back at the latest when nothing refers to it any more."""

    def __del__(self) -> None:
        self.__exit__()


def acquire(path: Path) -> Lock | Owner:
    """Take an exclusive lock, or return the process that holds it.

    OSError where its folder is missing or not writable, or something else has its name.
    """
    while True:
        try:
            descriptor = open_own_file(path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            if not path.exists():
                raise
            owner = living_owner(path)
            if owner is not None:
                return owner
            path.unlink(missing_ok=True)  # left by another user's process that was killed
            continue
        with ExitStack() as cleanup:
            cleanup.callback(_close, descriptor)
            is_locked = _try_flock(descriptor, fcntl.LOCK_EX)
            if not is_locked and not _try_flock(descriptor, fcntl.LOCK_SH):  # a `living_owner` would share it
                return _read_owner(descriptor)
            if is_locked and _is_at(path, descriptor):
                cleanup.callback(path.unlink, missing_ok=True)  # where the disk is full
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{socket.gethostname()}:{os.getpid()}".encode())
                cleanup.pop_all()
                return Lock(path, descriptor)
        time.sleep(RETRY_SECONDS)  # its last holder deleted it, or a `living_owner` had it for a moment


def living_owner(path: Path) -> Owner | None:
    """Return the process that holds an exclusive lock, without the right to write; None for no process."""
    try:
        descriptor = open_own_file(path, os.O_RDONLY)
    except PermissionError:  # of a user who keeps it to themselves
        return UNKNOWN_OWNER
    except OSError as error:
        if error.errno in (*REMOVED, *NOT_A_LOCK):
            return None
        raise
    try:
        owner = _read_owner(descriptor)
        if _try_flock(descriptor, fcntl.LOCK_SH):
            return None
        return owner
    finally:
        _close(descriptor)


def lock_shared(path: Path) -> FileLock | None:
    """Lock a file for reading; None while another process holds it exclusively, or replaced it. OSError."""
    return _lock_file(path, open_in_place(path, os.O_RDONLY), fcntl.LOCK_SH)


def lock_exclusively(path: Path) -> FileLock | None:
    """Lock a file exclusively; None while a process reads it. OSError."""
    try:
        descriptor = open_in_place(path, os.O_RDWR)  # NFS asks for the right to write
    except PermissionError:  # of another user, whose folder this user may change
        descriptor = open_in_place(path, os.O_RDONLY)
    return _lock_file(path, descriptor, fcntl.LOCK_EX)


def _lock_file(path: Path, descriptor: int, operation: int) -> FileLock | None:
    """Lock an open file, or close it and return None; operation: LOCK_SH or LOCK_EX."""
    with ExitStack() as cleanup:
        cleanup.callback(_close, descriptor)
        if not _try_flock(descriptor, operation) or not _is_at(path, descriptor):
            return None
        cleanup.pop_all()
    return FileLock(descriptor)


def _try_flock(descriptor: int, operation: int) -> bool:
    """Lock an open file; False if another process has it. A file system that refuses locks is warned of once.

    True for a file that was removed, too: nobody has it, and `_is_at` tells.
    """
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in REMOVED:
            return True
        if error.errno not in LOCKS_REFUSED:
            raise
        reason = f"the file system refuses locks ({error.strerror})"
        warn_once(f"{reason}: processes may do the same work twice", of_any_process=True)
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    """True if `path` is still the name of an open file."""
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        if error.errno in REMOVED:
            return False
        raise
    try:
        return os.path.samestat(path.lstat(), status)
    except FileNotFoundError:  # a stale folder is an error: no later attempt would find the file
        return False


def _read_owner(descriptor: int) -> Owner:
    """Read who holds an open lock; UNKNOWN_OWNER if its file does not say, or was removed."""
    try:
        content = os.pread(descriptor, 300, 0)
    except OSError as error:
        if error.errno in REMOVED:
            return UNKNOWN_OWNER
        raise
    host, _, pid = content.decode(errors="replace").rpartition(":")
    if not pid.isdecimal():
        return UNKNOWN_OWNER
    return Owner(host, int(pid))
