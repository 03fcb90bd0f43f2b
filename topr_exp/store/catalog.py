"""The tables of a store: finding, describing and removing them by what is on the disk alone."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors, unique_name
from topr_exp.store.keys import HASHES, KEY_FILE, KIND_NAMES, MARKER, foreign_entries
from topr_exp.store.table import SHARD, Store, Table
from topr_exp.types import TOPRError

log = logging.getLogger(__name__)

REMOVED = ".removed-"  # begins the name of a folder that is being deleted
DAY = 86_400


def tables(store: Store) -> list[Table]:
    """All tables, by kind and name, damaged ones too; TOPRError when there is no store, or none that may be read."""
    found, unseen = [], []
    with disk_errors(f"read {store.root}"):
        try:
            kinds = [path for path in sorted(store.root.iterdir()) if KIND_NAMES.fullmatch(path.name) and path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            raise TOPRError(f"{store.root} is no store: there is no such folder") from None
        for kind in kinds:
            try:
                found += [table for folder in sorted(kind.iterdir()) if (table := table_in(store, folder))]
            except PermissionError as error:
                unseen.append(error.filename)
    for path in unseen:
        log.warning("cannot read %s: no permission; what is in it is left out", path)
    if unseen and not found:
        raise TOPRError(f"this user may read no table of {store.root}")
    return found


def table_in(store: Store, folder: Path) -> Table | None:
    """The table in a folder, if it is one: its key has the hash that names it, or it holds a damaged table alone."""
    if not HASHES.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        return store.open(folder)
    except TOPRError as error:
        if isinstance(error.__cause__, PermissionError):
            raise error.__cause__ from None
        ours = all(path.name.startswith((KEY_FILE, SHARD)) for path in folder.iterdir())
        return Table(folder, {}, 0, str(error)) if ours else None


def refuse_no_store(root: Path) -> None:
    """TOPRError for a folder that no run has used as a store, or that holds more: `prune` removes nothing from it."""
    if not (root / MARKER).exists():
        raise TOPRError(
            f"{root} has no file {MARKER}, which marks a store; the next run that uses the store writes it, or "
            f"`touch {root / MARKER}`; nothing is removed before"
        )
    if others := foreign_entries(root):
        raise TOPRError(f"{root} holds {', '.join(others[:3])}, which a store does not; nothing is removed")


def find(store: Store, text: str, among: list[Table] | None = None) -> Table:
    """The one table whose kind/hash or hash begins with `text`; TOPRError when none or several do.

    among: these tables, damaged ones too; without, a damaged one is an error.
    """
    known = tables(store) if among is None else among
    matching = [table for table in known if table.name.startswith(text) or table.folder.name.startswith(text)]
    matching = [table for table in matching if text in (table.name, table.folder.name)] or matching
    if not matching:
        raise TOPRError(f"no table in {store.root} is called {text}; `list` shows what there is")
    if len(matching) > 1:
        raise TOPRError(f"{text} could be {', '.join(table.name for table in matching)}")
    if among is None and matching[0].error:
        raise TOPRError(matching[0].error)
    return matching[0]


def days_unused(table: Table) -> float:
    """Days since a run last asked for a table, which touches its key.json."""
    key_file = table.folder / KEY_FILE
    used = (key_file if key_file.exists() else table.folder).stat().st_mtime
    return max(0.0, time.time() + clock_offset(table.folder.parents[1]) - used) / DAY


@functools.cache
def clock_offset(root: Path) -> float:
    """Seconds that a file system's clock is ahead of this machine's; 0 where nothing may be written."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=root, prefix=".clock-") as file:
        return os.stat(file.name).st_mtime - time.time()
    return 0.0


def size(table: Table) -> int:
    """Bytes of all files in a table's folder and below."""
    total = 0
    for parent, _, names in os.walk(table.folder):
        for name in names:
            with suppress(FileNotFoundError):  # a temporary of a process at work
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def makers(table: Table) -> list[str]:
    """host:pid of the processes at work on a table."""
    owners = map(locks.living_owner, table.folder.glob(f"*{locks.SUFFIX}"))
    return sorted({str(owner) for owner in owners if owner})


def hanging(name: str, known: Iterable[Table]) -> list[Table]:
    """The tables that were made from this one (the verdicts on its completions, their log-probabilities)."""
    found = [table for table in known if name in parents(table.key)]
    return found + [below for table in found for below in hanging(table.name, known)]


def parents(key: Mapping[str, Any]) -> set[str]:
    """The tables that a key names; one that was read in a certain way has a name that goes on after its own."""
    return {value.split(" ", 1)[0] for value in key.values() if isinstance(value, str)}


def remove(table: Table) -> None:
    """Delete a table. It vanishes at once, by a rename, so that no run sees half of it."""
    grave = table.folder.with_name(f"{REMOVED}{unique_name()}")
    with disk_errors(f"remove {table.folder}"):
        table.folder.rename(grave)
        shutil.rmtree(grave)


def sweep(store: Store) -> None:
    """Delete what a killed `remove` left."""
    for grave in store.root.glob(f"[a-z]*/{REMOVED}{'[0-9a-f]' * 12}"):
        with disk_errors(f"remove {grave}"):
            shutil.rmtree(grave)
