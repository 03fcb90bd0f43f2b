"""The store: tables addressed by the hash of everything that decides them.

root/kind/<hash of the key>/ holds key.json (the whole key, readable) and the shards (shards.py). Processes that fill
one table share the work: each makes the shards that no other has locked, then waits for the rest.

A table that is made of another one has that one's rows, and each of its shards notes which shard it was made of
(source.py): one with other rows, or made of what is there no more, counts as damaged, and is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import TEMPORARY, disk_errors, open_own_file, read_file, sync, write_bytes
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say, warn
from topr_exp.store.shards import SOURCE, Contents, examine, read_rows, read_shard, write_shard
from topr_exp.store.source import Derivation, FileState, ShardFile, Snapshot, Source, file_state
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa


KINDS, HASHES = re.compile(r"[a-z][a-z0-9_]*"), re.compile(r"[0-9a-f]{16}")  # names of folders
HASH_BYTES = 8  # 64 bits
KEY_FILE = "key.json"
SHARD = "shard-"  # begins the names of a shard's files
SOME_ROWS = re.compile(" without malformed ones| in groups of ")  # in the name of an imported table's (imported.py)
# All that is tidied: a folder that somebody else packed may hold anything under other names.
OUR_LOCKS = re.compile(rf"{SHARD}\d{{5,}}\{locks.SUFFIX}")
OUR_TEMPORARIES = re.compile(rf"(?:key\.json|{SHARD}\d{{5,}}\.arrow)\.[0-9a-f]+\{TEMPORARY}")
MARKER = "STORE"  # marks a folder as a store
MISSING_FILE = (FileNotFoundError, NotADirectoryError)
MISSING = "missing"  # the one fault of a shard that is no damage
MOST_SHARDS = 1_000_000  # each is looked for
PAUSE_SECONDS = 0.1  # before a lock of somebody else is asked for again

_verified: dict[Path, tuple[FileState, Contents]] = {}  # shard file -> its state when its digest was found right


class Store:
    """A folder of tables that runs share.

    Every shard's digest is computed once a process, when it is first opened (about 1 s/GB). stop: ends `fill`.
    """

    def __init__(self, root: Path | str, stop: StopFlag | None = None) -> None:
        self.root, self.stop = Path(root), stop or StopFlag()
        self._files_read: dict[Path, ShardFile] = {}

    def table(self, kind: str, key: Mapping[str, Any], shards: int, derivation: Derivation | None = None) -> Table:
        """The table of this kind and key, made or not; nothing is written before `fill`.

        `shards` must follow from the key. derivation: what each shard must have to belong to the table.
        """
        key = json.loads(canonical(key))
        table = Table(self.root / kind / key_hash(key), key, shards, stop=self.stop)
        table.derivation = derivation
        table.files_read = self._files_read
        return table

    def check_unchanged(self) -> None:
        """Raise TOPRError where a shard that was read of this store's tables is not what it was."""
        Source(tuple(self._files_read.values())).check_unchanged(may_be_gone=True)

    def open(self, folder: Path) -> Table:
        """The table in a folder of this store; TOPRError when its key.json can't be read or is another table's."""
        path = folder / KEY_FILE
        try:
            stored = json.loads(read_file(path).decode())
            key, shards = dict(stored["key"]), stored["shards"]
            if key_hash(key) != folder.name:
                raise ValueError("another key than the folder's name says")
            if type(shards) is not int or not 0 <= shards <= MOST_SHARDS:
                raise ValueError(f"shards={shards!r:.40}, which is not a whole number from 0 to {MOST_SHARDS}")
        except OSError as error:
            raise TOPRError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TOPRError(f"{path} is damaged ({error})") from error
        table = Table(folder, key, shards, stop=self.stop)
        table.files_read = self._files_read
        return table


