"""`python -m topr_exp.store`: what it prints, what it removes and never touches, and how it exits."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.store.conftest import KEY, SHARDS, Command, shard
from topr_exp.runtime import locks
from topr_exp.runtime.checksums import file_digest
from topr_exp.store import Store, Table, pruning
from topr_exp.store.catalog import find_tables
from topr_exp.store.layout import MARKER


def names(store: Store) -> set[str]:
    return {table.name for table in find_tables(store)}


def import_old(store: Store) -> Table:
    table = store.table("imported", {"content": "abc"}, 1)
    table.fill(shard)
    os.utime(table.folder / "key.json", (0, 0))
    return table


def files(folder: Path) -> dict[Path, str]:
    return {path: file_digest(path) if path.is_file() else "" for path in folder.rglob("*")}


# ---- list, verify


def test_list(table: Table, command: Command) -> None:
    half = Store(table.folder.parents[1]).table("verdicts", {"rollouts": table.name}, 4)
    with pytest.raises(ZeroDivisionError):
        half.fill(lambda index: shard(index // (2 - index)))
    (half.folder / "deep" / "er").mkdir(parents=True)
    (half.folder / "deep" / "er" / "x").write_bytes(bytes(5_000_000))
    status, out, _ = command("list")
    lines = out.splitlines()
    assert (status, lines[0].split()) == (0, ["TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY"])
    assert lines[1].split()[:3] == [table.name, "480", "12"]
    assert lines[1].endswith("0 d  temperature=1.0 weights=ab12")
    assert half.name in lines[2]
    assert " 80  2 of 4  5.0 MB " in lines[2]
    assert lines[3].startswith("2 tables, ")

    status, text, _ = command("describe", table.folder.name[:5])
    assert (status, text.splitlines()[1], json.loads(text[text.index("{") :])) == (0, lines[1], KEY)
    assert "columns: " in text


def test_verify(table: Table, command: Command) -> None:
    assert command("verify")[:2] == (0, f"sound    {table.name}: 12 of 12 shards made, all checksums right\n")
    key = (table.folder / "key.json").read_bytes()
    (table.folder / "key.json").write_text("{")
    for asked, expected in (("verify", 1), ("list", 0), ("describe rollouts", 1)):
        status, out, err = command(*asked.split())
        assert (status, "key.json is damaged" in out + err) == (expected, True)
    assert table.fill(shard) == 0
    assert (table.folder / "key.json").read_bytes() == key  # its folder's name says which it is


def test_mistakes(tmp_path: Path, command: Command) -> None:
    store = Store(tmp_path / "store")
    assert command("list") == (1, "", f"error: {store.root} is no store: there is no such folder\n")
    store.root.mkdir()
    assert command("list") == (0, f"{store.root} holds no tables\n", "")
    assert "error: no table is called rollouts" in command("describe", "rollouts")[2]
    for key in ({"a": 1}, {"a": 2}):
        store.table("rollouts", key, 1).fill(shard)
    status, _, err = command("describe", "rollouts")
    assert (status, "rollouts could be rollouts/" in err) == (1, True)
    for asked in (["remove"], ["prune"], ["prune", "--older-than", "nan"], ["prune", "--older-than", "-5"]):
        with pytest.raises(SystemExit, match="2"):
            command(*asked)


def test_help_is_fast_and_needs_no_arrow() -> None:
    code = (
        "import sys, topr_exp.store.__main__ as m; m.parser(); print({'pyarrow', 'numpy', 'torch'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout == "set()\n"


# ---- import and export


def test_import_and_export(tmp_path: Path, command: Command) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"problem_id": "1", "completion": "x", "tokens": [1], "extra": 3}\n')
    status, out, error = command("import", str(source))
    assert (status, error) == (0, f"warning: nothing reads the columns extra of {source}\n")
    assert (out[:9], out.partition(":")[2]) == ("imported/", " 1 completions, tokens\n")
    assert "(was there already)" in command("import", str(source))[1]
    status, out, _ = command("export", "imported", str(target))
    assert (status, out.startswith("1 completions of imported/")) == (0, True)
    assert target.read_text() == '{"problem_id": "1", "completion": "x", "tokens": [1]}\n'
    for name in (source / "x.parquet", source / "y" / "x.jsonl"):  # below a file
        status, _, told = command("export", "imported", str(name))
        assert (status, told.count("\n"), told.startswith(f"error: cannot write {name}: ")) == (1, 1, True), told
    source.write_text("{}\n")
    told = f"error: {source}:1: completion is missing; the row has no columns\n"
    assert command("import", str(source)) == (1, "", told)


# ---- prune: what goes


def test_prune_by_age_and_key(store: Store, command: Command) -> None:
    old, other = store.table("rollouts", {"weights": "old"}, 1), store.table("verdicts", {"weights": "old"}, 1)
    for table in (old, other):
        table.fill(shard)
        os.utime(table.folder / "key.json", (time.time() - 30 * 86_400,) * 2)
    status, out, _ = command("prune", "--older-than", "29", "--kind", "rollouts")
    assert (status, out.count("would go"), f"would go {old.name}" in out) == (0, 1, True)
    assert "1 table, " in out
    assert "add --yes" in out
    assert not old.missing()
    assert "removed 0 tables" in command("prune", "--older-than", "31", "--yes")[1]
    old.fill(shard)  # a run that uses it makes it young again
    assert f"removed  {other.name}" in command("prune", "--older-than", "29", "--yes")[1]
    assert (old.missing(), other.folder.exists(), len(names(store))) == ([], False, 5)
    assert command("prune", "--key", old.folder.name, "--yes")[0] == 0
    assert not old.folder.exists()


def test_a_killed_prune_leaves_tables_and_nothing_that_was_made_from_what_is_gone(store, command, monkeypatch):
    (rollouts,) = [name for name in names(store) if name.startswith("rollouts/")]
    rmtree, removed = pruning.shutil.rmtree, list[Path]()

    def killed(folder: Path) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(folder)
        rmtree(folder)

    monkeypatch.setattr(pruning.shutil, "rmtree", killed)
    assert command("prune", "--key", rollouts, "--yes")[0] == 130
    assert (len(removed), len(names(store)), rollouts in names(store)) == (1, 3, True)
    assert "0 of 1 shards made" in command("verify")[1]  # of the one whose removal was broken off
    assert store.table("rollouts", {"weights": "w"}, 1).fill(shard) == 0


def test_what_was_made_from_a_table_goes_with_it(store: Store, command: Command) -> None:
    (rollouts,) = [name for name in names(store) if name.startswith("rollouts/")]
    (verdicts,) = [name for name in names(store) if name.startswith("verdicts/")]
    other = store.table("rollouts", {"weights": "other"}, 1)
    other.fill(shard)
    store.table("votes", {"verdicts": f"{verdicts} as read by y"}, 1).fill(shard)  # made from what was made from it
    *lines, last = command("prune", "--key", rollouts)[1].splitlines()
    assert (len(lines), last.startswith("5 tables, "), len(names(store))) == (5, True, 6)
    command("prune", "--key", rollouts, "--yes")
    assert names(store) == {other.name}


def test_nothing_goes_while_a_process_works_on_what_was_made_from_it(store: Store, command: Command) -> None:
    (verdicts,) = (store.root / "verdicts").iterdir()
    before = names(store)
    with locks.acquire(verdicts / "shard-00000.claim"):  # type: ignore[union-attr]
        out = command("prune", "--kind", "rollouts", "--yes")[1]
        assert out.startswith("kept     rollouts/")
        assert f":{os.getpid()} is at work on it" in out
    assert names(store) == before


# ---- prune: what never goes


@pytest.mark.parametrize("place", [".", "home", "documents"])
def test_a_folder_that_is_no_store_is_refused(store: Store, tmp_path: Path, command: Command, place: str) -> None:
    """One component too short, a home folder, documents two levels deep."""
    for path in ("home/photos/me.jpg", "home/.ssh/key", "documents/a/b/thesis.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("mine")
    before = files(tmp_path)
    for asked in (["--older-than", "0"], ["--kind", "runs"], ["--kind", "a"], ["--key", "a/b"], ["--key", "runs/one"]):
        status, out, err = command("prune", *asked, "--yes", root=tmp_path / place)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"error: {tmp_path / place} has no file {MARKER}, which marks a store; the next run that uses" in err
    assert files(tmp_path) == before


def test_what_others_put_into_a_store_stays(store: Store, tmp_path: Path, command: Command) -> None:
    """Other files, folders with the name of a table and other contents, links to tables, hidden ones."""
    elsewhere = Store(tmp_path / "elsewhere").table("rollouts", KEY, SHARDS)
    elsewhere.fill(shard)
    mine = ["notes.txt", "Old/x", "rollouts/notes", "rollouts/0123456789abcdef/mine.txt", "rollouts/.snapshot/x"]
    mine += [".git/.removed-0123456789ab/x"]
    for path in (store.root / name for name in mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (store.root / "rollouts" / elsewhere.folder.name).symlink_to(elsewhere.folder)
    for key in ("rollouts/0123456789abcdef", elsewhere.name):
        assert command("prune", "--key", key, "--yes")[0] == 1
    status, _, err = command("prune", "--older-than", "0", "--yes")
    assert (status, err) == (
        1,
        f"error: {store.root} holds Old, notes.txt, rollouts, which a store does not; nothing is removed\n",
    )
    assert len(names(store)) == 4
    assert all((store.root / name).exists() for name in mine)
    for name in mine[:3]:
        (store.root / name).unlink()
    (store.root / "Old").rmdir()
    assert command("prune", "--older-than", "0", "--yes")[0] == 0
    assert not names(store)
    assert all((store.root / name).exists() for name in mine[3:])
    assert not elsewhere.missing()


def test_a_store_is_marked_when_it_is_used_and_holds_nothing_else(store: Store, command: Command) -> None:
    (store.root / MARKER).unlink()
    (store.root / "a.txt").write_text("mine")
    store.table("rollouts", {"weights": "w"}, 1).fill(shard)
    assert not (store.root / MARKER).exists()
    (store.root / "a.txt").unlink()
    status, out, _ = command("prune", "--older-than", "0", "--yes")
    assert (status, out, len(names(store))) == (1, "", 4)
    store.table("rollouts", {"weights": "w"}, 1).fill(shard)
    assert command("prune", "--older-than", "0")[0] == 0


@pytest.mark.parametrize("damage", ["truncated", "another table's", "missing"])
def test_a_damaged_table_goes_only_by_its_full_name(store: Store, command: Command, damage: str) -> None:
    table, other = import_old(store), store.table("rollouts", {"weights": "w"}, 1)
    key_file = table.folder / "key.json"
    if damage == "missing":
        key_file.unlink()
    else:
        key_file.write_text((other.folder / "key.json").read_text()[: 9 if damage == "truncated" else None])
    (line,) = [line for line in command("list")[1].split("\n") if line.startswith(table.name)]
    assert "can't be made again  " in line
    os.utime(table.folder, (0, 0))
    assert command("prune", "--older-than", "1", "--kind", "imported", "--yes")[1].startswith("removed 0 tables")
    status, _, err = command("prune", "--key", "imported", "--yes")
    assert (status, table.folder.exists()) == (1, True)
    assert err.endswith(f": prune --key {table.name}\n")
    assert command("prune", "--key", table.name, "--yes")[1].startswith(f"removed  {table.name}")
    assert not table.folder.exists()


def test_imports_go_only_when_they_are_asked_for(store: Store, command: Command) -> None:
    """No run can make them again."""
    table = import_old(store)
    assert any(line.startswith(table.name) and "can't be made again" in line for line in command("list")[1].split("\n"))
    assert command("prune", "--older-than", "90", "--yes")[1] == "removed 0 tables, 0.0 MB\n"
    out = command("prune", "--older-than", "90", "--kind", "imported")[1]
    assert f"{table.name}  " in out
    assert "can't be made again" in out
    assert command("prune", "--key", "imported", "--yes")[1].startswith(f"removed  {table.name}")
