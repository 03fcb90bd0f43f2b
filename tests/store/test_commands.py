"""`python -m topr_exp.store`: what it prints, what it removes and never touches, and how it exits."""

import json
import os
import shutil
import time

import pytest

from tests.conftest import contents, write_file
from tests.store.conftest import KEY, SHARDS, shard
from topr_exp.runtime import locks
from topr_exp.store import Store
from topr_exp.store.catalog import find_tables
from topr_exp.store.layout import MARKER


def table_names(store):
    return {table.name for table in find_tables(store)}


def only_name(store, kind):
    (folder,) = (store.root / kind).iterdir()
    return f"{kind}/{folder.name}"


def filled_table(store, kind, key, days=0):
    """A table that was last used so many days ago."""
    table = store.table(kind, key, 1)
    table.fill(shard)
    used = time.time() - 86_400 * days
    os.utime(table.folder / "key.json", (used, used))
    return table


def write_files(folder, *names):
    for name in names:
        write_file(folder / name, "mine")


# ---- list, describe, verify


def test_list_has_a_line_for_each_table_and_describe_its_key(table, command):
    half = Store(table.folder.parents[1]).table("verdicts", {"rollouts": table.name}, 4)
    shards = [shard(1), shard(0)]
    with pytest.raises(IndexError):
        half.fill(lambda index: shards.pop())
    write_file(half.folder / "deep/er/x", 5_000_000 * "x")

    header, line, line_of_half, total = command("list").out.splitlines()[:4]
    description = command("describe", table.folder.name[:5]).out

    assert header.split() == ["TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY"]
    assert line.split()[:3] == [table.name, "480", "12"]
    assert line.endswith("0 d  temperature=1.0 weights=ab12")
    assert half.name in line_of_half
    assert " 80  2 of 4  5.0 MB " in line_of_half
    assert total.startswith("2 tables, ")
    assert description.splitlines()[1] == line
    key = description[description.index("{") :]
    assert json.loads(key) == KEY


def test_a_damaged_key_is_named_and_made_again(table, command):
    assert command("verify").out == f"sound    {table.name}: 12 of 12 shards made, all checksums right\n"

    key = (table.folder / "key.json").read_bytes()
    (table.folder / "key.json").write_text("{")
    for words, status in (("verify", 1), ("list", 0), ("describe rollouts", 1)):
        outcome = command(words)
        assert outcome.status == status
        assert "key.json is damaged" in outcome.out + outcome.err

    assert table.fill(shard) == 0
    assert (table.folder / "key.json").read_bytes() == key  # its folder's name says which it is


def test_mistakes_are_one_line(tmp_path, command):
    store = Store(tmp_path / "store")
    assert command("list") == (1, "", f"error: {store.root} is no store: there is no such folder\n")
    store.root.mkdir()
    assert command("list") == (0, f"{store.root} holds no tables\n", "")
    assert command("describe rollouts").err.startswith("error: no table is called rollouts")

    for name in ("a", "b"):
        filled_table(store, "rollouts", {"name": name})
    assert "rollouts could be rollouts/" in command("describe rollouts").err


@pytest.mark.parametrize("words", ["remove", "prune", "prune --older-than nan", "prune --older-than -5"])
def test_a_command_that_could_mean_everything_is_refused(store, command, words):
    with pytest.raises(SystemExit, match="2"):
        command(words)


# ---- import and export


def test_what_is_imported_is_exported_without_what_nothing_reads(tmp_path, command):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    row = '{"problem_id": "1", "completion": "x", "tokens": [1]'
    source.write_text(row.replace("completion", "said") + ', "extra": 3}\n{}\n')
    words = ["import", source, "data.columns={completion: said}", "data.skip_malformed=true"]

    outcome = command(*words)
    unread_line, skipped_line = outcome.err.splitlines()
    assert unread_line == f"warning: nothing reads the columns extra of {source}"
    assert skipped_line.startswith(f"warning: 1 malformed row left out: {source}:2: data.columns.completion=said: no")
    assert outcome.out.startswith("imported/")
    assert outcome.out.endswith(": 1 completions, tokens\n")
    assert "(was there already)" in command(*words).out

    assert command("export imported", target).out.startswith("1 completions of imported/")
    assert target.read_text() == row + "}\n"


def test_what_can_not_be_imported_or_written_is_one_line(tmp_path, command):
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    line = f"error: {source}:1: completion is missing; the row has no columns\n"
    assert command("import", source) == (1, "", line)
    line = "error: model=tiny: an import does not read model; it reads data.columns, data.skip_malformed\n"
    assert command("import", source, "model=tiny") == (2, "", line)

    source.write_text('{"problem_id": "1", "completion": "x"}\n')
    command("import", source)
    for target in (source / "x.parquet", source / "y/x.jsonl"):  # below a file
        outcome = command("export imported", target)
        assert outcome.status == outcome.err.count("\n") == 1
        assert outcome.err.startswith(f"error: cannot write {target}: ")


# ---- prune: what goes


def test_prune_by_age_and_kind_removes_only_with_yes(store, command):
    rollouts, verdicts = (filled_table(store, kind, {"weights": "old"}, 30) for kind in ("rollouts", "verdicts"))

    outcome = command("prune --older-than 29 --kind rollouts")
    assert outcome.out.count("would go") == 1
    assert f"would go {rollouts.name}" in outcome.out
    assert "1 table, " in outcome.out
    assert "add --yes" in outcome.out
    assert "removed 0 tables" in command("prune --older-than 31 --yes").out

    rollouts.fill(shard)  # a run that uses it makes it young again
    assert f"removed  {verdicts.name}" in command("prune --older-than 29 --yes").out
    assert not rollouts.missing()
    assert not verdicts.folder.exists()


