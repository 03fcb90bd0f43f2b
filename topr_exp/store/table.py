"""The store: tables addressed by the hash of everything that decides them.

root/kind/<hash of the key>/ holds key.json (the complete key, readable) and the shards (shards.py). Processes that fill
one table share the work: each makes the shards that no other has locked, then waits for the others.

A table that is derived from another one has the same rows, and each of its shards notes the shard that it was made of
(source.py): one with other rows, or made of a source that has changed, counts as damaged and is made again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors, open_own_file, read_file, refuse_linked_folders, sync, write_bytes
from topr_exp.runtime.progress import Progress, note_line
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say, warn
from topr_exp.store.layout import (
    HASH,
    KEY_FILE,
    KIND,
    MARKER,
    SHARD_LOCK,
    TEMPORARY_FILE,
    canonical_json,
    foreign_entries,
    key_hash,
    shard_path,
)
from topr_exp.store.shards import SOURCE, read_row_count, read_shard, write_shard
from topr_exp.store.source import ShardFile, Sharding, Snapshot, Source, verify_file
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa


MISSING = "missing"  # the one fault of a shard that is no damage
ABSENT = (FileNotFoundError, NotADirectoryError)  # errors of a file that does not exist
# In the name of an imported table's rows, where they are a selection (imported.encoding).
SELECTED_ROWS = re.compile(" without malformed ones| in groups of ")
MAX_SHARDS = 1_000_000  # each is looked for
PAUSE_SECONDS = 0.1  # between two looks at what another process has locked, at first
PAUSE_GROWTH = 1.1  # to a tenth of the time waited so far: hundreds of processes must not keep a file server busy
MAX_PAUSE_SECONDS = 5.0
MOST_MAPPED = 4096  # shards of a table; with more they are read: Linux maps 65,530 files, and a run has ten tables


class Store:
    """A folder of tables that runs share.

    Every shard's digest is computed once per process, when it is first opened (about 1 s/GB). stop: ends `fill`.
    """

    def __init__(self, root: Path | str, stop: StopFlag | None = None) -> None:
        self.root = Path(root)
        self.stop = stop or StopFlag()
        self.files_read: dict[Path, ShardFile] = {}  # of its tables, by this object

    def table(self, kind: str, key: Mapping[str, Any], shards: int, sharding: Sharding | None = None) -> Table:
        """Return the table of this kind and key, made or not; nothing is written before `fill`.

        `shards`, their number, must follow from the key. sharding: the rows and sources that they must have.
        """
        key = json.loads(canonical_json(key))
        return Table(self, self.root / kind / key_hash(key), key, shards, sharding)

    def open(self, folder: Path) -> Table:
        """Return the table in a folder of this store; TOPRError if its key.json is unreadable or another table's."""
        path = folder / KEY_FILE
        try:
            stored = json.loads(read_file(path).decode())
            key = dict(stored["key"])
            shards = stored["shards"]
            if key_hash(key) != folder.name:
                raise ValueError("another key than the folder's name says")
            if type(shards) is not int or not 0 <= shards <= MAX_SHARDS:
                raise ValueError(f"shards={shards!r:.40}, which is not a whole number from 0 to {MAX_SHARDS}")
            if shard_path(folder, shards).exists():
                raise ValueError(f"shards={shards}, and there are more")
        except OSError as error:
            raise TOPRError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TOPRError(f"{path} is damaged ({error})") from error
        return Table(self, folder, key, shards)

    def check_unchanged(self) -> None:
        """Raise TOPRError if a shard that was read of this store's tables has changed since."""
        Source(tuple(self.files_read.values())).check_unchanged(may_be_gone=True)


class ShardAttempt(NamedTuple):
    """Result of an attempt to have a shard in the table."""

    file: ShardFile | None = None  # None: it is not there yet
    rows_made: pa.Table | None = None  # by this process
    owner: locks.Owner | None = None  # the process that makes it


