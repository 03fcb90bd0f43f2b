"""The tables of a store: finding, describing and removing them by what is on the disk alone."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors, unique_name
from topr_exp.store.survey import KEY_FILE, refuse_unmarked, survey
from topr_exp.store.table import Store, Table
from topr_exp.types import TOPRError

log = logging.getLogger(__name__)

REMOVED = ".removed-"  # begins the name of a folder that is being deleted
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Entry:
    """One table's folder; `table` is None where key.json can't be read, and `error` says why."""

    folder: Path
    table: Table | None
    error: str
    days_unused: float  # since a run last asked for this table (`fill` touches key.json), by the file system's clock

    @property
    def name(self) -> str:
        """kind/hash"""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    @property
    def imported(self) -> bool:
        """Whether it holds what was made elsewhere, which no run can make again."""
        return self.kind == "imported" or (self.table is not None and "content" in self.table.key)

    def bytes(self) -> int:
        """Of all files in the folder and below."""
        total = 0
        for parent, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):  # a temporary of a process at work
                    total += os.lstat(os.path.join(parent, name)).st_size
        return total

    def columns(self) -> list[tuple[str, str]]:
        """Names and types, from the first shard that is there; none before one is."""
        assert self.table is not None
        made = (index for index in range(self.table.shards) if self.table.checksum_file(index).exists())
        first = next(made, None)
        return [] if first is None else [(each.name, str(each.type)) for each in self.table.shard(first).schema]

    def makers(self) -> list[str]:
        """host:pid of the processes at work on it."""
        found = []
        for path in sorted(self.folder.glob(f"*{locks.SUFFIX}")):
            if owner := locks.living_owner(path):
                found.append(str(owner))
        return sorted(set(found))


def entries(store: Store, *, pruning: bool = False) -> list[Entry]:
    """All tables, by kind and name; TOPRError when there is no store, or none that this user may read.

    pruning: refuse a folder that holds more than a store's tables.
    """
    with disk_errors(f"read {store.root}"):
        try:
            found, now = survey(store.root), filesystem_now(store.root)
        except (FileNotFoundError, NotADirectoryError):
            raise TOPRError(f"{store.root} is no store: there is no such folder") from None
        if pruning:
            refuse_unmarked(store.root, found)
        for path in found.unseen:
            log.warning("cannot read %s: no permission; what is in it is left out", path)
        if found.unseen and not found.tables:
            raise TOPRError(f"this user may read no table of {store.root}")
        return [_entry(store, folder, error, now) for folder, error in found.tables.items()]


def filesystem_now(folder: Path) -> float:
    """The time on the file system's own clock (the server's, for NFS), in seconds: `folder` is touched for it.

    By this host's clock for who may not touch the folder, and removes nothing from it either.
    """
    try:
        os.utime(folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return time.time()
    return os.stat(folder).st_mtime


def _entry(store: Store, folder: Path, error: str, now: float) -> Entry:
    key_file = folder / KEY_FILE
    used = (key_file if key_file.exists() else folder).stat().st_mtime
    return Entry(folder, None if error else store.open(folder), error, max(0.0, now - used) / DAY)


def find(store: Store, text: str, among: list[Entry] | None = None) -> Entry:
    """The one table whose kind/hash or hash begins with `text`; TOPRError when none or several do."""
    known = entries(store) if among is None else among
    matching = [entry for entry in known if entry.name.startswith(text) or entry.folder.name.startswith(text)]
    exact = [entry for entry in matching if text in (entry.name, entry.folder.name)]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if not matching:
        raise TOPRError(f"no table in {store.root} is called {text}; `list` shows what there is")
    raise TOPRError(f"{text} could be {', '.join(entry.name for entry in matching)}")


def hanging(name: str, entries: Iterable[Entry]) -> list[Entry]:
    """The tables that were made from this one (the verdicts on its completions, their log-probabilities)."""
    found = [entry for entry in entries if entry.table is not None and name in parents(entry.table.key)]
    return found + [below for entry in found for below in hanging(entry.name, entries)]


def parents(key: Mapping[str, Any]) -> set[str]:
    """The tables that a key names; one that was read in a certain way has a name that goes on after its own."""
    return {value.split(" ", 1)[0] for value in key.values() if isinstance(value, str)}


def remove(entry: Entry) -> None:
    """Delete a table. It vanishes at once, by a rename, so that no run sees half of it."""
    grave = entry.folder.with_name(f"{REMOVED}{unique_name()}")
    with disk_errors(f"remove {entry.folder}"):
        entry.folder.rename(grave)
        shutil.rmtree(grave)


def sweep(store: Store) -> None:
    """Delete what a killed `remove` left."""
    for grave in store.root.glob(f"[a-z]*/{REMOVED}{'[0-9a-f]' * 12}"):
        with disk_errors(f"remove {grave}"):
            shutil.rmtree(grave)
