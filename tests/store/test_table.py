"""Tables: whole shards only, each made once, the same bytes whoever made them."""

import itertools
import os
import signal
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import contents, each_row, refused
from tests.processes import PROCESSES
from tests.store.conftest import SHARDS, fill_slowly, fill_until_killed, hold, logged, open_table, shard
from tests.sweep_tools import wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.progress import Progress
from topr_exp.store import Ragged
from topr_exp.store.shards import examine, read_row_count, read_shard, write_shard

FROM_STORE = (40, 0, "from the store")


class RecordedProgress(Progress):
    """What a table says of its progress."""

    def __init__(self):
        self.updates = []

    def update(self, *amounts):
        self.updates.append(amounts)


def test_fill_makes_all_shards_and_reads_back(tmp_path):
    table = open_table(tmp_path)
    progress = RecordedProgress()
    with refused(r"shard-00000.arrow \(shard 0 of 12\) was never made"):
        table.read()

    assert table.fill(shard, progress, lambda rows: rows.num_rows + 1) == 41 * SHARDS

    shards = [shard(index) for index in range(SHARDS)]
    assert progress.updates == [(40, 41, "")] * SHARDS
    assert table.read().equals(pa.concat_tables(shards))
    assert table.read(["text"]).column_names == ["text"]
    assert table.row_count() == 40 * SHARDS
    assert open_table(tmp_path).fill(shard) == 0


def test_a_table_of_very_many_shards_maps_none_of_them(tmp_path, monkeypatch):
    table = open_table(tmp_path)
    table.fill(shard)
    monkeypatch.setattr("topr_exp.store.table.MOST_MAPPED", SHARDS - 1)

    rows = table.read()

    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert rows.equals(pa.concat_tables([shard(index) for index in range(SHARDS)]))


def batch_sizes_of(path):
    file = pa.ipc.open_file(path)
    return [len(file.get_batch(index)) for index in range(file.num_record_batches)]


TOKENS = [[1, 2], [3], [], [4, 5, 6], [7], [8]]
PROMPT_TOKENS = [[1], [1, 1, 1], None, [1], [2], []]


# The most values of a column in a batch | rows of each batch
BATCHES = """
3 | [1, 2, 1, 2]
5 | [3, 3]
8 | [4, 2]
9 | [5, 1]
10 | [6]
"""


@each_row("most_values batch_sizes", BATCHES, literals=True)
def test_lists_beyond_the_range_of_their_offsets_are_in_several_batches_of_one_shard(
    tmp_path, monkeypatch, most_values, batch_sizes
):
    """Equal tables give the same bytes."""
    monkeypatch.setattr("topr_exp.store.shards.MOST_VALUES", most_values)
    prompt_tokens = pa.array(PROMPT_TOKENS, pa.list_(pa.int64()))
    rows = pa.table({"tokens": TOKENS, "prompt_tokens": prompt_tokens, "text": list("abcdef")})
    path = tmp_path / "shard-00000.arrow"
    path_of_chunks = tmp_path / "shard-00001.arrow"

    write_shard(path, rows)
    write_shard(path_of_chunks, pa.concat_tables([rows.slice(0, 4), rows.slice(4)]))

    assert batch_sizes_of(path) == batch_sizes
    assert examine(path).rows == read_row_count(path) == 6
    assert read_shard(path).equals(rows)
    assert path.read_bytes() == path_of_chunks.read_bytes()


def test_a_shard_of_more_values_than_32_bits_count_is_written(tmp_path):
    """Nulls, of which so many take no memory."""
    length = 2**30 + 5
    half = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), pa.nulls(length))
    rows = pa.table({"tokens": pa.chunked_array([half, half])})
    path = tmp_path / "shard-00000.arrow"

    write_shard(path, rows)

    assert examine(path).rows == 2
    assert Ragged(read_shard(path)["tokens"]).lengths().tolist() == [length, length]


def in_chunks(index):
    """The same rows as `shard` makes, in several chunks."""
    rows = shard(index)
    return pa.concat_tables([shard(1), rows.slice(0, 7), rows.slice(7)]).slice(40)


