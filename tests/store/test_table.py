"""Tables: whole shards only, each made once, the same bytes whoever made them."""

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

from tests.processes import PROCESSES
from tests.store.conftest import SHARDS, contents, fill_slowly, fill_until_killed, hold, logged, open_table, shard
from tests.sweep_tools import wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.progress import Progress
from topr_exp.store import Ragged, Store
from topr_exp.store.layout import canonical, key_hash
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
    assert table.row_count() == table.read().num_rows == 40 * SHARDS
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
def test_what_json_cannot_hold_is_our_mistake(value: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
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
        with pytest.raises(IndexError):
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
