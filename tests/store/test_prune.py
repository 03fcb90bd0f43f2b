"""What `prune` removes with a table, and what it never touches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.store_workers import KEY, shard
from topr_exp.runtime import locks
from topr_exp.runtime.files import file_digest
from topr_exp.store import Store, Table, catalog
from topr_exp.store.__main__ import main
from topr_exp.store.survey import MARKER

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Completions with verdicts on them, scored with two references; beside it what a run leaves."""
    store = Store(tmp_path / "store")
    rollouts = store.table("rollouts", {"weights": "w"}, 1)
    rollouts.fill(shard)
    store.table("verdicts", {"rollouts": rollouts.name}, 1).fill(shard)
    for reference in ("a", "b"):
        store.table("logprobs", {"rollouts": rollouts.name, "weights": reference}, 1).fill(shard)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "summary.json").write_text("{}")
    return store


@pytest.fixture
def command(store: Store, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str, root: Path = store.root) -> tuple[int, str, str]:
        status = main(["--root", str(root), *arguments])
        return status, *capsys.readouterr()

    return run


def names(store: Store) -> set[str]:
    return {entry.name for entry in catalog.entries(store)}


def files(folder: Path) -> dict[Path, str]:
    return {path: file_digest(path) if path.is_file() else "" for path in folder.rglob("*")}


def import_old(store: Store, kind: str = "imported") -> Table:
    table = store.table(kind, {"content": "abc"}, 1)
    table.fill(shard)
    os.utime(table.folder / "key.json", (0, 0))
    return table


# ---- what is never touched


@pytest.mark.parametrize("place", [".", "runs", "home", "documents"])
def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, command: Command, place: str) -> None:
    """One component too short, the runs' folder, a home folder, documents two levels deep."""
    (tmp_path / "home" / "photos").mkdir(parents=True)
    (tmp_path / "home" / "photos" / "me.jpg").write_text("me")
    (tmp_path / "home" / ".ssh").mkdir()
    (tmp_path / "documents" / "a" / "b").mkdir(parents=True)
    (tmp_path / "documents" / "a" / "b" / "thesis.txt").write_text("years")
    before = files(tmp_path)
    for asked in (["--older-than", "0"], ["--kind", "runs"], ["--kind", "a"], ["--key", "a/b"], ["--key", "runs/one"]):
        status, out, err = command("prune", *asked, "--yes", root=tmp_path / place)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "which is no table of a store; nothing is removed" in err
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("entry", "below"),
    [("notes.txt", ""), ("Old", "/x"), ("rollouts/notes", ""), ("rollouts/0123456789abcdef", "/mine.txt")],
)
def test_what_others_put_into_a_store_is_named(store: Store, command: Command, entry: str, below: str) -> None:
    mine = Path(f"{store.root / entry}{below}")
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    before = files(store.root)
    status, _, err = command("prune", "--older-than", "0", "--yes")
    assert (status, files(store.root)) == (1, before)
    assert f"{store.root} holds {store.root / entry}, which is no table" in err


def test_hidden_entries_are_ignored_and_stay(store: Store, command: Command) -> None:
    hidden = [store.root / ".git" / ".removed-0123456789ab" / "x", store.root / "rollouts" / ".snapshot" / "x"]
    for path in hidden:
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert command("prune", "--older-than", "0", "--yes")[0] == 0
    assert not names(store)
    assert all(path.exists() for path in hidden)


def test_a_store_is_marked_when_it_is_first_used(store: Store, tmp_path: Path, command: Command) -> None:
    """One of an earlier version is when the next run uses it; a folder that holds other things never is."""
    (store.root / MARKER).unlink()
    status, out, err = command("prune", "--older-than", "0", "--yes")
    assert (status, out, len(names(store))) == (1, "", 4)
    assert err.startswith(f"error: {store.root} has no file {MARKER}, which marks a store; the next run that uses")
    store.table("rollouts", {"weights": "w"}, 1).fill(shard)
    assert command("prune", "--older-than", "0")[0] == 0
    Store(tmp_path / "runs").table("rollouts", KEY, 1).fill(shard)
    assert not (tmp_path / "runs" / MARKER).exists()


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
    assert "to make it again" not in line
    os.utime(table.folder, (0, 0))
    assert command("prune", "--older-than", "1", "--kind", "imported", "--yes")[1].startswith("removed 0 tables")
    status, _, err = command("prune", "--key", "imported", "--yes")
    assert (status, table.folder.exists()) == (1, True)
    assert err.endswith(f": prune --key {table.name}\n")
    assert command("prune", "--key", table.name, "--yes")[1].startswith(f"removed  {table.name}")
    assert not table.folder.exists()


@pytest.mark.parametrize("kind", ["imported", "solver"])
def test_what_was_imported_goes_only_when_it_is_asked_for(store: Store, command: Command, kind: str) -> None:
    """No run can make it again."""
    table = import_old(store, kind)
    assert any(line.startswith(table.name) and "can't be made again" in line for line in command("list")[1].split("\n"))
    assert command("prune", "--older-than", "90", "--yes")[1] == "removed 0 tables, 0 B\n"
    assert f"{table.name}  " in (out := command("prune", "--older-than", "90", "--kind", kind)[1])
    assert "can't be made again" in out
    assert command("prune", "--key", kind, "--yes")[1].startswith(f"removed  {table.name}")


def test_ages_go_by_the_file_systems_clock(store: Store, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert command("prune", "--older-than", "1", "--yes")[1] == "removed 0 tables, 0 B\n"


def test_sizes_are_those_of_all_that_goes(store: Store, command: Command) -> None:
    (table,) = [entry.folder for entry in catalog.entries(store) if entry.kind == "verdicts"]
    (table / "deep" / "er").mkdir(parents=True)
    (table / "deep" / "er" / "x").write_bytes(bytes(5_000_000))
    assert "  5.0 MB" in command("list")[1]
    assert "  5.0 MB" in command("prune", "--kind", "verdicts")[1]


# ---- what goes with a table


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
    claim = locks.acquire(verdicts / "shard-00000.claim")
    assert isinstance(claim, locks.Lock)
    before = names(store)
    with claim:
        assert command("prune", "--kind", "rollouts", "--yes")[1].startswith("kept     rollouts/")
    assert names(store) == before
