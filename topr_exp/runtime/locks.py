"""Locks: which process makes a shard or runs a run, so that twenty on a shared file system do no work twice.

A lock is the kernel's (flock), on a file `*.claim` that names host and process for messages. It ends with its process;
given back, its file is deleted. Correctness never rests on a lock: shards are renamed into place whole, and a run
compares its attempt's number before it writes. A link or a FIFO in a lock's place can't be taken, and is nobody's.
(Not filelock: who may only read can't ask it for a lock's holder.)
"""

import errno
import fcntl
import os
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from topr_exp.runtime.files import open_own_file
from topr_exp.runtime.terminal import warn

SUFFIX = ".claim"
PROC = Path("/proc")
NO_LOCK = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EMLINK)  # of `open_own_file`: a link, a FIFO
REFUSED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_held: set[int] = set()  # descriptors of the locks that this process holds
_warned: set[int] = set()  # file systems that refuse locks


def _close_held() -> None:
    """A forked child that kept them open would keep the locks when its parent is killed."""
    while _held:
        _give_back(_held.pop())


def _give_back(descriptor: int) -> None:
    """Close a lock's descriptor, which frees the lock whatever close() says; nothing was written that could be lost."""
    with suppress(OSError):
        os.close(descriptor)


os.register_at_fork(after_in_child=_close_held)


@dataclass(frozen=True, slots=True)
class Owner:
    """Holder of a lock, as its file says."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}" if self.host else "an unknown process"

    def is_here(self) -> bool:
        """True if its process is on this machine."""
        return self.host == socket.gethostname()

    def has_open(self, path: Path) -> bool:
        """True if its process has a file open, as a lock's holder must: anybody can write a number into one."""
        wanted = path.lstat()
        for descriptor in (PROC / f"{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed by now
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
        return False


class Lock:
    """A lock that this process holds; leaving the `with` block gives it back."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        _held.add(descriptor)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._descriptor not in _held:  # in a forked child
            return
        with suppress(OSError):  # the folder may be gone (pruned); there is nothing left to give back then
            if _is_at(self._path, self._descriptor):
                self._path.unlink()
        _held.discard(self._descriptor)
        _give_back(self._descriptor)


def acquire(path: Path) -> Lock | Owner:
    """Take a lock, or return the process that holds it.

    OSError where its folder is missing or not writable, or something else has its name.
    """
    while True:
        try:
            descriptor = open_own_file(path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            if not path.exists():
                raise
            if owner := living_owner(path):
                return owner
            path.unlink(missing_ok=True)  # left by another user's process that was killed
            continue
        with ExitStack() as opened:
            opened.callback(_give_back, descriptor)
            taken = _try_lock(descriptor, fcntl.LOCK_EX)
            if not taken and not _try_lock(descriptor, fcntl.LOCK_SH):
                return _read_owner(descriptor)
            if taken and _is_at(path, descriptor):
                opened.callback(path.unlink, missing_ok=True)  # where the disk is full
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{socket.gethostname()}:{os.getpid()}".encode())
                opened.pop_all()
                return Lock(path, descriptor)
        time.sleep(0.001)  # its last holder deleted it, or an onlooker had it for a moment


class Reading:
    """A lock that many hold at a time, on a file that stays; given back when nothing refers to it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(descriptor)

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor in _held:  # not in a forked child
            _held.discard(self._descriptor)
            _give_back(self._descriptor)

    def __del__(self) -> None:
        self.__exit__()


def share(path: Path) -> Reading | None:
    """Lock a file for reading; None while another process has it alone, or has put another file there."""
    return _hold(path, os.open(path, os.O_RDONLY | os.O_NOFOLLOW), fcntl.LOCK_SH)


def exclude(path: Path) -> Reading | None:
    """Lock a file alone; None where a process reads it. OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)  # NFS asks for the right to write
    except PermissionError:  # of another user, whose folder this user may change
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return _hold(path, descriptor, fcntl.LOCK_EX)


def _hold(path: Path, descriptor: int, kind: int) -> Reading | None:
    with ExitStack() as opened:
        opened.callback(_give_back, descriptor)
        if not _try_lock(descriptor, kind) or not _is_at(path, descriptor):
            return None
        opened.pop_all()
    return Reading(descriptor)


def living_owner(path: Path) -> Owner | None:
    """Return the process that holds the lock `path`, if any, without the right to write."""
    try:
        descriptor = open_own_file(path, os.O_RDONLY)
    except PermissionError:  # of a user who keeps it to themselves
        return Owner("", 0)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE, *NO_LOCK):  # ESTALE: deleted on another host meanwhile
            return None
        raise
    try:
        owner = _read_owner(descriptor)
        return None if _try_lock(descriptor, fcntl.LOCK_SH) else owner
    finally:
        _give_back(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    """Lock an open file unless another process has; where its file system refuses locks, warn once and go on."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        if (device := os.fstat(descriptor).st_dev) not in _warned:
            _warned.add(device)
            told = f"the file system refuses locks ({error.strerror}): processes may do the same work twice"
            warn(told, of_any_process=True)
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def _read_owner(descriptor: int) -> Owner:
    host, _, pid = os.pread(descriptor, 300, 0).decode(errors="replace").rpartition(":")
    return Owner(host, int(pid)) if pid.isdecimal() else Owner("", 0)
