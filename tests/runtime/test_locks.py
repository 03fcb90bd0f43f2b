"""Locks: who holds one, that it ends with its process, and what is done where a file system has none."""

import errno
import fcntl
import os
import signal
import subprocess
import threading

import pytest

from tests.conftest import become_ordinary
from tests.processes import PROCESSES, is_running
from tests.store.conftest import SHARDS, open_table, shard
from topr_exp.runtime import locks
from topr_exp.runtime.locks import Lock, Owner
from topr_exp.runtime.terminal import warn_once

HERE = Owner(os.uname().nodename, os.getpid())


def take(path):
    lock = locks.acquire(path)
    assert isinstance(lock, Lock), lock
    return lock


@pytest.fixture
def claim(tmp_path):
    return tmp_path / "x.claim"


@pytest.fixture
def lock_files_by(monkeypatch):
    """A function that has another one lock files in the place of the file system."""
    return lambda flock: monkeypatch.setattr(fcntl, "flock", flock)


def test_a_lock_is_one_processs_until_it_is_given_back(claim):
    assert locks.living_owner(claim) is None
    with take(claim):
        assert locks.acquire(claim) == locks.living_owner(claim) == HERE
        assert HERE.is_on_this_host()
        assert HERE.has_open(claim)
        assert str(HERE) == f"{HERE.host}:{HERE.pid}"

    assert not claim.exists()
    with pytest.raises(FileNotFoundError):
        locks.acquire(claim.parent / "gone/x.claim")


@pytest.mark.parametrize("text", ["", "far:1", f"{os.uname().nodename}:{os.getppid()}", "x:" + "9" * 999])
def test_a_file_that_nobody_locks_is_taken_at_once(text, claim):
    """Left by a killed process, or with a pid that is another's by now."""
    claim.write_text(text)

    assert locks.living_owner(claim) is None
    with take(claim):
        assert locks.living_owner(claim) == HERE


def hold_with_children(claim, pids):
    lock = take(claim)
    executed = subprocess.Popen(["sleep", "3600"], close_fds=False).pid
    if os.fork() == 0:
        with lock:
            pass  # a child can't give it back
        pids.put((os.getpid(), executed))
    signal.pause()


def test_a_killed_processs_lock_is_free_though_its_children_live(claim, start):
    pids = PROCESSES.SimpleQueue()
    process = start(hold_with_children, claim, pids)
    children = pids.get()
    try:
        assert locks.acquire(claim) == Owner(HERE.host, process.pid)
        process.kill()
        process.join()
        assert all(map(is_running, children))
        with take(claim):
            pass
    finally:
        for child in children:
            os.kill(child, 9)


def test_an_onlooker_keeps_nobody_out(claim):
    """Asking for a lock's owner locks the file for a moment."""
    events = []
    with claim.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def look_away():
            events.append("looked away")
            fcntl.flock(file, fcntl.LOCK_UN)

        threading.Timer(0.05, look_away).start()
        with take(claim):
            assert events == ["looked away"], "it is waited for, not taken for a holder"


def test_a_lock_that_was_given_back_meanwhile_is_not_taken_for_one(claim, lock_files_by):
    """Its last holder deletes its file after we opened that: whoever comes later would lock another file."""
    flock = fcntl.flock
    kinds = []

    def delete_first(descriptor, kind):
        if not kinds:
            claim.unlink()
        kinds.append(kind)
        flock(descriptor, kind)

    lock_files_by(delete_first)
    with take(claim):
        assert isinstance(locks.acquire(claim), Owner)


@pytest.mark.parametrize(
    "module, name, calls_before",
    [(fcntl, "flock", 0), (os, "fstat", 2), (os, "pread", 0)],  # two of fstat belong to the opening of the file
    ids=["flock", "fstat", "pread"],
)
def test_a_lock_whose_file_another_host_removes_is_taken_anew(module, name, calls_before, claim, monkeypatch):
    """On NFS the file that is open here is stale then, at whichever call comes next."""
    function = getattr(module, name)
    is_held = name == "pread"  # which reads who has it
    calls = []

    def go_stale(descriptor, *arguments):
        calls.append(descriptor)
        if len(calls) == calls_before + 1:
            claim.unlink()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return function(descriptor, *arguments)

    if is_held:
        take(claim)
    monkeypatch.setattr(module, name, go_stale)

    if is_held:
        assert locks.acquire(claim) == Owner("", 0)
    with take(claim):
        assert locks.living_owner(claim) == HERE


def test_a_lock_in_a_stale_folder_is_an_error(claim, monkeypatch):
    """Which never passes: to try again would hang the run."""

    def raise_stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(type(claim), "lstat", raise_stale)

    with pytest.raises(OSError, match="Stale file handle"):
        locks.acquire(claim)


@pytest.mark.parametrize("is_readable", [True, False])
def test_another_users_lock_is_seen_and_taken_once_its_holder_was_killed(is_readable, ordinary_user):
    """While it is held it is seen; when its holder was killed, who may write in the folder takes it."""
    claim = ordinary_user / "x.claim"
    lock = take(claim)
    claim.chmod(0o644 if is_readable else 0)
    become_ordinary(ordinary_user, 0o777)

    assert locks.living_owner(claim) == locks.acquire(claim) == (HERE if is_readable else Owner("", 0))
    os.close(lock._descriptor)
    locks._held_descriptors.discard(lock._descriptor)
    if is_readable:
        with take(claim):
            assert locks.living_owner(claim) == HERE
        assert not claim.exists()


def test_a_file_system_without_locks_is_worked_on_with_one_warning(claim, tmp_path, lock_files_by, capsys):
    warn_once.cache_clear()

    def refuse(descriptor, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    lock_files_by(refuse)
    with take(claim), take(claim):
        assert locks.living_owner(claim) is None
    assert open_table(tmp_path).fill(shard) == 40 * SHARDS
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: the file system refuses locks ")