def test_fill_makes_what_is_missing_and_the_same_bytes_whatever_the_chunks(table):
    content = table.shard_path(5).read_bytes()
    table.shard_path(5).unlink()
    progress = RecordedProgress()
    assert table.missing() == [5]

    assert table.fill(in_chunks, progress) == 40

    assert table.shard_path(5).read_bytes() == content
    assert progress.updates == [FROM_STORE] * 5 + [(40, 40, "")] + [FROM_STORE] * 6


def test_a_shard_that_was_made_meanwhile_stays_as_it_is(tmp_path):
    """By a process that was not kept out, on a file system without locks say."""
    table = open_table(tmp_path, shards=1)
    inodes = []

    def overtaken(index):
        (table.folder / "shard-00000.claim").unlink()
        open_table(tmp_path, shards=1).fill(shard)
        inodes.append(table.shard_path(0).stat().st_ino)
        return shard(index)

    assert table.fill(overtaken) == 0
    assert inodes == [table.shard_path(0).stat().st_ino]


# ---- processes that are killed, and many at once


def test_after_a_kill_at_any_step_the_next_fill_leaves_the_files_of_an_undisturbed_one(tmp_path, start, capsys):
    """SIGKILL before each single file operation; then a fill leaves the same files as an undisturbed one."""
    undisturbed = open_table(tmp_path / "undisturbed", shards=1)
    undisturbed.fill(shard)
    step = 0
    exit_code = -signal.SIGKILL

    while exit_code:
        step += 1
        process = start(fill_until_killed, tmp_path / str(step), step)
        process.join()
        exit_code = process.exitcode
        assert exit_code in (0, -signal.SIGKILL)
        table = open_table(tmp_path / str(step), shards=1)
        progress = RecordedProgress()
        if not table.missing():
            assert table.read().equals(shard(0))
        table.fill(shard, progress)
        assert contents(table.folder) == contents(undisturbed.folder), f"killed at step {step}"
        assert not capsys.readouterr().err, "waited for a dead process"

    assert step > 10, "the operations were not seen"


def test_eight_processes_make_each_shard_once(tmp_path, table, start):
    log = tmp_path / "log"
    ready = PROCESSES.Barrier(8)
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
    assert contents(open_table(tmp_path).folder) == contents(table.folder)


def test_a_fill_says_which_process_it_waits_for(tmp_path, clock, capsys):
    table = open_table(tmp_path)
    table.folder.mkdir(parents=True)
    lock = locks.acquire(table.folder / "shard-00000.claim")
    clock.asleep = lock.__exit__

    assert table.fill(shard, RecordedProgress()) == 40 * SHARDS

    maker = f"{socket.gethostname()}:{os.getpid()}"
    assert capsys.readouterr().err == f"waiting for {maker}, which makes shard 0 of 12 of {table.name}\n"


def test_the_longer_a_process_waits_the_less_it_asks_the_file_server(tmp_path, clock):
    """Until what it waits for is made, which it then notices within a tenth of the wait."""
    table = open_table(tmp_path)
    table.folder.mkdir(parents=True)
    lock = locks.acquire(table.folder / "shard-00000.claim")
    times = []

    def look_again():
        times.append(clock.now)
        if clock.now > times[0] + 1000:
            lock.__exit__(None, None, None)

    clock.asleep = look_again

    assert table.fill(shard) == 40 * SHARDS

    pauses = [round(end - start, 6) for start, end in itertools.pairwise(times)]
    assert max(pauses[:5]) < 0.2
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5


# ---- list columns


LARGEST = 2**31 - 1


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32())], ids=str)
def test_rows_equal_the_lists(kind):
    """Of a column in chunks, one of which begins within its buffer and one of which is empty."""
    within_buffer = pa.array([[9], [1], []], kind).slice(1)
    chunk = pa.array([[LARGEST, -5, 7], [], [3]], kind)
    empty = chunk.slice(0, 0)
    column = pa.chunked_array([within_buffer, chunk, empty])

    ragged = Ragged(column)

    rows = [row.tolist() for row in ragged]
    assert rows == [[1], [], [LARGEST, -5, 7], [], [3]]
    assert ragged.lengths().tolist() == [1, 0, 3, 0, 1]
