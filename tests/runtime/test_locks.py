"""Locks: who holds one, that it ends with its process, and what is done where a file system has none."""

import errno
import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import become_ordinary
from tests.store.conftest import SHARDS, open_table, shard
from tests.sweep_tools import wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.locks import Lock, Owner


def take(path: Path) -> Lock:
    lock = locks.acquire(path)
    assert isinstance(lock, Lock), lock
    return lock


def test_a_lock_is_one_process_s_until_it_is_given_back(tmp_path: Path) -> None:
    path, here = tmp_path / "x.claim", Owner(os.uname().nodename, os.getpid())
    assert locks.living_owner(path) is None
    with take(path):
        assert locks.acquire(path) == locks.living_owner(path) == here
        assert (here.is_on_this_host(), here.has_open(path), str(here)) == (True, True, f"{here.host}:{here.pid}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        locks.acquire(tmp_path / "gone" / "x.claim")


@pytest.mark.parametrize("text", ["", "far:1", f"{os.uname().nodename}:{os.getppid()}", "{", "x:" + "9" * 999])
def test_a_file_that_nobody_locks_is_taken_at_once(tmp_path: Path, text: str) -> None:
    """Left by a killed process, or with a pid that is another's by now."""
    path = tmp_path / "x.claim"
    path.write_text(text)
    assert locks.living_owner(path) is None
    with take(path):
        assert locks.living_owner(path) == Owner(os.uname().nodename, os.getpid())


def hold_with_children(path: Path, children: Path) -> None:
    lock, forked = take(path), os.fork()
    if forked == 0:
        with lock:
            pass  # a child can't give it back
        time.sleep(3600)
    executed = subprocess.Popen(["sleep", "3600"], close_fds=False).pid
    children.with_suffix(".tmp").write_text(f"{forked} {executed}")
    children.with_suffix(".tmp").rename(children)
    time.sleep(3600)


def test_a_killed_process_s_lock_is_free_though_its_children_live(tmp_path: Path, start: Callable[..., Any]) -> None:
    path, children = tmp_path / "x.claim", tmp_path / "children"
    process = start(hold_with_children, path, children)
    wait_for(children.exists)
    pids = [int(pid) for pid in children.read_text().split()]
    try:
        time.sleep(0.05)  # the forked child gives nothing back
        assert locks.acquire(path) == Owner(os.uname().nodename, process.pid)
        process.kill()
        process.join()
        for pid in pids:
            os.kill(pid, 0)
        with take(path):
            pass
    finally:
        for pid in pids:
            os.kill(pid, 9)


def test_an_onlooker_keeps_nobody_out(tmp_path: Path) -> None:
    """Asking for a lock's owner locks the file for a moment."""
    path = tmp_path / "x.claim"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        looked = list[bool]()

        def look_away() -> None:
            looked.append(True)
            fcntl.flock(file, fcntl.LOCK_UN)

        threading.Timer(0.05, look_away).start()
        with take(path):
            assert looked, "it is waited for, not taken for a holder"


def test_a_lock_that_was_given_back_meanwhile_is_not_taken_for_one(tmp_path, monkeypatch):
    """Its last holder deletes its file after we opened that: whoever comes later would lock another file."""
    path, flock, calls = tmp_path / "x.claim", fcntl.flock, list[int]()

    def delete_first(descriptor: int, kind: int) -> None:
        if not calls:
            path.unlink()
        calls.append(kind)
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    with take(path):
        assert isinstance(locks.acquire(path), Owner)


@pytest.mark.parametrize("readable", [True, False])
def test_another_user_s_lock(ordinary_user: Path, readable: bool) -> None:
    """While it is held it is seen; when its holder was killed, who may write in the folder takes it."""
    path = ordinary_user / "x.claim"
    lock = take(path)
    path.chmod(0o644 if readable else 0)
    become_ordinary(ordinary_user, 0o777)
    owner = Owner(os.uname().nodename, os.getpid()) if readable else Owner("", 0)
    assert locks.living_owner(path) == locks.acquire(path) == owner
    os.close(lock._descriptor)
    locks._held_descriptors.discard(lock._descriptor)
    if readable:
        with take(path):
            assert locks.living_owner(path) == Owner(os.uname().nodename, os.getpid())
        assert not path.exists()


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    """Work goes on, with one warning."""

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_warned_devices", set())
    path = tmp_path / "x.claim"
    with take(path), take(path):
        assert locks.living_owner(path) is None
    assert open_table(tmp_path).fill(shard) == 40 * SHARDS
    assert [line[:39] for line in capsys.readouterr().err.splitlines()] == ["warning: the file system refuses locks "]


def test_a_lock_is_given_back_though_close_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems report there what they could not write; the descriptor is closed all the same."""
    path, stays, close = tmp_path / "x.claim", tmp_path / "key.json", os.close
    stays.touch()

    def failing_close(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing_close)
        with take(path):
            assert isinstance(locks.acquire(path), Owner)
        assert locks.living_owner(path) is None
        reading = locks.share(stays)
        assert reading is not None
        assert locks.exclude(stays) is None
        reading.__exit__()
    with take(path):
        pass