class Table:
    """One table of a store; see `Store.table`. `error` tells why its key.json can't be read."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        key: Mapping[str, Any],
        shards: int,
        sharding: Sharding | None = None,
        *,
        error: str = "",
    ) -> None:
        self.store = store
        self.folder = folder
        self.key = key
        self.shards = shards
        self.kind = folder.parent.name
        self.name = f"{self.kind}/{folder.name}"  # as the command line and other tables' keys refer to it
        self.sharding = sharding  # that the shards must have; None: of any rows
        self.error = error
        self._shared_lock: locks.FileLock | None = None  # once `hold` has it

    def with_sharding(self, sharding: Sharding | None) -> Table:
        """Return the same table, whose shards must have these rows and sources."""
        return Table(self.store, self.folder, self.key, self.shards, sharding)

    # ---- reading

    @property
    def source_name(self) -> str:
        """The name of the table whose rows these are on, without a note on how they were selected; "" for none."""
        return str(self.key.get("rollouts", "")).split(" ")[0]

    def shard_path(self, index: int) -> Path:
        return shard_path(self.folder, index)

    def missing(self) -> list[int]:
        """Return the indices of the shards that are absent or damaged."""
        return [index for index in range(self.shards) if self.fault(index) is not None]

    def shard_sizes(self) -> list[int]:
        """Return the number of rows of each shard by its seal; 0 for one that does not exist."""
        sizes = []
        for index in range(self.shards):
            path = self.shard_path(index)
            with disk_errors(f"read {path}"):
                sizes.append(read_row_count(path))
        return sizes

    def row_count(self) -> int:
        """Return the number of rows of the shards that exist."""
        return sum(self.shard_sizes())

    def hold(self) -> None:
        """Keep `prune` of every process from the table while it, or a snapshot of it, is referred to; note its use."""
        path = self.folder / KEY_FILE
        while self._shared_lock is None:
            if not path.exists():
                self._write_key()
            with disk_errors(f"read {path}"), suppress(FileNotFoundError):  # removed at this moment
                self._shared_lock = locks.lock_shared(path)
            if self._shared_lock is None:
                time.sleep(PAUSE_SECONDS)
        with suppress(OSError):  # a store that others own, or read-only
            os.utime(path)  # for pruning by age

    def fault(self, index: int, *, always: bool = False) -> str | None:
        """Return None for an intact shard, MISSING, or its damage.

        always: compute the file's digest even if this process verified it before.
        """
        file = self._verified_shard(index, always=always)
        if isinstance(file, str):
            return file
        return None

    def shard(self, index: int) -> pa.Table:
        """Read one shard as a view of its file, as a rule (MOST_MAPPED). TOPRError if it is missing or damaged."""
        path = self.shard_path(index)
        file = self._verified_shard(index)
        if file == MISSING:
            raise TOPRError(f"{path} (shard {index} of {self.shards}) was never made")
        if isinstance(file, str):
            raise TOPRError(f"{path} is damaged ({file}); the next run makes it again")
        self.store.files_read[path] = file
        with disk_errors(f"read {path}"):
            return read_shard(path, is_mapped=self.shards <= MOST_MAPPED)

    def _verified_shard(self, index: int, *, always: bool = False) -> ShardFile | str:
        """Return the file of an intact shard, or the shard's fault; always: as in `fault`."""
        path = self.shard_path(index)
        with disk_errors(f"read {path}"):
            try:
                file = verify_file(path, always=always)
            except FileNotFoundError:
                return MISSING
        if isinstance(file, str) or self.sharding is None:
            return file
        return self.sharding.mismatch(index, file.contents) or file

    def read(self, columns: Iterable[str] | None = None) -> pa.Table:
        """Read all rows in the order of the shards; TOPRError as `shard`."""
        table = self.snapshot().columns
        if columns is None:
            return table
        return table.select(list(columns))

    def snapshot(self) -> Snapshot:
        """Read all rows as `read` does, with the files that they are in."""
        import pyarrow as pa

        if self.sharding is None:
            self.sharding = rows_of_source(self)
        shards = []
        files = []
        shard_sources = []
        for index in range(self.shards):
            shards.append(self.shard(index))
            file = self.store.files_read[self.shard_path(index)]  # as `shard` noted it
            files.append(file)
            shard_sources.append(Source((file,), self._shared_lock))
        sharding = Sharding(tuple(map(len, shards)), tuple(shard_sources))
        return Snapshot(pa.concat_tables(shards), Source(tuple(files), self._shared_lock), sharding)

    # ---- making

    def fill(
        self, make: Callable[[int], pa.Table], progress: Progress | None = None, amount: Callable[[pa.Table], int] = len
    ) -> int:
        """Make the shards that are missing or damaged; returns the amount that this process made: rows by default.

        `make(index)` must be a function of key and index alone. Processes that fill one table make different shards.
        `progress` counts rows and says who is waited for. TOPRError when the disk refuses; finished shards stay.
        """
        pending = list(range(self.shards))
        amount_made = 0
        show = say if progress is None else note_line
        shown_message = ""
        pause = 0.0  # grows while nothing can be made
        with self.store.stop.leaving_together():
            self._write_key()
            while pending:
                owners: dict[int, locks.Owner | None] = {}  # of the shards that are still missing
                for index in pending:
                    attempt = self._attempt_shard(index, make)
                    if attempt.file is None:
                        owners[index] = attempt.owner
                        continue
                    shard_amount = amount(attempt.rows_made) if attempt.rows_made is not None else 0
                    amount_made += shard_amount
                    if progress is not None:
                        note = "from the store" if attempt.rows_made is None else ""
                        progress.update(attempt.file.contents.rows, shard_amount, note)
                message = self._describe_wait(owners)
                is_stuck = len(owners) == len(pending)
                if message and is_stuck:
                    if message != shown_message:
                        show(message)
                        shown_message = message
                    pause = min(max(PAUSE_SECONDS, PAUSE_GROWTH * pause), MAX_PAUSE_SECONDS)
                    time.sleep(pause)
                else:
                    pause = 0.0
                pending = list(owners)
            self._tidy()
        return amount_made

    def _describe_wait(self, owners: Mapping[int, locks.Owner | None]) -> str:
        """Say which process makes the first of some shards; "" where none is known."""
        for index, owner in owners.items():
            if owner is not None:
                return f"waiting for {owner}, which makes shard {index} of {self.shards} of {self.name}"
        return ""

    def _attempt_shard(self, index: int, make: Callable[[int], pa.Table]) -> ShardAttempt:
        """Make a shard unless it is intact, or another process makes it."""
        file = self._verified_shard(index)
        if isinstance(file, ShardFile):
            return ShardAttempt(file)
        self.store.stop.check()
        path = self.shard_path(index).with_suffix(locks.SUFFIX)
        with disk_errors(f"write {path}"):
            lock = locks.acquire(path)
        if isinstance(lock, locks.Owner):
            return ShardAttempt(owner=lock)
        with lock:
            rows_made = self._make_shard(index, make)
        file = self._verified_shard(index)
        if isinstance(file, ShardFile):
            return ShardAttempt(file, rows_made)
        return ShardAttempt()  # pruned meanwhile

    def _make_shard(self, index: int, make: Callable[[int], pa.Table]) -> pa.Table | None:
        """Make one shard whose lock this process holds; None if another process finished it."""
        path = self.shard_path(index)
        fault = self.fault(index)  # again: taking the lock made NFS forget its cache of the folder
        if fault is None:
            return None
        if fault != MISSING:
            prune = f"python -m topr_exp.store --root {self.store.root} prune --key {self.name}"
            warn(
                f"{path} is damaged ({fault}) and is made again; on a GPU it may differ, and what was made of it is "
                f"then made again, too; what notes no source (older stores) after {prune}",
                of_any_process=True,
            )
        table = self._with_source(index, make(index))
        if self.fault(index) is None:
            return None  # made meanwhile by a process whose file system has no locks: intact shards stay
        remedy = "; finished shards are kept, and the same command goes on from there"
        with disk_errors(f"write {path}", remedy), suppress(FileNotFoundError):  # tidied by such a process
            write_shard(path, table)
        return table

    def _with_source(self, index: int, table: pa.Table) -> pa.Table:
        """Return a shard that notes its source's digest; TOPRError if the source changed while it was made."""
        if self.sharding is None:
            return table
        if self.sharding.sources:
            self.sharding.sources[index].check_unchanged()
        assert table.num_rows == self.sharding.sizes[index], "a shard with other rows than its table's"
        digest = self.sharding.source_digest(index)
        if not digest:
            return table
        metadata = dict(table.schema.metadata or {})
        metadata[SOURCE] = digest.encode()
        return table.replace_schema_metadata(metadata)

    def _write_key(self) -> None:
        """Write the key if it is missing or damaged; the folder's name tells the right one.

        TOPRError where a link leads out of the store, whose own folder may be one.
        """
        refuse_linked_folders(self.store.root, self.kind, self.name)
        path = self.folder / KEY_FILE
        text = json.dumps({"shards": self.shards, "key": self.key}, indent=1, sort_keys=True) + "\n"
        with disk_errors(f"write in {self.folder}"):
            if not path.exists() or read_file(path) != text.encode():
                self.folder.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # tidied: another process wrote the same file
                    write_bytes(path, text.encode())

    def _tidy(self) -> None:
        """Note the use of a complete table (for pruning by age) and remove the files of killed processes."""
        with suppress(OSError):  # a store that others own, or read-only: reading it is enough
            os.utime(self.folder / KEY_FILE)
            root = self.store.root
            if not (root / MARKER).exists() and not foreign_entries(root):  # `prune` removes nothing from any other
                os.close(open_own_file(root / MARKER, os.O_WRONLY | os.O_CREAT))
                sync(root)
            for path in self.folder.iterdir():
                if TEMPORARY_FILE.fullmatch(path.name):
                    path.unlink(missing_ok=True)  # the final file exists, so even a living writer does not need it
                elif SHARD_LOCK.fullmatch(path.name):
                    lock = locks.acquire(path)
                    if isinstance(lock, locks.Lock):
                        with lock:  # leaving it deletes its file
                            continue


# ---- derived tables


def source_table(table: Table) -> Table | None:
    """Return the table of the same store that a table was made of, shard by shard; None if it is damaged or none."""
    kind, _, hash_name = table.source_name.partition("/")
    has_source = KIND.fullmatch(kind) and HASH.fullmatch(hash_name)
    if not has_source or SELECTED_ROWS.search(table.key["rollouts"]):
        return None
    store = Store(table.store.root)
    source = open_if_intact(store, store.root / kind / hash_name)
    if source is not None and source.shards == table.shards:
        return source
    return None


def open_if_intact(store: Store, folder: Path) -> Table | None:
    """Open a table; None if it is absent or its key is damaged. TOPRError if the disk refuses."""
    try:
        return store.open(folder)
    except TOPRError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, ABSENT):
            raise
        return None


def rows_of_source(table: Table) -> Sharding | None:
    """Return the rows that a derived table's shards must have, by its source's seals; None if one is missing."""
    source = source_table(table)
    if source is None:
        return None
    sizes = source.shard_sizes()
    if all(sizes):
        return Sharding(tuple(sizes))
    return None
