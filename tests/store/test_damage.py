"""Tables whose files are damaged, on disks that refuse, and of somebody else: one line, nothing finished lost."""

import errno
import os

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import become_ordinary, each_row, refused
from tests.store.conftest import SHARDS, open_table, shard
from topr_exp.runtime import distributed, locks
from topr_exp.store import Store
from topr_exp.store.shards import examine, read_row_count, write_shard


def flipped(data, position):
    flipped_data = bytearray(data)
    flipped_data[position] ^= 1 << position % 8
    return bytes(flipped_data)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_flip_of_any_byte_and_any_truncation_is_found(tmp_path, rows):
    path = tmp_path / "shard-00000.arrow"
    table = shard(0).slice(0, rows).replace_schema_metadata({"made_by": "x"})
    write_shard(path, table)
    data = path.read_bytes()
    table_of_other_programs = pa.ipc.open_file(path).read_all()
    assert examine(path).rows == read_row_count(path) == rows
    assert table_of_other_programs.equals(table, check_metadata=True)

    for position in range(len(data)):
        for damaged in (flipped(data, position), data[:position]):
            path.write_bytes(damaged)
            assert examine(path) == "its checksum is wrong", position
            read_row_count(path)
    path.write_bytes(data + b"x")
    assert examine(path) == "its checksum is wrong"


@pytest.mark.parametrize(
    "damage",
    [lambda data: flipped(data, 600), lambda data: flipped(data, len(data) - 5), lambda data: data[:-100]],
    ids=["data", "seal", "cut short"],
)
def test_a_damaged_shard_is_named_and_made_again(table, command, damage, capfd, monkeypatch):
    """Rot does not show in the modification time: `verify` reads everything."""
    path = table.shard_path(4)
    root = path.parents[2]
    data = path.read_bytes()
    status = path.stat()
    path.write_bytes(damage(data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    outcome = command("verify", table.name)
    assert outcome.status == 1
    assert outcome.out.splitlines()[0] == f"DAMAGED  {path}: its checksum is wrong"
    reopened = open_table(root)
    with refused(r"shard-00004.arrow is damaged \(its checksum is wrong\); the next run makes"):
        reopened.read()
    assert reopened.missing() == [4]
    assert command("describe", table.name).status == 0

    monkeypatch.setattr(distributed, "_rank", 1)  # any process of a run may find it
    assert reopened.fill(shard) == 40
    assert path.read_bytes() == data
    (line,) = capfd.readouterr().err.splitlines()
    assert str(path) in line
    assert f"--root {root} prune --key {table.name}" in line  # on a GPU it may be another one


@pytest.mark.parametrize("shards", [0, SHARDS - 1])
def test_a_key_that_leaves_shards_out_is_damaged(shards, table, command, tmp_path):
    """One digit of key.json says how many shards there are, and the folder's name does not depend on it."""
    key_file = table.folder / "key.json"
    text = key_file.read_text()
    key_file.write_text(text.replace(f'"shards": {SHARDS}', f'"shards": {shards}'))

    assert f"shards={shards}, and there are more" in command("verify").out
    assert command(f"export {table.name}", tmp_path / "x.jsonl").status == 1
    open_table(table.folder.parents[1]).fill(shard)
    assert key_file.read_text() == text


def test_a_file_whose_checksum_is_right_may_still_be_no_table(tmp_path, command):
    """Written by another program: to read such offsets ends the process."""
    offsets = np.array([0, 2**30, 2], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"ab")]
    texts = pa.Array.from_buffers(pa.string(), 2, buffers)
    table = Store(tmp_path / "store").table("rollouts", {}, 1)
    table.fill(shard)
    path = table.shard_path(0)
    write_shard(path, pa.table({"problem_id": ["1", "2"], "text": texts}))

    assert f"DAMAGED  {path}: it is no valid table: " in command("verify").out
    outcome = command("export rollouts", tmp_path / "x")
    assert outcome.status == 1
    assert outcome.err.startswith(f"error: {path} is damaged (it is no valid table: ")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("call_number", range(1, 9))
def test_a_disk_that_refuses_any_call_costs_no_finished_shard(tmp_path, monkeypatch, call_number):
    """Claim, fsync of the file, rename, fsync of the folder, of each of two shards, in this order."""
    table = open_table(tmp_path)
    calls = []
    table._write_key()

    def refuse_one(name, call):
        def counted_call(*arguments):
            calls.append(name)
            if len(calls) == call_number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments)

        return counted_call

    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, refuse_one(name, getattr(os, name)))
    with refused("No space left on device"):
        table.fill(shard)

    assert calls == (["write", "fsync", "replace", "fsync"] * 2)[:call_number]
    assert len(table.missing()) == SHARDS - call_number // 4
    assert {path.suffix for path in table.folder.iterdir()} <= {".json", ".arrow"}
    table.fill(shard)
    assert not table.missing()


# ---- a store of somebody else: reading needs no right to write


def test_a_table_of_somebody_else_is_only_read(ordinary_user):
    table = open_table(ordinary_user)
    table.fill(shard)
    become_ordinary(ordinary_user)

    reopened = open_table(ordinary_user)
    reopened.hold()
    assert locks.lock_exclusively(table.folder / "key.json") is None, "a prune waits for its reader"
    assert reopened.fill(shard) == 0
    assert reopened.read().num_rows == 40 * SHARDS
    with refused(r"^cannot write in .*/problems/[0-9a-f]{16}: Permission denied$"):
        Store(ordinary_user).table("problems", {}, 1).fill(shard)


def test_what_may_not_be_read_is_named_and_the_rest_is_verified(ordinary_user, command):
    for name in ("a", "b"):
        Store(ordinary_user).table("problems", {"name": name}, 1).fill(shard)
    first, second = sorted((ordinary_user / "problems").iterdir())
    (first / "shard-00000.arrow").chmod(0)
    (ordinary_user / "run").mkdir(mode=0o700)
    become_ordinary(ordinary_user)

    outcome = command("verify", ordinary_user, root=ordinary_user)

    assert outcome.status == 1
    assert f"NOT READ cannot read {first / 'shard-00000.arrow'}: Permission denied" in outcome.out
    assert f"NOT READ {ordinary_user / 'run'}: Permission denied" in outcome.out
    assert f"sound    problems/{second.name}" in outcome.out
    assert f"problems/{second.name}" in command("list", root=ordinary_user).out


ANSWERS = """
list | 1 table,
verify | sound    rollouts/
prune --older-than 0 | an unknown process, {process} is at work on it
export rollouts /tmp/never-made.jsonl | has no column problem_id
"""


@each_row("words answer", ANSWERS)
def test_reading_needs_no_right_to_write(ordinary_user, command, words, answer):
    """While two processes of others fill a table, of which one keeps its claim to itself."""
    table = open_table(ordinary_user)
    table.fill(shard)
    claims = [table.folder / f"shard-0000{index}.claim" for index in (3, 4)]
    held_locks = list(map(locks.acquire, claims))
    claims[1].chmod(0)
    become_ordinary(ordinary_user)

    outcome = command(words, root=ordinary_user)

    process = f"{os.uname().nodename}:{os.getpid()}"
    assert answer.format(process=process) in outcome.out + outcome.err
    for lock in held_locks:
        lock.__exit__(None, None, None)
