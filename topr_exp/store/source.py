"""What a table was read from, so that what is made of it can be told from what was made of something else.

A shard that is mapped can change while it is read: cut short by another program, or made again by another run. Nothing
that was made of it meanwhile is stored, and what was stored of an earlier version of it is made again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa


class FileState(NamedTuple):
    """What a file's status says about whether it is the same as before."""

    device: int
    inode: int
    size: int
    changed: int  # nanoseconds


def file_state(path: Path) -> FileState:
    """The state of a file; OSError."""
    status = os.stat(path)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard's file as it was when its digest was found right."""

    path: Path
    state: FileState
    digest: str


@dataclass(frozen=True, slots=True)
class Source:
    """The files that a table's rows are views of."""

    files: tuple[ShardFile, ...]
    reading: locks.Reading | None = None  # keeps `prune` from them

    def parts(self) -> tuple[Source, ...]:
        """Each file alone."""
        return tuple(Source((file,), self.reading) for file in self.files)

    def check_unchanged(self, *, may_be_gone: bool = False) -> None:
        """Raise TOPRError where a file is another than the one that was read, or is gone.

        may_be_gone: what was pruned after it was mapped can still be read.
        """
        for file in self.files:
            with disk_errors(f"read {file.path}"):
                try:
                    state = file_state(file.path)
                except FileNotFoundError:
                    if may_be_gone:
                        continue
                    raise TOPRError(_refusal(file.path, "was removed")) from None
            if state != file.state:
                raise TOPRError(_refusal(file.path, "changed"))


def _refusal(path: Path, happened: str) -> str:
    return f"{path} {happened} while it was read; nothing made of it is kept, and the same command goes on from there"


@dataclass(frozen=True, slots=True)
class Derivation:
    """What a derived table's shards must have: so many rows each, and to be made of their sources as they are now."""

    rows: tuple[int, ...]
    sources: tuple[Source, ...] = ()  # one for each shard; or none, where the rows come from elsewhere

    def digest(self, index: int) -> str:
        """The digest of the one shard that a shard is made of; empty where there are several or none."""
        files = self.sources[index].files if self.sources else ()
        return files[0].digest if len(files) == 1 else ""

    def mismatch(self, index: int, rows: int, digest: str) -> str | None:
        """Why a whole shard does not belong to the table; None where it does. digest: of what it was made of."""
        if rows != self.rows[index]:
            return f"it has {rows} rows, not {self.rows[index]}"
        wanted = self.digest(index)
        if digest and wanted and digest != wanted:
            return "it was made of another version of its source"
        return None


class Snapshot(NamedTuple):
    """A whole table as it was read."""

    columns: pa.Table  # all rows, in the order of the shards
    bounds: list[int]  # the first row of each shard, then the number of rows
    source: Source
