"""Tables that are made of others: of all of their rows, of the version that is there, and of nothing that changes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import become_ordinary, refused
from tests.sampling.test_generation import CONFIG, QUESTIONS, policy
from tests.store.conftest import contents, open_table, shard
from topr_exp.config.data import Grading
from topr_exp.grading.verdicts import grade_by_log, grade_completions
from topr_exp.runtime import locks
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.generation import sample_completions
from topr_exp.sampling.hf import HFSampler
from topr_exp.store import Store, Table, completions
from topr_exp.store import table as table_module
from topr_exp.store.__main__ import main
from topr_exp.store.pruning import remove_table
from topr_exp.store.shards import examine, read_rows, write_shard
from topr_exp.store.source import Derivation
from topr_exp.training.logprobs import score_completions

DERIVED: dict[str, Callable[[Completions, Store], Any]] = {
    "verdicts": lambda rollouts, store: grade_completions(rollouts, Grading("gsm8k"), store),
    "given": lambda rollouts, store: grade_by_log(with_rewards(rollouts), 0.5, store),
    "logprobs": lambda rollouts, store: score_completions(policy(), rollouts, store, 8, "scoring"),
}


def with_rewards(rollouts: Completions) -> Completions:
    return rollouts.with_columns({"reward": pa.array(np.ones(len(rollouts)))})


def sample(store: Store) -> Completions:
    return sample_completions(HFSampler(CONFIG), policy(), QUESTIONS, 3, seed=0, store=store)


def only_table(root: Path, kind: str) -> Table:
    (folder,) = (root / kind).iterdir()
    return Store(root).open(folder)


def kind_of(name: str) -> str:
    return "verdicts" if name == "given" else name


# ---- a read that fails


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_missing_is_the_only_reason_for_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    table = open_table(tmp_path)
    table.fill(shard)
    monkeypatch.setattr(os, "open", failing_open(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        read_rows(table.shard_file(0))
    with refused(f"cannot read {table.shard_file(0)}: {os.strerror(number)}"):
        table.row_count()
    monkeypatch.undo()
    table.shard_file(0).unlink()
    assert (read_rows(table.shard_file(0)), table.row_count()) == (0, 40 * 11)


def failing_open(number: int) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


# ---- the rows of what is derived, and what it was made of


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_shard_of_other_rows_than_its_source_is_made_again(tmp_path: Path, name: str, capfd: Any) -> None:
    """As a read of the source that failed left it: sealed under the right key, of 0 rows."""
    store = Store(tmp_path)
    rollouts = sample(store)
    DERIVED[name](rollouts, store)
    table = only_table(tmp_path, kind_of(name))
    whole = contents(table.folder)
    for rows in (0, 5):
        write_shard(table.shard_file(1), table.shard(1).slice(0, rows))
        assert main(["--root", str(tmp_path), "verify"]) == 1
        assert f"DAMAGED  {table.shard_file(1)}: it has {rows} rows, not 6\n" in capfd.readouterr().out
        DERIVED[name](rollouts, store)
        assert f"{table.shard_file(1)} is damaged (it has {rows} rows, not 6)" in capfd.readouterr().err
        assert contents(table.folder) == whole
    assert main(["--root", str(tmp_path), "verify"]) == 0


def test_rollouts_of_other_rows_than_their_prompts_ask_for_are_made_again(tmp_path: Path) -> None:
    first = sample(Store(tmp_path))
    table = only_table(tmp_path, "rollouts")
    write_shard(table.shard_file(1), table.shard(1).slice(0, 3))
    assert sample(Store(tmp_path)).table.equals(first.table)


@pytest.mark.parametrize("name", DERIVED)
def test_what_was_made_of_another_version_of_its_source_is_made_again(tmp_path: Path, name: str, capfd: Any) -> None:
    """Shards of equal content stay; a store of before sources were noted is read as it is."""
    store = Store(tmp_path)
    rollouts = sample(store)
    DERIVED[name](rollouts, store)
    table, source = only_table(tmp_path, kind_of(name)), only_table(tmp_path, "rollouts")
    before = contents(table.folder)
    seal = examine(source.shard_file(0))
    assert examine(table.shard_file(0)).source == seal.digest != examine(table.shard_file(1)).source
    other = source.shard(1).set_column(3, "text", pa.array(["The answer is 5."] * 6))
    write_shard(source.shard_file(1), other)
    assert main(["--root", str(tmp_path), "verify"]) == 1
    assert "it was made of another version of its source" in capfd.readouterr().out
    DERIVED[name](sample(store), store)
    after = contents(table.folder)
    assert [file for file in before if after[file] != before[file]] == ["shard-00001.arrow"]
    assert main(["--root", str(tmp_path), "verify"]) == 0
    unmarked = table.shard(2).replace_schema_metadata(None)
    write_shard(table.shard_file(2), unmarked)
    mark = contents(table.folder)
    DERIVED[name](sample(store), store)
    assert contents(table.folder) == mark


# ---- a source that changes while it is read


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 100),
    "rewritten": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "replaced": lambda path: write_shard(path, shard(0)),
    "removed": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", DERIVED)
def test_nothing_is_stored_of_a_source_that_changed_while_it_was_read(tmp_path, monkeypatch, name, change):
    calm = Store(tmp_path / "calm")
    DERIVED[name](sample(calm), calm)
    store = Store(tmp_path / "store")
    rollouts, source = sample(store), only_table(tmp_path / "store", "rollouts")
    make_shard = Table._make_shard

    def changing(self: Table, index: int, make: Callable[[int], pa.Table]) -> pa.Table | None:
        def changed(made_index: int) -> pa.Table:
            made = make(made_index)
            if made_index == 1:
                CHANGES[change](source.shard_file(1))
            return made

        return make_shard(self, index, changed)

    monkeypatch.setattr(Table, "_make_shard", changing)
    happened = "was removed" if change == "removed" else "changed"
    with refused(f"{source.shard_file(1)} {happened} while it was read; nothing made of it is kept"):
        DERIVED[name](rollouts, store)
    monkeypatch.undo()
    table = only_table(tmp_path / "store", kind_of(name))
    assert {path.name for path in table.folder.iterdir()} == {"key.json", "shard-00000.arrow"}
    DERIVED[name](sample(store), store)
    expected = contents(only_table(tmp_path / "calm", kind_of(name)).folder)
    assert contents(table.folder) == expected


# ---- prune beside a run


@pytest.mark.parametrize("moment", ["before it is read", "while it is read"])
def test_prune_keeps_what_a_process_reads(tmp_path, monkeypatch, capfd, moment):
    """Another process's `prune --kind rollouts --yes`, at the moments at which it gave verdicts of no rows."""
    prune = lambda: main(["--root", str(tmp_path), "prune", "--older-than", "0", "--yes"])
    store, snapshot = Store(tmp_path), Table.snapshot

    def pruned(self: Table) -> Any:
        prune()
        return snapshot(self)

    with monkeypatch.context() as patch:
        if moment == "before it is read":
            patch.setattr(Table, "snapshot", pruned)
        rollouts = sample(store)
    prune()
    name = only_table(tmp_path, "rollouts").name
    assert set(capfd.readouterr().out.splitlines()) == {
        f"kept     {name}: a process reads {name}",
        "removed 0 tables, 0.0 MB",
    }
    assert len(grade_completions(rollouts, Grading("gsm8k"), store).verdicts) == len(rollouts)
    del rollouts
    prune()
    assert not list((tmp_path / "rollouts").iterdir())


