"""Tables: whole shards only, each made once, the same bytes whoever made them; damage and refusals."""

import errno
import json
import math
import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import become_ordinary, refused
from tests.processes import PROCESSES
from tests.store.conftest import (
    SHARDS,
    Command,
    contents,
    fill_slowly,
    fill_until_killed,
    hold,
    logged,
    open_table,
    shard,
)
from tests.sweep_tools import wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.progress import Progress
from topr_exp.store import Ragged, Store
from topr_exp.store import table as table_module
from topr_exp.store.__main__ import main
from topr_exp.store.shards import find_fault, read_rows, write_shard
from topr_exp.store.table import canonical, key_hash
from topr_exp.types import TOPRError

# ---- what fill does


class Seen(Progress):
    """What a table says of its progress; the first message is answered by `answer`."""

    def __init__(self, answer: Callable[[], object] = lambda: None) -> None:
        self.updates: list[tuple[Any, ...]] = []
        self.messages: list[str] = []
        self.answer = answer

    def update(self, *given: Any) -> None:
        self.updates.append(given)

    def message(self, text: str) -> None:
        self.messages.append(text)
        self.answer()


def test_fill_makes_what_is_missing_and_reads_back(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert not table.folder.exists()
    with pytest.raises(TOPRError, match=r"shard-00000.arrow \(shard 0 of 12\) was never made"):
        table.read()
    assert table.missing() == list(range(SHARDS))
    progress = Seen()
    assert table.fill(shard, progress, lambda made: made.num_rows + 1) == 41 * SHARDS
    assert progress.updates == [(40, 41, "")] * SHARDS
    assert not table.missing()
    assert table.read().equals(pa.concat_tables([shard(index) for index in range(SHARDS)]))
    assert table.read(["text"]).column_names == ["text"]
    assert table.bounds()[-1] == table.read().num_rows == 40 * SHARDS
    assert table.shard(3).equals(shard(3))

    bytes_of_5 = table.shard_file(5).read_bytes()
    table.shard_file(5).unlink()
    again, progress = open_table(tmp_path), Seen()
    assert again.missing() == [5]
    chunked = lambda index: pa.concat_tables([shard(1), shard(index).slice(0, 7), shard(index).slice(7)]).slice(40)
    assert again.fill(chunked, progress) == 40
    assert again.shard_file(5).read_bytes() == bytes_of_5  # whatever the chunks
    assert progress.updates == [(40, 0, "from the store")] * 5 + [(40, 40, "")] + [(40, 0, "from the store")] * 6
    assert again.fill(shard) == 0


def test_a_shard_that_was_made_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    """By a process that was not kept out, on a file system without locks say."""
    table = open_table(tmp_path, shards=1)

    def overtaken(index: int) -> pa.Table:
        (table.folder / "shard-00000.claim").unlink()
        open_table(tmp_path, shards=1).fill(shard)
        written.append(table.shard_file(0).stat().st_ino)
        return shard(index)

    written: list[int] = []
    assert table.fill(overtaken) == 0
    assert written == [table.shard_file(0).stat().st_ino]


# ---- killed processes


def test_killed_at_every_step(tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL before each single file operation; then a fill leaves the same files as an undisturbed one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # guards against power cuts, and takes most of the time
    calm = open_table(tmp_path / "calm", shards=1)
    calm.fill(shard)
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        process = start(fill_until_killed, root, step)
        process.join()
        table = open_table(root, shards=1)
        if not table.missing():
            assert table.read().equals(shard(0))
        table.fill(shard, progress := Seen())
        assert contents(table.folder) == contents(calm.folder), f"killed at step {step}"
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert not progress.messages, "waited for a dead process"
    assert step > 10, "the operations were not seen"


# ---- many processes


def test_eight_processes_make_each_shard_once(tmp_path: Path, start: Callable[..., Any]) -> None:
    undisturbed = open_table(tmp_path / "undisturbed")
    undisturbed.fill(shard)
    log, ready = tmp_path / "log", PROCESSES.Barrier(8)
    hold(log, 0).touch()
    workers = [start(fill_slowly, tmp_path, log, ready) for _ in range(8)]
    wait_for(lambda: len(logged(log)) == SHARDS)  # others make the rest while one is held up
    hold(log, 0).unlink()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(logged(log)) == list(range(SHARDS))
    makers = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(makers) > 1
    assert contents(open_table(tmp_path).folder) == contents(undisturbed.folder)


def test_the_message_while_another_works(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table._write_key()
    lock: Any = locks.acquire(table.folder / "shard-00000.claim")
    progress = Seen(lambda: lock.__exit__(None, None, None))
    assert table.fill(shard, progress) == 40 * SHARDS
    this = f"{socket.gethostname()}:{os.getpid()}"
    assert progress.messages == [f"waiting for {this}, which makes shard 0 of 12 of {table.name}"]


# ---- keys


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
KEYS = st.dictionaries(st.text(), VALUES)
ROWS = st.lists(st.lists(st.integers(-5, 2**31 - 1), max_size=4), max_size=12)


def shuffled(value: Any, source: random.Random) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        source.shuffle(members)
        return {name: shuffled(member, source) for name, member in members}
    return [shuffled(member, source) for member in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=60)
@given(KEYS, KEYS, st.integers())
def test_equal_keys_and_no_others_have_one_text(one: dict[str, Any], other: dict[str, Any], seed: int) -> None:
    assert canonical(shuffled(one, random.Random(seed))) == canonical(one)
    assert json.loads(canonical(one)) == one
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == (key_hash(one) == key_hash(other)) == same


def test_hash_never_changes_between_versions() -> None:
    """Users' stores outlive a release: another hash would sample everything again."""
    key = {"weights": "ab12", "sampler": {"temperature": 1.0, "top_k": 500, "seed": 0}, "stop": ["\n\n"], "x": None}
    assert key_hash(key) == "e96ded1fc75f05fe"
    assert len({canonical({"x": value}) for value in (1, 1.0, True, "1")}) == 4
    assert canonical({"x": (1, 2)}) == canonical({"x": [1, 2]})


@pytest.mark.parametrize("value", [math.nan, [math.inf], {2, 3}])
def test_what_json_cannot_hold_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TOPRError, match=r"^a store key holds JSON values only: "):
        Store(tmp_path).table("rollouts", {"a": value}, 1)


# ---- list columns


@settings(deadline=None, max_examples=60)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_rows_equal_the_lists(chunks: list[list[list[int]]], cut: int, large: bool) -> None:
    kind = pa.large_list(pa.int32()) if large else pa.list_(pa.int32())
    column = pa.chunked_array([pa.array(rows, kind).slice(cut) for rows in chunks], kind)
    expected = [row for rows in chunks for row in rows[cut:]]
    ragged = Ragged(column)
    assert len(ragged) == len(expected)
    assert [row.tolist() for row in ragged] == expected
    assert [ragged[i - len(expected)].tolist() for i in range(len(expected))] == expected
    assert ragged.lengths().tolist() == [len(row) for row in expected]
    assert all(row.dtype == np.int32 for row in ragged)
    for row in (len(expected), -1 - len(expected)):
        with pytest.raises(IndexError, match=f" of {len(expected)}"):
            ragged[row]


def test_a_column_with_nulls_is_refused() -> None:
    with pytest.raises(AssertionError, match="no nulls"):
        Ragged(pa.chunked_array([pa.array([[1], None], pa.list_(pa.int32()))]))


def test_reading_takes_no_memory_for_the_columns(tmp_path: Path) -> None:
    table = Store(tmp_path).table("rollouts", {}, 2)
    table.fill(lambda index: pa.table({"tokens": pa.array([[index] * 100_000] * 3, pa.list_(pa.int32()))}))
    before = pa.total_allocated_bytes()
    tokens = Ragged(table.read()["tokens"])
    assert [(len(row), int(row[-1])) for row in tokens] == [(100_000, 0)] * 3 + [(100_000, 1)] * 3
    assert pa.total_allocated_bytes() - before < 10_000
    assert not tokens[0].flags.owndata
    assert not tokens[0].flags.writeable


# ---- damaged shards, disks that refuse, files of others: named in one line, nothing finished lost


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_flip_of_any_byte_and_any_truncation_is_found(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    path = tmp_path / "shard-00000.arrow"
    table = shard(0).slice(0, rows).replace_schema_metadata({"made_by": "x"})
    write_shard(path, table)
    data = path.read_bytes()
    assert (find_fault(path), read_rows(path)) == (None, rows)
    assert pa.ipc.open_file(path).read_all().equals(table, check_metadata=True)  # for other programs a usual Arrow file
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        assert find_fault(path) == "its checksum is wrong", position
        path.write_bytes(data[:position])
        assert find_fault(path) == "its checksum is wrong", position
        read_rows(path)
    path.write_bytes(data + b"x")
    assert find_fault(path) is not None


@pytest.mark.parametrize("damage", [600, -5, "cut"], ids=str)
def test_a_damaged_shard_is_named_and_made_again(table, command, damage, caplog):
    """Rot does not show in the modification time: `verify` reads everything."""
    path = table.shard_file(4)
    good, status = path.read_bytes(), path.stat()
    if isinstance(damage, int):
        flip(path, damage)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.write_bytes(good[:-100])
    done, out, _ = command("verify", table.name)
    assert (done, out.splitlines()[0]) == (1, f"DAMAGED  {path}: its checksum is wrong")
    again = open_table(path.parents[2])
    with pytest.raises(TOPRError, match=r"shard-00004.arrow is damaged \(its checksum is wrong\); the next run makes"):
        again.read()
    assert (again.missing(), command("describe", table.name)[0]) == ([4], 0)
    made: list[int] = []
    caplog.clear()
    assert again.fill(lambda index: made.append(index) or shard(index)) == 40
    assert (made, path.read_bytes()) == ([4], good)
    (told,) = caplog.messages
    assert str(path) in told
    assert f"prune --key {table.name}" in told  # on a GPU it may be another one
    assert not again.missing()


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int32())])
def test_a_file_whose_checksum_is_right_may_still_be_no_table(tmp_path: Path, command: Command, kind: Any) -> None:
    """Written by another program: to read such offsets ends the process."""
    offsets = pa.py_buffer(np.array([0, 2**30, 2], np.int32))
    buffers = [None, offsets] if kind != pa.string() else [None, offsets, pa.py_buffer(b"ab")]
    children = [] if kind == pa.string() else [pa.array([1, 2], pa.int32())]
    column = pa.Array.from_buffers(kind, 2, buffers, children=children)
    table = Store(tmp_path / "store").table("rollouts", {}, 1)
    write = lambda _: pa.table({"problem_id": ["1", "2"], "text": ["a", "b"], "tokens": column})
    table._write_key()
    write_shard(table.shard_file(0), write(0))
    assert f"DAMAGED  {table.shard_file(0)}: it is no valid table: " in command("verify")[1]
    done, _, err = command("export", "rollouts", str(tmp_path / "x"))
    assert (done, (tmp_path / "x").exists()) == (1, False)
    assert err.startswith(f"error: {table.shard_file(0)} is damaged (it is no valid table: ")


