"""Tables that are made of others: of all of their rows, of the version that is there, and of nothing that changes."""

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import read_schema

from tests.conftest import contents, names_in, refused
from tests.sampling.test_generation import policy, sample
from tests.store.conftest import open_table, shard
from topr_exp.grading import Grader
from topr_exp.grading.verdicts import grade_by_log, grade_completions
from topr_exp.runtime import locks
from topr_exp.store import Store
from topr_exp.store.catalog import days_unused
from topr_exp.store.completions import export_file
from topr_exp.store.pruning import remove_table
from topr_exp.store.shards import examine, write_shard
from topr_exp.store.source import Sharding
from topr_exp.training.logprobs import read_or_score


def grade(rollouts, store):
    return grade_completions(rollouts, Grader("gsm8k"), store)


def take_rewards(rollouts, store):
    rewards = pa.array(np.ones(len(rollouts)))
    return grade_by_log(rollouts.with_columns({"reward": rewards}), 0.5, store)


def score(rollouts, store):
    return read_or_score(policy(), rollouts, store, 8, "scoring")


every_derivation = pytest.mark.parametrize(
    "kind, derive", [("verdicts", grade), ("verdicts", take_rewards), ("logprobs", score)]
)


def only_table(root, kind):
    (folder,) = (root / kind).iterdir()
    return Store(root).open(folder)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


# ---- the rows of what is derived, and what it was made of


@every_derivation
@pytest.mark.parametrize("rows", [0, 5])
def test_a_derived_shard_of_other_rows_than_its_source_is_made_again(store, command, kind, derive, rows, capfd):
    """As a read of the source that failed left it: sealed under the right key, of 0 rows."""
    rollouts = sample(store.root)
    derive(rollouts, store)
    table = only_table(store.root, kind)
    sound_files = contents(table.folder)
    write_shard(table.shard_path(1), table.shard(1).slice(0, rows))

    assert f"DAMAGED  {table.shard_path(1)}: it has {rows} rows, not 6\n" in command("verify").out
    derive(rollouts, store)

    assert f"{table.shard_path(1)} is damaged (it has {rows} rows, not 6)" in capfd.readouterr().err
    assert contents(table.folder) == sound_files
    assert command("verify").status == 0


def test_rollouts_of_other_rows_than_their_prompts_ask_for_are_made_again(tmp_path):
    first = sample(tmp_path)
    table = only_table(tmp_path, "rollouts")
    write_shard(table.shard_path(1), table.shard(1).slice(0, 3))

    assert sample(tmp_path).table.equals(first.table)


@every_derivation
def test_what_was_made_of_another_version_of_its_source_is_made_again(store, command, kind, derive):
    """Shards of equal content stay; a store of before sources were noted is read as it is."""
    derive(sample(store.root), store)
    table = only_table(store.root, kind)
    source = only_table(store.root, "rollouts")
    files = contents(table.folder)
    assert examine(table.shard_path(0)).source == examine(source.shard_path(0)).digest

    changed_text = source.shard(1).set_column(3, "text", pa.array(["The answer is 5."] * 6))
    write_shard(source.shard_path(1), changed_text)
    outcome = command("verify")
    assert outcome.status == 1
    assert "it was made of another version of its source" in outcome.out
    export_file(only_table(store.root, "rollouts"), store.root / "of_old_verdicts.parquet")
    assert "verdict" not in read_schema(store.root / "of_old_verdicts.parquet").names
    derive(sample(store.root), store)
    changed_files = dict(contents(table.folder).items() - files.items())
    assert changed_files.keys() == {"shard-00001.arrow"}
    assert command("verify").status == 0

    write_shard(table.shard_path(2), table.shard(2).replace_schema_metadata(None))
    without_source = contents(table.folder)
    derive(sample(store.root), store)
    assert contents(table.folder) == without_source


