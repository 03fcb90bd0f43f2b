"""Sources of tables: the files that a table was read from, in the state in which they were read.

A shard that is mapped can change while it is read: cut short by another program, or made again by another run. Nothing
that was made of it meanwhile is stored, and tables that were made of an earlier version of it are made again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.store.shards import Contents, examine
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa


class FileState(NamedTuple):
    """Status of a file that differs if the file does."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds


def file_state(path: Path) -> FileState:
    """Read the state of a file; OSError."""
    status = os.stat(path)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard's file as it was when this process verified its digest."""

    path: Path
    state: FileState
    contents: Contents


_verified: dict[Path, ShardFile] = {}


def verify_file(path: Path, *, always: bool) -> ShardFile | str:
    """Return the file of a complete shard as it is now, or its damage; OSError.

    always: compute its digest even if this process verified it before.
    """
    state = file_state(path)
    file = _verified.get(path)
    if not always and file is not None and file.state == state:
        return file
    _verified.pop(path, None)
    contents = examine(path)
    if isinstance(contents, str):
        return contents
    _verified[path] = ShardFile(path, state, contents)
    return _verified[path]


@dataclass(frozen=True, slots=True)
class Source:
    """The files that a table's rows are views of."""

    files: tuple[ShardFile, ...]
    shared_lock: locks.FileLock | None = None  # keeps `prune` from them

    def check_unchanged(self, *, may_be_gone: bool = False) -> None:
        """Raise TOPRError if a file was replaced or removed since it was read.

        may_be_gone: a file that was pruned after it was mapped can still be read.
        """
        for file in self.files:
            with disk_errors(f"read {file.path}"):
                try:
                    state = file_state(file.path)
                except FileNotFoundError:
                    if may_be_gone:
                        continue
                    raise _source_error(file.path, "was removed") from None
            if state != file.state:
                raise _source_error(file.path, "changed")


def _source_error(path: Path, event: str) -> TOPRError:
    return TOPRError(
        f"{path} {event} while it was read; nothing made of it is kept, and the same command goes on from there"
    )


@dataclass(frozen=True, slots=True)
class Sharding:
    """Division of a table's rows among its shards, and the files that each shard's rows are from."""

    sizes: tuple[int, ...]  # number of rows of each shard
    sources: tuple[Source, ...] = ()  # of each shard; () if the rows come from elsewhere

    def rows(self, index: int) -> range:
        """Return the rows of a shard, by their place in the table."""
        start = sum(self.sizes[:index])
        return range(start, start + self.sizes[index])

    def source_digest(self, index: int) -> str:
        """Return the digest of the one shard that a shard is made of; "" if it is made of several or none."""
        files = self.sources[index].files if self.sources else ()
        if len(files) == 1:
            return files[0].contents.digest
        return ""

    def mismatch(self, index: int, contents: Contents) -> str | None:
        """Say why an intact shard does not belong to the table; None if it does."""
        if contents.rows != self.sizes[index]:
            return f"it has {contents.rows} rows, not {self.sizes[index]}"
        source_digest = self.source_digest(index)
        if contents.source and source_digest and contents.source != source_digest:
            return "it was made of another version of its source"
        return None


class Snapshot(NamedTuple):
    """A complete table as it was read."""

    columns: pa.Table  # all rows, in the order of the shards
    source: Source  # all files
    sharding: Sharding  # what tables have that are made of it shard by shard
