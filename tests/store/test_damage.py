"""Tables whose files are damaged, on disks that refuse, and of somebody else: one line, nothing finished lost."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import become_ordinary, refused
from tests.store.conftest import SHARDS, Command, open_table, shard
from topr_exp.runtime import locks
from topr_exp.store import Store
from topr_exp.store import table as table_module
from topr_exp.store.__main__ import main
from topr_exp.store.shards import find_fault, read_rows, write_shard
from topr_exp.types import TOPRError

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
def test_a_damaged_shard_is_named_and_made_again(table, command, damage, capsys):
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
    capsys.readouterr()
    assert again.fill(lambda index: made.append(index) or shard(index)) == 40
    assert (made, path.read_bytes()) == ([4], good)
    (told,) = capsys.readouterr().err.splitlines()
    assert str(path) in told
    assert f"--root {path.parents[2]} prune --key {table.name}" in told  # on a GPU it may be another one
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
    with refused("No space left on device"):
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
    with pytest.raises(TOPRError, match=r"^cannot read .*shard-00002.arrow: Permission denied$"):
        Store(ordinary_user).open(table.folder).missing()
    os.seteuid(os.getuid())
    table.shard_file(2).chmod(0o444)
    become_ordinary(ordinary_user)
    other = open_table(ordinary_user)
    assert (other.fill(shard), other.read().num_rows) == (0, 40 * SHARDS)
    with pytest.raises(TOPRError, match=r"^cannot write in .*/problems/[0-9a-f]{16}: Permission denied$"):
        Store(ordinary_user).table("problems", {}, 1).fill(shard)


def test_verify_misses_the_model_of_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert main(["verify", str(tmp_path)]) == 0
    (tmp_path / "run" / "DONE").touch()
    assert main(["verify", str(tmp_path)]) == 1
    assert f"DAMAGED  {tmp_path / 'run' / 'model'}: " in capsys.readouterr().out


def test_verify_names_what_it_may_not_read_and_goes_on(ordinary_user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        Store(ordinary_user / "store").table("problems", {"name": name}, 1).fill(shard)
    first, second = sorted((ordinary_user / "store" / "problems").iterdir())
    (first / "shard-00000.arrow").chmod(0)
    (ordinary_user / "run").mkdir(mode=0o700)
    become_ordinary(ordinary_user)
    assert main(["--root", str(ordinary_user / "store"), "verify", str(ordinary_user)]) == 1
    found = capsys.readouterr().out
    assert f"NOT READ cannot read {first / 'shard-00000.arrow'}: Permission denied" in found
    assert f"NOT READ {ordinary_user / 'run'}: Permission denied" in found
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
def test_what_may_not_be_read_is_named(ordinary_user, capfd, command, hidden, expected):
    open_table(ordinary_user).fill(shard)
    if hidden != ".":
        (ordinary_user / hidden).mkdir(exist_ok=True)
        (ordinary_user / hidden).chmod(0)
    become_ordinary(ordinary_user, 0 if hidden == "." else 0o555)
    status = main(["--root", str(ordinary_user), *command.split()])
    out, err = capfd.readouterr()
    assert f"cannot read {ordinary_user / hidden}: Permission denied" in err
    assert "holds no tables" not in out + err
    assert status == expected