def test_a_derived_table_that_is_only_read_has_its_sources_rows(store):
    """As `report` and `topr_exp.completions` read it, by its name."""
    source = store.table("rollouts", {}, 2)
    source.fill(shard)
    of_rows = store.table("verdicts", {"rollouts": source.name}, 2)
    of_groups = store.table("verdicts", {"rollouts": f"{source.name} in groups of 4"}, 2)
    for table in (of_rows, of_groups):
        table.fill(lambda index: shard(index).slice(0, 40 - index))

    with refused(r"shard-00001.arrow is damaged \(it has 39 rows, not 40\)"):
        store.open(of_rows.folder).read()
    assert len(store.open(of_groups.folder).read()) == 79
    source.shard_path(1).unlink()
    assert len(store.open(of_rows.folder).read()) == 79, "there is nothing to compare with"


# ---- a source that changes while it is read


CHANGES = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 100),
    "rewritten": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "replaced": lambda path: write_shard(path, shard(0)),
    "removed": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_stored_of_a_source_that_changed_while_it_was_read(store, tmp_path, change):
    undisturbed = Store(tmp_path / "undisturbed")
    score(sample(undisturbed.root), undisturbed)
    rollouts = sample(store.root)
    source = only_table(store.root, "rollouts")
    changing_policy = policy()
    passes = []

    def change_source(*arguments):
        passes.append(change)
        if len(passes) == 2:  # of the second shard
            CHANGES[change](source.shard_path(1))

    changing_policy.model.base_model.register_forward_hook(change_source)
    event = "was removed" if change == "removed" else "changed"
    with refused(f"{source.shard_path(1)} {event} while it was read; nothing made of it is kept"):
        read_or_score(changing_policy, rollouts, store, 8, "scoring")

    table = only_table(store.root, "logprobs")
    assert contents(table.folder).keys() == {"key.json", "shard-00000.arrow"}
    score(sample(store.root), store)
    assert contents(table.folder) == contents(only_table(undisturbed.root, "logprobs").folder)


class ChangingTable:
    """A table whose first shard changes whenever rows are read."""

    def __init__(self, table):
        self.table = table

    def __getattr__(self, name):
        return getattr(self.table, name)

    def shard(self, index):
        rows = self.table.shard(index)
        CHANGES["cut short"](self.table.shard_path(0))
        return rows


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_no_export_of_a_shard_that_changed_while_it_was_read(tmp_path, name):
    sample(tmp_path / "store")
    table = ChangingTable(only_table(tmp_path / "store", "rollouts"))

    with refused(f"{table.shard_path(0)} changed while it was read"):
        export_file(table, tmp_path / name)

    assert names_in(tmp_path) == {"store"}


# ---- prune beside a run


def test_prune_keeps_what_a_process_reads(store, command):
    rollouts = sample(store.root)
    name = only_table(store.root, "rollouts").name

    assert command("prune --older-than 0 --yes").out.splitlines() == [
        f"kept     {name}: a process reads {name}",
        "removed 0 tables, 0.0 MB",
    ]
    assert len(grade(rollouts, store).verdicts) == len(rollouts)

    del rollouts
    command("prune --older-than 0 --yes")
    assert not list((store.root / "rollouts").iterdir())


def test_what_is_derived_goes_only_with_what_nobody_reads(store, command):
    """A held table keeps what it was made of, too; a lock of a forked child's keeps nothing."""
    source = store.table("rollouts", {}, 1)
    source.fill(shard)
    derived = store.table("verdicts", {"rollouts": source.name}, 1, Sharding((40,)))
    derived.fill(shard)
    os.utime(derived.folder / "key.json", (0, 0))
    derived.hold()
    assert days_unused(derived) < 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"forked")  # with no lock any more
        signal.pause()
    os.read(reader, 1)

    try:
        prune = f"prune --key {source.name} --yes"
        assert f"kept     {source.name}: a process reads {derived.name}" in command(prune).out
        del derived
        assert "removed 2 tables" in command(prune).out
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_reader_waits_for_a_prune_and_makes_what_it_removed(tmp_path, clock):
    table = open_table(tmp_path, shards=1)
    table.fill(shard)
    pruning_lock = locks.lock_exclusively(table.folder / "key.json")

    def finish_pruning():
        remove_table(table)
        pruning_lock.__exit__()

    clock.asleep = finish_pruning
    table.hold()

    assert table.fill(shard) == 40
    assert locks.lock_exclusively(table.folder / "key.json") is None