def test_what_is_derived_goes_only_with_what_nobody_reads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A held table keeps what it was made of, too; a lock of a forked child's keeps nothing."""
    source = Store(tmp_path).table("rollouts", {}, 1)
    source.fill(shard)
    derived = Store(tmp_path).table("verdicts", {"rollouts": source.name}, 1, Derivation((40,)))
    derived.fill(shard)
    source.fill(shard)
    derived.hold()
    if (child := os.fork()) == 0:
        os.close(0)
        import time

        time.sleep(60)
    prune = ["--root", str(tmp_path), "prune", "--key", source.name, "--yes"]
    main(prune)
    assert f"kept     {source.name}: a process reads {derived.name}" in capfd.readouterr().out
    del derived
    main(prune)
    assert "removed 2 tables" in capfd.readouterr().out
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_a_reader_waits_for_a_prune_and_makes_what_it_removed(tmp_path: Path, monkeypatch: Any) -> None:
    table = open_table(tmp_path, shards=1)
    table.fill(shard)
    alone = locks.exclude(table.folder / "key.json")

    def removed(seconds: float) -> None:
        assert table._reading is None
        remove_table(table)
        alone.__exit__()

    monkeypatch.setattr(table_module.time, "sleep", removed)
    table.hold()
    assert table.fill(shard) == 40
    assert locks.exclude(table.folder / "key.json") is None


def test_a_store_that_may_only_be_read_is_held_all_the_same(ordinary_user: Path) -> None:
    table = open_table(ordinary_user, shards=1)
    table.fill(shard)
    become_ordinary(ordinary_user)
    table.hold()
    assert locks.exclude(table.folder / "key.json") is None


# ---- who reads without deriving anything


def test_a_derived_table_that_is_only_read_has_its_source_s_rows(tmp_path: Path) -> None:
    """As `report` and `topr_exp.completions` read it, by its name."""
    source = Store(tmp_path).table("rollouts", {}, 2)
    source.fill(shard)
    derived = Store(tmp_path).table("verdicts", {"rollouts": source.name}, 2)
    some_rows = Store(tmp_path).table("verdicts", {"rollouts": f"{source.name} in groups of 4"}, 2)
    for table in (derived, some_rows):
        table.fill(lambda index: shard(index).slice(0, 40 - index))
    with refused(r"shard-00001.arrow is damaged \(it has 39 rows, not 40\)"):
        Store(tmp_path).open(derived.folder).read()
    assert len(Store(tmp_path).open(some_rows.folder).read()) == 79
    source.shard_file(1).unlink()
    assert len(Store(tmp_path).open(derived.folder).read()) == 79, "there is nothing to compare with"


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("change", ["cut short", "rewritten", "replaced"])
def test_no_export_of_a_shard_that_changed_while_it_was_read(tmp_path, monkeypatch, capfd, change, target):
    rollouts = sample(Store(tmp_path / "store"))
    table = only_table(tmp_path / "store", "rollouts")
    assert rollouts.stored.shards == 3
    columns = completions.public_columns

    def changing(read_table: Table, rows: pa.Table, *, with_prompts: bool) -> pa.Table:
        CHANGES[change](table.shard_file(0))
        return columns(read_table, rows, with_prompts=with_prompts)

    monkeypatch.setattr(completions, "public_columns", changing)
    assert main(["--root", str(tmp_path / "store"), "export", table.name, str(tmp_path / target)]) == 1
    assert f"error: {table.shard_file(0)} changed while it was read" in capfd.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"store"}
