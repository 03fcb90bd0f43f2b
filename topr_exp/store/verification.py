"""Verification of tables: the checksums of their shards, and whether they fit their sources."""

from topr_exp.store.source import Sharding
from topr_exp.store.table import MISSING, Table, source_table
from topr_exp.types import TOPRError


def verify_table(table: Table) -> int:
    """Compute the checksums of a table's shards and print the outcome; returns the number of faults, its key's too."""
    try:
        checked_table = table.with_sharding(intact_sharding(table))
        faults = [checked_table.fault(index, always=True) for index in range(table.shards)]
    except TOPRError as error:  # no permission
        print(f"NOT READ {error}")
        return 1
    damage = [table.error] if table.error else []
    for index, fault in enumerate(faults):
        if fault not in (None, MISSING):
            damage.append(f"{table.shard_path(index)}: {fault}")
    for line in damage:
        print(f"DAMAGED  {line}")
    if not damage:
        made_count = table.shards - faults.count(MISSING)
        print(f"sound    {table.name}: {made_count} of {table.shards} shards made, all checksums right")
    return len(damage)


def intact_sharding(table: Table) -> Sharding | None:
    """Return the rows and sources of a derived table's shards; None unless its source is intact in the same store."""
    source = source_table(table)
    if source is None:
        return None
    try:
        return source.snapshot().sharding
    except TOPRError:  # the source's own verification reports it
        return None
