"""Leases: whose a shard is, when its owner counts as dead, and that nothing is made or written twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.store.store_workers import SHARDS, fill_far_away, fill_slowly, hold, open_table, shard
from tests.store.watching import PROCESSES, contents, logged, wait_for
from topr_exp.runtime import leases
from topr_exp.store import Table


def foreign_lease(table: Table, index: int, age: float) -> Path:
    """A lease of another host's process, in the words that every version of this program has written."""
    table._write_key()
    path = table.folder / f"shard-{index:05d}.claim"
    path.write_text('{"host": "far", "pid": 1, "start": "9", "scope": "another host", "id": "abc"}')
    now = leases.filesystem_now(table.folder)
    os.utime(path, (now - age, now - age))
    return path


def test_a_stale_lease_of_another_host_is_taken_over(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    table = open_table(tmp_path)
    for index in range(SHARDS):
        foreign_lease(table, index, age=61)
    assert table.fill(shard) == SHARDS
    assert contents(table.folder) == undisturbed


def test_a_fresh_lease_of_another_host_is_waited_for(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    table = open_table(tmp_path, stale=3600)
    lease, messages = foreign_lease(table, 3, age=0), []

    def grow_old(message: str) -> None:
        messages.append(message)
        os.utime(lease, (0, 0))

    assert table.fill(shard, on_wait=grow_old) == SHARDS
    assert messages == [f"waiting for far:1, which makes shard 3 of 12 of {table.name}"]
    assert contents(table.folder) == undisturbed


def test_age_is_measured_on_the_file_systems_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(tmp_path)
    path = foreign_lease(table, 3, age=0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert str(leases.living_owner(path)) == "far:1"
    renewed = path.stat().st_mtime
    monkeypatch.setattr(leases, "filesystem_now", lambda folder: renewed + 61)
    assert leases.living_owner(path) is None


def test_a_lease_from_the_future_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """The clock was set back: whoever lives has renewed it since."""
    table = open_table(tmp_path)
    assert leases.living_owner(foreign_lease(table, 3, age=-30)) is not None
    foreign_lease(table, 3, age=-3600)
    assert table.fill(shard, on_wait=pytest.fail) == SHARDS


def test_an_empty_lease_is_given_time_and_then_taken(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    path = foreign_lease(table, 3, age=5)
    for age, alive in ((5, True), (11, False)):
        path.write_text("")
        now = leases.filesystem_now(table.folder)
        os.utime(path, (now - age, now - age))
        assert (leases.living_owner(path) is not None) == alive


def test_a_reused_pid_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "x.claim"
    lease = leases.acquire(path)
    assert isinstance(lease, leases.Lease)
    text = json.loads(path.read_text())
    parent = os.getppid()
    for owner, alive in [
        ({}, True),
        ({"pid": parent, "start": leases.process_start(parent)}, True),
        ({"pid": parent, "start": "1"}, False),
        ({"pid": 2**22 + 1}, False),
        ({"id": "left behind by what this process ran before"}, False),
    ]:
        path.write_text(json.dumps({**text, **owner}))
        assert (leases.living_owner(path) is not None) == alive, owner


def test_an_onlooker_changes_nothing_and_only_the_dead_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.claim"
    assert leases.living_owner(path) is None
    lease = leases.acquire(path)
    assert isinstance(lease, leases.Lease)
    with lease:
        leases.remove_if_dead(path)
        assert lease.is_ours()
        owner = leases.living_owner(path)
        assert owner is not None
        assert (owner.pid, owner.is_here()) == (os.getpid(), True)
        path.write_text('{"host": "far", "pid": 1, "start": "9", "scope": "another host", "id": "abc"}')
        os.utime(path, (0, 0))
        assert not lease.is_ours()
        assert leases.living_owner(path) is None
        assert path.exists()
        leases.remove_if_dead(path)
        assert not path.exists()


def test_eight_processes_take_over_without_double_work(
    tmp_path: Path, start: Callable[..., Any], undisturbed: dict[str, bytes]
) -> None:
    table = open_table(tmp_path)
    for index in range(SHARDS):
        foreign_lease(table, index, age=61)
    log, ready = tmp_path / "log", PROCESSES.Barrier(8)
    workers = [start(fill_slowly, tmp_path, log, 0.02, 60.0, ready) for _ in range(8)]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(logged(log)) == list(range(SHARDS))
    assert contents(table.folder) == undisturbed


def test_the_heartbeat_keeps_a_slow_owner_on_another_host(tmp_path: Path, start: Callable[..., Any]) -> None:
    log = tmp_path / "log"
    hold(log, 0).touch()
    process = start(fill_far_away, tmp_path, log, 0.0, 5.0, None)
    wait_for(log.exists)
    table = open_table(tmp_path, stale=5.0)
    done = threading.Timer(6.0, hold(log, 0).unlink)  # more than a silent lease lasts, after all others are made
    assert table.fill(shard, on_wait=lambda _: done.start()) == SHARDS - 1
    done.join()
    process.join()
    assert process.exitcode == 0
    assert logged(log) == [0]


def test_an_owner_that_was_suspended_comes_back(
    tmp_path: Path, start: Callable[..., Any], undisturbed: dict[str, bytes]
) -> None:
    log = tmp_path / "log"
    hold(log, 0).touch()
    process = start(fill_far_away, tmp_path, log, 0.0, 0.6, None)
    wait_for(log.exists)
    os.kill(process.pid, signal.SIGSTOP)
    table = open_table(tmp_path, stale=0.6)
    assert table.fill(shard) == SHARDS
    hold(log, 0).unlink()
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 0
    assert contents(table.folder) == undisturbed


def test_who_lost_the_lease_does_not_write(tmp_path: Path) -> None:
    table = open_table(tmp_path, shards=1)

    def lose_the_lease(index: int) -> pa.Table:
        if not made:
            (table.folder / "shard-00000.claim").unlink()
        made.append(index)
        assert not table.arrow_file(0).exists()
        return shard(index)

    made: list[int] = []
    assert table.fill(lose_the_lease) == 1
    assert made == [0, 0]  # the first was dropped
    assert table.complete()
