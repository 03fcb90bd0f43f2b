"""What lies in a store: finding, describing and removing tables by what is on the disk alone."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.runtime import leases
from topr_exp.runtime.files import disk_errors, unique_name
from topr_exp.store.table import KEY_FILE, Store, Table
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

REMOVED = ".removed-"  # begins the name of a folder that is being deleted
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Entry:
    """One table's folder; `table` is None where key.json can't be read, and `error` says why."""

    folder: Path
    table: Table | None
    error: str = ""

    @property
    def name(self) -> str:
        """kind/hash"""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    def bytes(self) -> int:
        """Of all files in the folder."""
        total = 0
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # a temporary of a process at work
                total += path.stat().st_size
        return total

    def days_unused(self) -> float:
        """Days since a run last asked for this table (`fill` touches key.json)."""
        path = self.folder / KEY_FILE
        return max(0.0, time.time() - os.stat(path if path.exists() else self.folder).st_mtime) / DAY

    def columns(self) -> list[tuple[str, str]]:
        """Names and types, from the first shard that is there; none before one is."""
        import pyarrow as pa

        assert self.table is not None
        for path in map(self.table.arrow_file, range(self.table.shards)):
            if path.exists():
                with disk_errors(f"read {path}"), pa.memory_map(str(path)) as source:
                    return [(field.name, str(field.type)) for field in _open(source, path).schema]
        return []

    def makers(self) -> list[str]:
        """host:pid of the processes at work on it."""
        found = []
        for path in sorted(self.folder.glob(f"*{leases.SUFFIX}")):
            if owner := leases.living_owner(path):
                found.append(str(owner))
        return sorted(set(found))


def _open(source: pa.MemoryMappedFile, path: Path) -> pa.RecordBatchFileReader:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid as error:
        raise TOPRError(f"{path} is damaged ({error}); the next run makes it again") from None


def entries(store: Store) -> list[Entry]:
    """All tables, by kind and name; TOPRError when there is no store."""
    if not store.root.is_dir():
        raise TOPRError(f"{store.root} is no store: there is no such folder")
    found = []
    with disk_errors(f"read {store.root}"):
        for folder in sorted(store.root.glob("[a-z]*/*")):
            if not folder.is_dir() or folder.name.startswith("."):
                continue
            try:
                found.append(Entry(folder, store.open(folder)))
            except TOPRError as error:
                found.append(Entry(folder, None, str(error)))
    return found


def find(store: Store, text: str) -> Entry:
    """The one table whose kind/hash or hash begins with `text`; TOPRError when none or several do."""
    matching = [entry for entry in entries(store) if entry.name.startswith(text) or entry.folder.name.startswith(text)]
    exact = [entry for entry in matching if text in (entry.name, entry.folder.name)]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if not matching:
        raise TOPRError(f"no table in {store.root} is called {text}; `list` shows what there is")
    raise TOPRError(f"{text} could be {', '.join(entry.name for entry in matching)}")


def remove(entry: Entry) -> None:
    """Delete a table. It vanishes at once, by a rename, so that no run sees half of it."""
    grave = entry.folder.with_name(f"{REMOVED}{unique_name()}")
    with disk_errors(f"remove {entry.folder}"):
        entry.folder.rename(grave)
        shutil.rmtree(grave)


def sweep(store: Store) -> None:
    """Delete what a killed `remove` left."""
    for grave in store.root.glob(f"*/{REMOVED}*"):
        with disk_errors(f"remove {grave}"):
            shutil.rmtree(grave)
