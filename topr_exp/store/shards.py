"""The shards of a table on disk: files that are whole or absent, known by their checksums, read by mapping them.

shard-00000.arrow is an Arrow IPC file, uncompressed; shard-00000.json has its checksum, rows and bytes and is written
last. A shard counts when both files are there and agree.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.files import digest, disk_errors, file_digest, write_whole
from topr_exp.store.survey import SHARD
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = "missing"  # the one fault of a shard that is no damage

_verified: dict[str, tuple[object, ...]] = {}  # shard file -> its status when its checksum was found right


class Shards:
    """A folder of `shards` shards; each checksum is computed once a process, when the shard is first read."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder, self.shards = folder, shards

    def arrow_file(self, index: int) -> Path:
        return self.folder / f"{stem(index)}.arrow"

    def checksum_file(self, index: int) -> Path:
        return self.folder / f"{stem(index)}.json"

    def missing(self) -> list[int]:
        """The shards that are absent or damaged."""
        return [index for index in range(self.shards) if self.fault(index) is not None]

    def complete(self) -> bool:
        """Whether every shard is whole."""
        return all(self.fault(index) is None for index in range(self.shards))

    def rows(self) -> int:
        """Number of rows of the shards that are there, by their checksum files."""
        return sum(self.shard_sizes(index)[0] for index in range(self.shards))

    def shard_sizes(self, index: int) -> tuple[int, int]:
        """Rows and bytes of a shard by its checksum file; (0, 0) when there is none or it can't be read."""
        try:
            stored = _read_checksum(self.checksum_file(index))
        except (OSError, ValueError):
            return 0, 0
        return stored["rows"], stored["bytes"]

    def known_digest(self, index: int) -> str | None:
        """The checksum that a shard has or had; None where it was never made, or that is lost as well."""
        try:
            return str(_read_checksum(self.checksum_file(index))["blake2b"])
        except (OSError, ValueError):
            return None

    def fault(self, index: int, *, always: bool = False) -> str | None:
        """What is wrong with a shard: None when it is whole, MISSING, or the damage in words.

        Checksum and content are checked where this process has not yet done so for this file; `always`: in any case.
        """
        arrow = self.arrow_file(index)
        with disk_errors(f"read {arrow}"):
            try:
                expected = _read_checksum(self.checksum_file(index))
                status = os.stat(arrow)
            except FileNotFoundError:
                return MISSING
            except ValueError as error:
                return str(error)
        if status.st_size != expected["bytes"]:
            return f"{status.st_size} bytes instead of {expected['bytes']}"
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, expected["blake2b"])
        if always or _verified.get(str(arrow)) != state:
            with disk_errors(f"read {arrow}"):
                if file_digest(arrow) != expected["blake2b"]:
                    _verified.pop(str(arrow), None)
                    return "its checksum is wrong"
            if invalid := _invalid(arrow):
                return invalid
            _verified[str(arrow)] = state
        return None

    def shard(self, index: int) -> pa.Table:
        """One shard, memory-mapped: its columns are views of the file. TOPRError when it is missing or damaged."""
        if not 0 <= index < self.shards:
            raise IndexError(f"shard {index} of {self.shards}")
        fault = self.fault(index)
        if fault == MISSING:
            raise TOPRError(f"{self.arrow_file(index)} (shard {index} of {self.shards}) was never made")
        if fault is not None:
            raise TOPRError(f"{self.arrow_file(index)} is damaged ({fault}); the next run makes it again")
        with disk_errors(f"read {self.arrow_file(index)}"):
            return _map(self.arrow_file(index))

    def write_shard(self, index: int, table: pa.Table) -> bool:
        """Write a shard; False when another process took this one for dead and swept its temporary files."""
        data = _serialise(table)
        checksum = {"rows": table.num_rows, "bytes": data.nbytes, "blake2b": digest(data)}
        with disk_errors(f"write {self.arrow_file(index)}", self._what_is_kept):
            try:
                self.checksum_file(index).unlink(missing_ok=True)
                write_whole(self.arrow_file(index), data)
                write_whole(self.checksum_file(index), (json.dumps(checksum) + "\n").encode())
            except FileNotFoundError:
                return False
        return True

    def _what_is_kept(self) -> str:
        done = self.shards - len(self.missing())
        return f"; {done} of {self.shards} shards are kept and the same command goes on from there"


def stem(index: int) -> str:
    """How the names of a shard's files begin."""
    return f"{SHARD}{index:05d}"


def _map(path: Path) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _invalid(path: Path) -> str | None:
    """What makes a file no table; a right checksum doesn't say that the offsets in it stay within it."""
    import pyarrow as pa

    try:
        table = _map(path)
        table.validate(full=True)
        _ = table.column_names  # decoded only now
    except (pa.ArrowException, OSError, UnicodeError) as error:  # its bytes were just read: OSError is of the format
        return f"it is no valid table: {' '.join(str(error).split())}"
    return None


def _read_checksum(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        return {"rows": int(stored["rows"]), "bytes": int(stored["bytes"]), "blake2b": str(stored["blake2b"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"its checksum file {path.name} is not readable") from None


def _serialise(table: pa.Table) -> memoryview:
    """The bytes of an Arrow IPC file with one record batch: the same for equal tables, however they were chunked."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return memoryview(sink.getvalue())
