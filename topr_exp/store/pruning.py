"""Pruning: removal of tables, each with all tables that derive from it, unless a process uses one of them."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors, folder_size
from topr_exp.runtime.terminal import readable_size
from topr_exp.store.catalog import days_unused, derived_tables, find_tables, matching_tables, tables_by_source, writers
from topr_exp.store.layout import KEY_FILE, MARKER, SHARD, foreign_entries
from topr_exp.store.table import Store, Table
from topr_exp.store.table_lines import IRREPLACEABLE, tables_and_size
from topr_exp.types import TOPRError


@dataclass(frozen=True)
class Selection:
    """Tables to prune: those that meet all conditions that are set."""

    kind: str | None = None
    min_days: int | None = None  # for which a table was not used
    key: str | None = None  # kind/hash, or a unique prefix

    def includes(self, table: Table) -> bool:
        """True for a table to prune; TOPRError for a damaged one that `key` doesn't name in full."""
        if table.error and self.key != table.name:
            if self.key is not None:
                raise TOPRError(f"{table.error}: prune --key {table.name}")
            return False
        if table.kind == "imported" and self.key is None and self.kind is None:  # no run can make it again
            return False
        if self.min_days is not None and days_unused(table) < self.min_days:
            return False
        return self.kind in (None, table.kind)


def prune_tables(store: Store, selection: Selection, *, really: bool) -> None:
    """Print the tables of a selection and those derived from them; really: remove them."""
    tables = find_tables(store)
    if not (store.root / MARKER).exists():
        raise TOPRError(
            f"{store.root} has no file {MARKER}, which marks a store; the next run that uses the store writes it, or "
            f"`touch {store.root / MARKER}`; nothing is removed before"
        )
    foreign = foreign_entries(store.root)
    if foreign:
        raise TOPRError(f"{store.root} holds {', '.join(foreign[:3])}, which a store does not; nothing is removed")
    bytes_by_name: dict[str, int] = {}
    selected_tables = [table for table in matching_tables(tables, selection.key) if selection.includes(table)]
    derived_by_name = tables_by_source(tables)
    for table in selected_tables:
        family = [table, *derived_tables(table.name, derived_by_name)]
        remaining = [member for member in family if member.name not in bytes_by_name]
        bytes_by_name |= prune_family(table, remaining, really=really)
    total = tables_and_size(bytes_by_name.values())
    if really:
        print(f"removed {total}")
    else:
        print(f"{total} would be removed; add --yes to do it")


def prune_family(table: Table, family: Sequence[Table], *, really: bool) -> dict[str, int]:
    """Print a table and those derived from it, unless one is in use; returns their bytes by name.

    Removes them in reverse: a table that is made again must not meet tables that derive from the old one.
    """
    active_writers = writers(family)
    if active_writers:
        print(f"kept     {table.name}: {active_writers} is at work on it or on what was made from it")
        return {}
    bytes_by_name = {}
    with ExitStack() as held_locks:
        table_in_use = lock_all(family, held_locks)
        if table_in_use:
            print(f"kept     {table.name}: a process reads {table_in_use}")
            return {}
        for member in reversed(family):
            bytes_by_name[member.name] = folder_size(member.folder)
            if really:
                remove_table(member)
            action = "removed " if really else "would go"
            note = IRREPLACEABLE if member.kind == "imported" else ""
            print(f"{action} {member.name}  {readable_size(bytes_by_name[member.name])}  {note}".rstrip())
    return bytes_by_name


def lock_all(tables: Sequence[Table], held_locks: ExitStack) -> str | None:
    """Lock tables for this process alone; returns the name of the first that another process reads, None if none is."""
    for table in tables:
        path = table.folder / KEY_FILE
        with disk_errors(f"lock {path}"):
            if not path.exists():  # damaged: nobody reads it
                continue
            lock = locks.lock_exclusively(path)
        if lock is None:
            return table.name
        held_locks.enter_context(lock)
    return None


def remove_table(table: Table) -> None:
    """Delete a table, its key last: a table that is removed by half is still one."""
    with disk_errors(f"remove {table.folder}"):
        for path in table.folder.glob(f"{SHARD}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(table.folder)