def test_what_was_made_from_a_table_goes_with_it(store, command):
    rollouts = only_name(store, "rollouts")
    verdicts = only_name(store, "verdicts")
    unrelated = filled_table(store, "rollouts", {"weights": "other"})
    filled_table(store, "votes", {"verdicts": f"{verdicts} as read by y"})  # made from what was made from it

    *lines, last_line = command("prune --key", rollouts).out.splitlines()
    assert len(lines) == 5
    assert last_line.startswith("5 tables, ")
    assert len(table_names(store)) == 6

    command("prune --yes --key", rollouts)
    assert table_names(store) == {unrelated.name}


def test_a_killed_prune_leaves_tables_and_nothing_that_was_made_from_what_is_gone(store, command, monkeypatch):
    rollouts = only_name(store, "rollouts")
    rmtree = shutil.rmtree
    removed = []

    def removed_until_killed(folder):
        if removed:
            raise KeyboardInterrupt
        removed.append(folder)
        rmtree(folder)

    monkeypatch.setattr(shutil, "rmtree", removed_until_killed)
    assert command("prune --yes --key", rollouts).status == 130
    monkeypatch.undo()

    assert len(table_names(store)) == 3
    assert rollouts in table_names(store)
    assert "0 of 1 shards made" in command("verify").out  # of the one whose removal was broken off
    assert store.table("rollouts", {"weights": "w"}, 1).fill(shard) == 0


def test_nothing_goes_while_a_process_works_on_what_was_made_from_it(store, command):
    names = table_names(store)

    with locks.acquire(store.root / only_name(store, "verdicts") / "shard-00000.claim"):
        out = command("prune --kind rollouts --yes").out

    assert out.startswith("kept     rollouts/")
    assert f":{os.getpid()} is at work on it" in out
    assert table_names(store) == names


# ---- prune: what never goes


@pytest.mark.parametrize("place", [".", "home", "documents"])
@pytest.mark.parametrize("words", ["--older-than 0", "--kind runs", "--key a/b", "--key runs/one"])
def test_a_folder_that_is_no_store_is_refused(store, tmp_path, command, place, words):
    """One component too short, a home folder, documents two levels deep."""
    write_files(tmp_path, "home/photos/me.jpg", "home/.ssh/key", "documents/a/b/thesis.txt")
    files = contents(tmp_path)

    outcome = command(f"prune --yes {words}", root=tmp_path / place)

    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert f"error: {tmp_path / place} has no file {MARKER}, which marks a store; the next run that uses" in outcome.err
    assert contents(tmp_path) == files


def test_what_others_put_into_a_store_stays(store, tmp_path, command):
    """Other files, folders with the name of a table and other contents, links to tables, hidden ones."""
    elsewhere = Store(tmp_path / "elsewhere").table("rollouts", KEY, SHARDS)
    elsewhere.fill(shard)
    (store.root / "rollouts" / elsewhere.folder.name).symlink_to(elsewhere.folder)
    visible = ["notes.txt", "Old/x", "rollouts/notes"]
    hidden = ["rollouts/0123456789abcdef/mine.txt", "rollouts/.snapshot/x", ".git/.removed-0123456789ab/x"]
    write_files(store.root, *visible, *hidden)

    for name in ("rollouts/0123456789abcdef", elsewhere.name):
        assert command("prune --yes --key", name).status == 1
    line = f"error: {store.root} holds Old, notes.txt, rollouts, which a store does not; nothing is removed\n"
    assert command("prune --older-than 0 --yes") == (1, "", line)
    assert len(table_names(store)) == 4

    for name in visible:
        (store.root / name).unlink()
    (store.root / "Old").rmdir()
    assert command("prune --older-than 0 --yes").status == 0
    assert not table_names(store)
    assert all((store.root / name).exists() for name in hidden)
    assert not elsewhere.missing()


def test_a_store_is_marked_when_it_is_used_and_holds_nothing_else(store, command):
    (store.root / MARKER).unlink()
    write_files(store.root, "a.txt")
    filled_table(store, "rollouts", {"weights": "w"})
    assert not (store.root / MARKER).exists()

    (store.root / "a.txt").unlink()
    assert command("prune --older-than 0 --yes").status == 1
    filled_table(store, "rollouts", {"weights": "w"})
    assert command("prune --older-than 0").status == 0


def test_imports_go_only_when_they_are_asked_for(store, command):
    """No run can make them again."""
    table = filled_table(store, "imported", {"content": "abc"}, 100)
    assert "can't be made again" in command("list").out

    assert command("prune --older-than 90 --yes").out == "removed 0 tables, 0.0 MB\n"
    assert f"would go {table.name}" in command("prune --older-than 90 --kind imported").out
    assert command("prune --key imported --yes").out.startswith(f"removed  {table.name}")


@pytest.mark.parametrize("content", ["{", '{"content": "of another table"}', None])
def test_a_table_with_a_damaged_key_goes_only_by_its_full_name(store, command, content):
    table = filled_table(store, "imported", {"content": "abc"}, 100)
    (table.folder / "key.json").unlink()
    if content is not None:
        (table.folder / "key.json").write_text(content)
    os.utime(table.folder, (0, 0))
    assert "can't be made again  " in command("list").out

    assert command("prune --older-than 1 --kind imported --yes").out.startswith("removed 0 tables")
    outcome = command("prune --key imported --yes")
    assert outcome.status == 1
    assert outcome.err.endswith(f": prune --key {table.name}\n")

    assert command(f"prune --key {table.name} --yes").out.startswith(f"removed  {table.name}")
    assert not table.folder.exists()