class Table:
    """One table of a store; see `Store.table`. `error` tells why its key.json can't be read."""

    def __init__(
        self, folder: Path, key: Mapping[str, Any], shards: int, error: str = "", stop: StopFlag | None = None
    ) -> None:
        self.folder, self.key, self.shards, self.error = folder, key, shards, error
        self.kind, self._stop = folder.parent.name, stop or StopFlag()
        self.name = f"{self.kind}/{folder.name}"  # as the command line and other tables' keys refer to it
        self.derivation: Derivation | None = None
        self.files_read: dict[Path, ShardFile] = {}  # of the store
        self._reading: locks.Reading | None = None

    def shard_file(self, index: int) -> Path:
        return self.folder / f"{SHARD}{index:05d}.arrow"

    def missing(self) -> list[int]:
        """The shards that are absent or damaged."""
        return [index for index in range(self.shards) if self.fault(index) is not None]

    def row_count(self) -> int:
        """The number of rows of the shards that are there, as their seals have it."""
        total = 0
        for index in range(self.shards):
            path = self.shard_file(index)
            with disk_errors(f"read {path}"):
                total += read_rows(path)
        return total

    def hold(self) -> None:
        """Keep `prune` of every process from the table while it, or what was read of it, is referred to."""
        path = self.folder / KEY_FILE
        while self._reading is None:
            if not path.exists():
                self._write_key()
            with disk_errors(f"read {path}"), suppress(FileNotFoundError):  # removed in this moment
                self._reading = locks.share(path)
            if self._reading is None:
                time.sleep(PAUSE_SECONDS)

    def fault(self, index: int, *, always: bool = False) -> str | None:
        """None for a whole shard, MISSING, or the damage in words; a file's digest is computed once, or `always`."""
        path = self.shard_file(index)
        with disk_errors(f"read {path}"):
            try:
                state = file_state(path)
                if always or path not in _verified or _verified[path][0] != state:
                    _verified.pop(path, None)
                    contents = examine(path)
                    if isinstance(contents, str):
                        return contents
                    _verified[path] = state, contents
            except FileNotFoundError:
                return MISSING
        if self.derivation is None:
            return None
        contents = _verified[path][1]
        return self.derivation.mismatch(index, contents.rows, contents.source)

    def shard(self, index: int) -> pa.Table:
        """One shard, memory-mapped: its columns are views of the file. TOPRError when it is missing or damaged."""
        path, fault = self.shard_file(index), self.fault(index)
        if fault == MISSING:
            raise TOPRError(f"{path} (shard {index} of {self.shards}) was never made")
        if fault is not None:
            raise TOPRError(f"{path} is damaged ({fault}); the next run makes it again")
        state, contents = _verified[path]
        self.files_read[path] = ShardFile(path, state, contents.digest)
        with disk_errors(f"read {path}"):
            return read_shard(path)

    def check_unchanged(self) -> None:
        """Raise TOPRError where a shard that was read is not what it was."""
        Source(tuple(self.files_read.values())).check_unchanged(may_be_gone=True)

    def read(self, columns: Iterable[str] | None = None) -> pa.Table:
        """All rows in the order of the shards, memory-mapped, without a copy; TOPRError as `shard`."""
        table = self.snapshot().columns
        return table if columns is None else table.select(list(columns))

    def snapshot(self) -> Snapshot:
        """All rows as `read` gives them, with the bounds of their shards and the files that they are in."""
        import pyarrow as pa

        if self.derivation is None:
            self.derivation = rows_of_source(self)
        shards = [self.shard(index) for index in range(self.shards)]
        files = tuple(self.files_read[self.shard_file(index)] for index in range(self.shards))
        bounds = [*accumulate(map(len, shards), initial=0)]
        return Snapshot(pa.concat_tables(shards), bounds, Source(files, self._reading))

    def fill(
        self, make: Callable[[int], pa.Table], progress: Progress | None = None, amount: Callable[[pa.Table], int] = len
    ) -> int:
        """Make the shards that are missing or damaged; return the amount that this process made: rows by default.

        `make(index)` must be a function of key and index alone. Processes that fill one table make different shards.
        `progress` counts rows and is told who is waited for. TOPRError when the disk refuses; finished shards stay.
        """
        pending, made, told = list(range(self.shards)), 0, ""
        with self._stop.leaving_together():
            self._write_key()
            while pending:
                before, waits = len(pending), ""
                for index in list(pending):
                    made_here = None
                    if self.fault(index) is not None:
                        self._stop.check()
                        path = self.shard_file(index).with_suffix(locks.SUFFIX)
                        with disk_errors(f"write {path}"):
                            lock = locks.acquire(path)
                        if isinstance(lock, locks.Owner):
                            makes = f"waiting for {lock}, which makes shard {index} of {self.shards} of {self.name}"
                            waits = waits or makes
                            continue
                        with lock:
                            made_here = self._make_shard(index, make)
                        if self.fault(index) is not None:
                            continue  # pruned meanwhile
                    pending.remove(index)
                    here = 0 if made_here is None else amount(made_here)
                    made += here
                    if progress is not None:
                        rows = _verified[self.shard_file(index)][1].rows
                        progress.update(rows, here, "from the store" if made_here is None else "")
                if waits and len(pending) == before:
                    if waits != told:
                        (say if progress is None else progress.message)(waits)
                        told = waits
                    time.sleep(PAUSE_SECONDS)
            self._tidy()
        return made

    def _make_shard(self, index: int, make: Callable[[int], pa.Table]) -> pa.Table | None:
        """Make one shard whose lock this process holds; None when another process finished it."""
        # Taking the lock made NFS forget what it had cached of the folder, so what is seen now is true.
        fault, path = self.fault(index), self.shard_file(index)
        if fault not in (None, MISSING):
            told = f"{path} is damaged ({fault}) and is made again; on a GPU it may differ, and what was made of it is "
            told += "then made again, too; what notes no source (older stores) after "
            told += f"python -m topr_exp.store --root {self.folder.parents[1]} prune --key {self.name}"
            warn(told, of_any_process=True)
        table = self._checked(index, make(index)) if fault else None
        if table is None or self.fault(index) is None:
            return None  # made by another process without locks: what is whole stays as it is
        kept = "; finished shards are kept, and the same command goes on from there"
        with disk_errors(f"write {path}", lambda: kept), suppress(FileNotFoundError):  # swept, without locks
            write_shard(path, table)
        return table

    def _checked(self, index: int, table: pa.Table) -> pa.Table:
        """A shard as it is stored: with the digest of what it was made of, which must not have changed meanwhile."""
        if self.derivation is None:
            return table
        if self.derivation.sources:
            self.derivation.sources[index].check_unchanged()
        assert table.num_rows == self.derivation.rows[index], "a shard with other rows than its table's"
        digest = self.derivation.digest(index)
        if not digest:
            return table
        return table.replace_schema_metadata({**(table.schema.metadata or {}), SOURCE: digest.encode()})

    def _write_key(self) -> None:
        """Write the key where it is not there, or damaged: the folder's name says which it is."""
        path = self.folder / KEY_FILE
        text = json.dumps({"shards": self.shards, "key": self.key}, indent=1, sort_keys=True) + "\n"
        with disk_errors(f"write in {self.folder}"):
            if not path.exists() or read_file(path) != text.encode():
                self.folder.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # swept: another process wrote the same file
                    write_bytes(path, text.encode())

    def _tidy(self) -> None:
        """A complete table: note its use (for pruning by age) and remove what killed processes left."""
        with suppress(OSError):  # a store that others own, or read-only: reading it is enough
            os.utime(self.folder / KEY_FILE)
            root = self.folder.parent.parent
            if not (root / MARKER).exists() and not foreign_entries(root):  # `prune` removes nothing from any other
                os.close(open_own_file(root / MARKER, os.O_WRONLY | os.O_CREAT))  # whole at once
                sync(root)
            for path in self.folder.iterdir():
                if OUR_TEMPORARIES.fullmatch(path.name):
                    path.unlink(missing_ok=True)  # its final file exists, so even a living writer does not need it
                elif OUR_LOCKS.fullmatch(path.name) and isinstance(lock := locks.acquire(path), locks.Lock):
                    with lock:
                        pass  # giving it back deletes its file


