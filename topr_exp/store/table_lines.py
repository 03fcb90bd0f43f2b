"""Text of tables for `list`: a line for each, with rows, shards, size, age and the plain values of its key."""

from collections.abc import Collection, Sequence

from topr_exp.runtime.files import folder_size
from topr_exp.runtime.terminal import align_columns, plural, readable_size, warn
from topr_exp.store.catalog import days_unused
from topr_exp.store.table import Table
from topr_exp.types import TOPRError

HEADER = ("TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY")
IRREPLACEABLE = "can't be made again  "
MAX_VALUE_LENGTH = 14
MAX_KEY_LENGTH = 100


def print_tables(tables: Sequence[Table]) -> None:
    """Print a line for each table, numbers to the right."""
    if tables:
        rows = [HEADER, *map(table_cells, tables)]
        print("\n".join(align_columns(rows, numeric=range(1, len(HEADER) - 1))))


def table_cells(table: Table) -> tuple[str, ...]:
    """Format a table as cells of `HEADER`."""
    made_count = sum(table.shard_path(index).exists() for index in range(table.shards))  # intact or not
    rows = count_rows(table)
    shards = str(made_count) if made_count >= table.shards else f"{made_count} of {table.shards}"
    if table.error:
        rows = shards = "?"
    values = []
    for name, value in table.key.items():
        if not isinstance(value, dict | list):
            values.append(f"{name}={cut(str(value), MAX_VALUE_LENGTH)}")
    key = table.error or cut(" ".join(values), MAX_KEY_LENGTH)
    if table.kind == "imported":
        key = IRREPLACEABLE + key
    return table.name, rows, shards, readable_size(folder_size(table.folder)), f"{days_unused(table):.0f} d", key


def count_rows(table: Table) -> str:
    try:
        return f"{table.row_count():,}"
    except TOPRError as error:
        warn(str(error))
        return "?"


def tables_and_size(sizes: Collection[int]) -> str:
    """Format the number of tables with these sizes in bytes, and their sum."""
    return f"{plural(len(sizes), 'table')}, {readable_size(sum(sizes))}"


def cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: width - 1] + "…"