@pytest.mark.parametrize("number", range(1, 9))
def test_a_disk_that_refuses_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Claim, fsync of the file, rename, fsync of the folder, of each of two shards, in this order."""
    table, calls = open_table(tmp_path), list[str]()
    table._write_key()

    def failing(name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        return call

    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    with refused("the disk is full"):
        table.fill(shard)
    assert len(table.missing()) == SHARDS - number // 4
    assert {path.suffix for path in table.folder.iterdir()} <= {".json", ".arrow"}
    assert calls == (["write", "fsync", "replace", "fsync"] * 2)[:number]
    assert table.fill(shard) > 0
    assert not table.missing()


# ---- a store of somebody else: reading needs no right to write


def test_a_table_of_somebody_else_is_only_read(ordinary_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(ordinary_user)
    table.fill(shard)
    table.shard_file(2).chmod(0)
    monkeypatch.setattr(table_module, "_verified", {})
    become_ordinary(ordinary_user)
    with pytest.raises(TOPRError, match=r"^cannot read .*shard-00002.arrow: no permission$"):
        Store(ordinary_user).open(table.folder).missing()
    os.seteuid(os.getuid())
    table.shard_file(2).chmod(0o444)
    become_ordinary(ordinary_user)
    other = open_table(ordinary_user)
    assert (other.fill(shard), other.read().num_rows) == (0, 40 * SHARDS)
    with pytest.raises(TOPRError, match=r"^cannot write in .*/problems/[0-9a-f]{16}: no permission$"):
        Store(ordinary_user).table("problems", {}, 1).fill(shard)


def test_verify_names_what_it_may_not_read_and_goes_on(ordinary_user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        Store(ordinary_user / "store").table("problems", {"name": name}, 1).fill(shard)
    first, second = sorted((ordinary_user / "store" / "problems").iterdir())
    (first / "shard-00000.arrow").chmod(0)
    (ordinary_user / "run").mkdir(mode=0o700)
    become_ordinary(ordinary_user)
    assert main(["--root", str(ordinary_user / "store"), "verify", str(ordinary_user)]) == 1
    found = capsys.readouterr().out
    assert f"NOT READ cannot read {first / 'shard-00000.arrow'}: no permission" in found
    assert f"NOT READ {ordinary_user / 'run'}: no permission" in found
    assert f"sound    problems/{second.name}" in found
    os.seteuid(os.getuid())
    first.chmod(0)
    become_ordinary(ordinary_user)
    main(["--root", str(ordinary_user / "store"), "list"])
    assert f"problems/{second.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("list", "1 table, "),
        ("verify", "sound    rollouts/"),
        ("prune --older-than 0", "an unknown process, {this} is at work on it"),
        ("export", "has no column problem_id"),
    ],
)
def test_reading_needs_no_right_to_write(ordinary_user, capfd, command, words):
    """While two processes of others fill a table, of which one keeps its claim to itself."""
    table = open_table(ordinary_user)
    table.fill(shard)
    claims = [table.folder / f"shard-0000{index}.claim" for index in (3, 4)]
    held = [locks.acquire(claim) for claim in claims]
    claims[1].chmod(0)
    become_ordinary(ordinary_user)
    more = ["rollouts", f"{ordinary_user.parent}/{os.getpid()}.jsonl"] if command == "export" else []
    main(["--root", str(ordinary_user), *command.split(), *more])
    assert words.format(this=f"{os.uname().nodename}:{os.getpid()}") in "".join(capfd.readouterr())
    for lock in held:
        lock.__exit__(None, None, None)  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["list", "verify", "prune --older-than 0"])
@pytest.mark.parametrize(("hidden", "expected"), [(".", 1), ("rollouts", 1), ("verdicts", 0)])
def test_what_may_not_be_read_is_named(ordinary_user, capfd, caplog, command, hidden, expected):
    open_table(ordinary_user).fill(shard)
    if hidden != ".":
        (ordinary_user / hidden).mkdir(exist_ok=True)
        (ordinary_user / hidden).chmod(0)
    become_ordinary(ordinary_user, 0 if hidden == "." else 0o555)
    status = main(["--root", str(ordinary_user), *command.split()])
    out, err = capfd.readouterr()
    assert f"cannot read {ordinary_user / hidden}: no permission" in err + caplog.text
    assert "holds no tables" not in out + err
    assert status == expected
