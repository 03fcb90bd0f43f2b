"""`python -m topr_exp.store`: what it prints, what it removes and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.store.store_workers import KEY, SHARDS, shard
from topr_exp.runtime import locks
from topr_exp.store import Store, Table
from topr_exp.store.__main__ import human_bytes, main
from topr_exp.types import TOPRError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def rollouts(store: Store) -> Table:
    table = store.table("rollouts", KEY, SHARDS)
    table.fill(shard)
    return table


def command(store: Store, *arguments: str) -> int:
    return main(["--root", str(store.root), *arguments])


def test_list_and_describe(store: Store, rollouts: Table, capsys: pytest.CaptureFixture[str]) -> None:
    half = store.table("verdicts", {"rollouts": rollouts.name}, 4)
    with pytest.raises(ZeroDivisionError):
        half.fill(lambda index: shard(index // (2 - index)))
    assert command(store, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY"]
    assert lines[1].split()[:3] == [rollouts.name, "480", "12"]
    assert lines[1].endswith("0 d  temperature=1.0 weights=ab12")
    assert f"{half.name}" in lines[2]
    assert " 80  2 of 4 " in lines[2]
    assert lines[3].startswith("2 tables, ")

    assert command(store, "describe", rollouts.folder.name[:5]) == 0
    text = capsys.readouterr().out
    assert "rows     480 in 12 of 12 shards" in text
    assert "columns  tokens list<" in text
    assert json.loads(text.partition("\nkey\n")[2]) == KEY
    assert command(store, "describe", "verdicts") == 0
    assert "missing  shards 2, 3" in capsys.readouterr().out


def test_verify(store: Store, rollouts: Table, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(store, "verify") == 0
    assert f"sound    {rollouts.name}: 12 of 12 shards made" in capsys.readouterr().out
    path = rollouts.arrow_file(7)
    status, data = path.stat(), bytearray(path.read_bytes())
    data[700] ^= 4
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # rot does not show in the modification time
    assert command(store, "verify", rollouts.name) == 1
    out = capsys.readouterr().out
    assert f"DAMAGED  {path}: its checksum is wrong" in out
    assert "1 damaged" in out
    assert Store(store.root).table("rollouts", KEY, SHARDS).fill(shard) == 1

    (rollouts.folder / "key.json").write_text("{")
    assert command(store, "verify") == 1
    assert "key.json is damaged" in capsys.readouterr().out
    (store.root.parent / "notes.json").write_text("[" * 100_000)
    assert command(store, "verify", str(store.root.parent)) == 1
    assert "notes.json: no JSON" in capsys.readouterr().out
    assert command(store, "list") == 0
    assert "key.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int32())])
def test_a_file_whose_checksum_is_right_may_still_be_no_table(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: pa.DataType
) -> None:
    """Written by another program: to read such offsets ends the process."""
    offsets = pa.py_buffer(np.array([0, 2**30, 2], np.int32))
    buffers = [None, offsets] if kind != pa.string() else [None, offsets, pa.py_buffer(b"ab")]
    column = pa.Array.from_buffers(
        kind, 2, buffers, children=[] if kind == pa.string() else [pa.array([1, 2], pa.int32())]
    )
    table = store.table("rollouts", {}, 1)
    table.fill(lambda _: pa.table({"problem_id": ["1", "2"], "text": ["a", "b"], "tokens": column}))
    assert command(store, "verify") == 1
    assert f"DAMAGED  {table.arrow_file(0)}: it is no valid table: " in capsys.readouterr().out
    assert command(store, "export", "rollouts", str(tmp_path / "x")) == 1
    assert capsys.readouterr().err.startswith(f"error: {table.arrow_file(0)} is damaged (it is no valid table: ")
    assert not (tmp_path / "x").exists()


def test_prune(store: Store, rollouts: Table, capsys: pytest.CaptureFixture[str]) -> None:
    old = store.table("rollouts", {"weights": "old"}, 1)
    old.fill(shard)
    verdicts = store.table("verdicts", {"weights": "old"}, 1)
    verdicts.fill(shard)
    month_ago = time.time() - 30 * 86_400
    for table in (old, verdicts):
        os.utime(table.folder / "key.json", (month_ago, month_ago))

    assert command(store, "prune", "--older-than", "29", "--kind", "rollouts") == 0
    out = capsys.readouterr().out
    assert f"would go {old.name}" in out
    assert rollouts.name not in out
    assert "1 table, " in out
    assert "add --yes" in out
    assert old.complete()

    assert command(store, "prune", "--older-than", "31", "--yes") == 0
    assert "removed 0 tables" in capsys.readouterr().out
    old.fill(shard)  # a run that uses it makes it young again
    assert command(store, "prune", "--older-than", "29", "--yes") == 0
    assert f"removed  {verdicts.name}" in capsys.readouterr().out
    assert (old.complete(), rollouts.complete(), verdicts.folder.exists()) == (True, True, False)
    (store.root / "verdicts" / ".removed-0123456789ab").mkdir()
    assert command(store, "prune", "--key", old.folder.name, "--yes") == 0
    assert not old.folder.exists()
    assert list((store.root / "verdicts").iterdir()) == []
    with pytest.raises(SystemExit, match="2"):
        command(store, "prune")
    with pytest.raises(SystemExit, match="2"):
        command(store, "prune", "--older-than", "-1")


def test_prune_keeps_what_a_process_works_on(store: Store, rollouts: Table, capsys: pytest.CaptureFixture[str]) -> None:
    claim = locks.acquire(rollouts.folder / "shard-00003.claim")
    assert isinstance(claim, locks.Lock)
    with claim:
        assert command(store, "prune", "--kind", "rollouts", "--yes") == 0
        assert f":{os.getpid()} is at work on it" in capsys.readouterr().out
        assert command(store, "describe", "rollouts") == 0
        assert "at work  " in capsys.readouterr().out
    assert rollouts.complete()


def test_import_and_export(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"problem_id": "1", "completion": "x", "tokens": [1], "score": 3}\n')
    assert command(store, "import", str(source), "--kind", "solver") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("solver/")
    assert captured.out.endswith(": 1 completions, tokens\n")
    assert captured.err == "warning: nothing reads the member score (1 lines)\n"
    assert command(store, "import", str(source), "--kind", "solver") == 0
    assert "(was there already)" in capsys.readouterr().out
    assert command(store, "export", "solver", str(target)) == 0
    assert capsys.readouterr().out.startswith("1 completions of solver/")
    assert target.read_text() == '{"problem_id": "1", "completion": "x", "tokens": [1]}\n'
    source.write_text("{}\n")
    assert command(store, "import", str(source)) == 1
    assert capsys.readouterr().err == f"error: {source}:1: completion is missing\n"
    assert command(store, "import", str(target), "--kind", "../x") == 1


def test_mistakes(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(store, "list") == 1
    assert capsys.readouterr().err == f"error: {store.root} is no store: there is no such folder\n"
    store.root.mkdir()
    assert command(store, "list") == 0
    assert "holds no tables" in capsys.readouterr().out
    assert command(store, "describe", "rollouts") == 1
    assert f"error: no table in {store.root} is called rollouts" in capsys.readouterr().err
    for key in ({"a": 1}, {"a": 2}):
        store.table("rollouts", key, 1).fill(shard)
    assert command(store, "describe", "rollouts") == 1
    assert "rollouts could be rollouts/" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command(store, "remove")


def test_help_is_fast_and_needs_no_arrow() -> None:
    code = (
        "import sys, topr_exp.store.__main__ as m; m.parser(); print({'pyarrow', 'numpy', 'torch'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout == "set()\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (2.4e9, "2.4 GB"), (3e12, "3.0 TB")],
)
def test_human_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


def test_a_damaged_shard_can_still_be_described(store: Store, rollouts: Table) -> None:
    from topr_exp.store import catalog

    rollouts.arrow_file(0).write_bytes(b"x" * 100)
    with pytest.raises(TOPRError, match=r"shard-00000.arrow is damaged"):
        catalog.find(store, "rollouts").columns()