def source_table(table: Table) -> Table | None:
    """The table of the same store that a table was made of, shard by shard; None for none, or one that is damaged."""
    how_read = str(table.key.get("rollouts", ""))  # a table's name, and what was done to its rows
    kind, _, hash_ = how_read.split(" ")[0].partition("/")
    root = table.folder.parents[1]
    if not (KINDS.fullmatch(kind) and HASHES.fullmatch(hash_)) or SOME_ROWS.search(how_read):
        return None
    try:
        source = Store(root).open(root / kind / hash_)
    except TOPRError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, MISSING_FILE):
            raise
        return None
    return source if source.shards == table.shards else None


def rows_of_source(table: Table) -> Derivation | None:
    """How many rows a derived table's shards must have, by the seals of its source's; None where one is missing."""
    source = source_table(table)
    if source is None:
        return None
    rows = []
    for index in range(source.shards):
        path = source.shard_file(index)
        with disk_errors(f"read {path}"):
            rows.append(read_rows(path))
    return Derivation(tuple(rows)) if all(rows) else None


def canonical(key: Mapping[str, Any]) -> str:
    """The one JSON text of a key: members sorted, no spaces, ASCII only; equal keys give equal texts.

    1, 1.0 and true differ, as in JSON. Tuples count as lists; what JSON can't hold (NaN, other types) is our mistake.
    """
    return json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_hash(key: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of BLAKE2b over the canonical JSON."""
    return hashlib.blake2b(canonical(key).encode("ascii"), digest_size=HASH_BYTES).hexdigest()


def foreign_entries(root: Path) -> list[str]:
    """List what is in a store's folder and no part of one; hidden entries, and ones that may not be read, aside."""

    def is_kind(path: Path) -> bool:
        if not KINDS.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            return False
        with suppress(PermissionError):
            return all(HASHES.fullmatch(each.name) or each.name.startswith(".") for each in path.iterdir())
        return True

    found = [path for path in sorted(root.iterdir()) if path.name != MARKER and path.suffix != TEMPORARY]
    return [path.name for path in found if not path.name.startswith(".") and not is_kind(path)]
