"""Tables of a store as its folders show them: which there are, how large, how long unused, which derive from which."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.terminal import warn
from topr_exp.store.layout import HASH, KEY_FILE, KIND, SHARD
from topr_exp.store.table import Store, Table
from topr_exp.types import TOPRError

SECONDS_PER_DAY = 86_400


def find_tables(store: Store) -> list[Table]:
    """Return all tables by name, damaged ones too; TOPRError without a store, or if none may be read."""
    if not store.root.is_dir():
        raise TOPRError(f"{store.root} is no store: there is no such folder")
    with disk_errors(f"read {store.root}"):
        kind_folders = [path for path in sorted(store.root.iterdir()) if KIND.fullmatch(path.name) and path.is_dir()]
    folders: list[Path] = []
    tables = []
    refusals = []
    for kind_folder in kind_folders:
        try:
            folders += sorted(kind_folder.iterdir())
        except PermissionError as error:
            refusals.append(error)
    for folder in folders:
        try:
            table = table_in(store, folder)
        except PermissionError as error:
            refusals.append(error)
        else:
            if table is not None:
                tables.append(table)
    for refusal in refusals:
        warn(f"cannot read {refusal.filename}: Permission denied; what is in it is left out")
    if refusals and not tables:
        raise TOPRError(f"this user may read no table of {store.root}")
    return tables


def table_in(store: Store, folder: Path) -> Table | None:
    """Return the table in a folder, a damaged one with its `error`; None for any other folder. PermissionError."""
    if not HASH.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        return store.open(folder)
    except TOPRError as error:
        if isinstance(error.__cause__, PermissionError):
            raise error.__cause__ from None
        names = [path.name for path in folder.iterdir()]
        is_damaged_table = names and all(name.startswith((KEY_FILE, SHARD)) for name in names)
        if is_damaged_table:
            return Table(store, folder, {}, 0, error=str(error))
        return None


def matching_tables(tables: list[Table], prefix: str | None) -> list[Table]:
    """Return the one table whose kind/hash or hash begins with `prefix`, or (None) all; TOPRError unless it is one."""
    if prefix is None:
        return tables
    matches = [table for table in tables if prefix in (table.name, table.folder.name)]
    if not matches:
        matches = [table for table in tables if table.name.startswith(prefix) or table.folder.name.startswith(prefix)]
    if not matches:
        raise TOPRError(f"no table is called {prefix}; `list` shows what there is")
    if len(matches) > 1:
        raise TOPRError(f"{prefix} could be {', '.join(table.name for table in matches)}")
    return matches


def find_table(store: Store, prefix: str) -> Table:
    """Return the one table whose name begins with `prefix`; TOPRError if it is damaged, too."""
    (table,) = matching_tables(find_tables(store), prefix)
    if table.error:
        raise TOPRError(table.error)
    return table


def tables_by_source(tables: Iterable[Table]) -> dict[str, list[Table]]:
    """Map names of tables to the tables that derive from them (verdicts on completions, their log-probabilities).

    Their keys name the source, where a note on how its rows were selected may follow.
    """
    derived_by_name = defaultdict(list)
    for table in tables:
        names = {value.split(" ", 1)[0] for value in table.key.values() if isinstance(value, str)}
        for name in names:
            derived_by_name[name].append(table)
    return derived_by_name


def derived_tables(name: str, derived_by_name: Mapping[str, list[Table]]) -> list[Table]:
    """Return the tables that derive from a table, directly or not; derived_by_name: from `tables_by_source`."""
    derived = list(derived_by_name.get(name, ()))
    for table in list(derived):
        derived += derived_tables(table.name, derived_by_name)
    return derived


def days_unused(table: Table) -> float:
    """Return the days since a run last used a table, which touches its key.json."""
    path = table.folder / KEY_FILE
    if not path.exists():
        path = table.folder
    return max(0.0, time.time() - path.stat().st_mtime) / SECONDS_PER_DAY


def writers(tables: Sequence[Table]) -> str:
    """Return host:pid of the processes that make shards of tables; "" if there are none."""
    names = set()
    for table in tables:
        for path in table.folder.glob(f"{SHARD}*{locks.SUFFIX}"):
            owner = locks.living_owner(path)
            if owner is not None:
                names.add(str(owner))
    return ", ".join(sorted(names))
