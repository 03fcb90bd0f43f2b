"""A log as a table of the store, whose key is the log's content."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.data import DataConfig
from topr_exp.config.load import load
from topr_exp.imported.reader import RolloutReader, describe_columns, without_rewards
from topr_exp.imported.rows import Row
from topr_exp.imported.sources import HUB, NO_LOG, TABLE_KIND, content_digest, is_stored_log, source_files
from topr_exp.runtime import distributed
from topr_exp.runtime.files import see_new_names
from topr_exp.store import Store, Table
from topr_exp.store.completions import COLUMNS, TEXTS
from topr_exp.store.source import Sharding, Source
from topr_exp.types import ConfigError, TOPRError

READ_KEYS = ("data.columns", "data.skip_malformed")  # what reading a log needs of a run's settings
ROWS_PER_SHARD = 10_000
ROWS_PER_PART = 1_000  # of a shard
READER_VERSION = 3  # in the key of a stored log: raised where logs are read otherwise, so that they are read again
COLUMN_TYPES = dict.fromkeys(TEXTS, pa.string()) | {  # by role, in the order of a table's columns
    "tokens": pa.list_(pa.int32()),
    "logprobs": pa.list_(pa.float32()),
    "prompt_tokens": pa.list_(pa.int32()),
    "reward": pa.float64(),
}


@dataclass(frozen=True)
class ImportedLog:
    """A log of completions in the store, before a tokenizer saw it."""

    name: str  # of the store's table
    columns: pa.Table
    description: str  # of the columns that were read
    source: Source


def open_log(data: DataConfig, store: Store) -> ImportedLog:
    """Open the rows of `data.completions`: a store's table, or a file, a folder or hub:NAME, which is imported.

    Raises TOPRError (one line) for a table that is not there, and for the first row that is malformed.
    """
    source = str(data.completions)
    name = source
    description = ""
    if source_files(source) or source.startswith(HUB) or Path(source).is_dir():
        if distributed.is_main_process():  # it takes some 30 bytes a token; the table is mapped
            reader = RolloutReader(source, data.columns, data.skip_malformed)
            table, _ = import_rows(store, reader)
            name = table.name
            description = describe_columns(reader)
        name, description = distributed.broadcast((name, description))
        see_new_names(store.root / TABLE_KIND)
    elif not is_stored_log(source, store.root):
        raise TOPRError(f"data.completions={source}: {NO_LOG.format(store.root)}")
    table = store.open(store.root / name)
    table.hold()
    snapshot = table.snapshot()
    columns = snapshot.columns
    if data.reward == "given" and "reward" not in columns.column_names:
        raise without_rewards(data, description)
    return ImportedLog(table.name, columns, description, snapshot.source)


def open_reader(source: str, settings: Sequence[str]) -> RolloutReader:
    """Return a reader of a log by settings as a run has them; ConfigError for any that reading does not need."""
    for text in settings:
        key = text.lstrip("+").partition("=")[0]
        is_read = any(key == read_key or key.startswith(f"{read_key}.") for read_key in READ_KEYS)
        if not is_read:
            raise ConfigError(f"{text}: an import does not read {key}; it reads {', '.join(READ_KEYS)}")
    composer = Composer(parse_arguments(list(settings)))
    _, composed = next(composer.jobs())
    data = load(composed).data
    return RolloutReader(source, data.columns, data.skip_malformed)


def import_rows(store: Store, reader: RolloutReader) -> tuple[Table, int]:
    """Store a reader's completions as a table whose key is their content; also return the number of new rows.

    Nothing is written when a row is malformed.
    """
    shards = read_shards(reader)
    shard_sizes = tuple(map(len, shards))
    key = {
        "content": content_digest(reader.source),
        "reading": READER_VERSION,
        "rows": sum(shard_sizes),
        "per_shard": ROWS_PER_SHARD,
        "read_as": sorted(f"{role}={name}" for role, name in reader.names.by_role.items()),
    }
    table = store.table(TABLE_KIND, key, len(shards), Sharding(shard_sizes))
    return table, table.fill(shards.__getitem__)


def read_shards(reader: RolloutReader) -> list[pa.Table]:
    """Read a log into tables of ROWS_PER_SHARD, without columns of prompts that no row has."""
    parts = read_parts(iter(reader))
    shards = []
    while parts_of_shard := list(islice(parts, ROWS_PER_SHARD // ROWS_PER_PART)):
        shards.append(pa.concat_tables(parts_of_shard))
    for name in ("prompt", "messages"):
        if all(shard[name].null_count == len(shard) for shard in shards):
            shards = [shard.drop_columns([name]) for shard in shards]
    return shards


def read_parts(rows: Iterator[Row]) -> Iterator[pa.Table]:
    """Tabulate some rows at a time: a token and its log-probability take 68 bytes as Python's numbers, 8 in a table."""
    while rows_of_part := list(islice(rows, ROWS_PER_PART)):
        yield as_table(rows_of_part)


def as_table(rows: Sequence[Row]) -> pa.Table:
    """Tabulate checked rows in the columns that are stored: all texts, and what else the rows have."""
    columns = {}
    for role, column_type in COLUMN_TYPES.items():
        if role in TEXTS or role in rows[0]:  # what is no text is in all rows or in none
            values = [row.get(role) for row in rows]
            columns[COLUMNS[role]] = pa.array(values, column_type)
    return pa.table(columns)
