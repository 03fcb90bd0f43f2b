"""The store: tables addressed by the hash of everything that decides them.

root/kind/<hash of the key>/ holds key.json (the whole key, readable) and the shards (shards.py). Processes that fill
one table share the work: each makes the shards that no other has locked, then waits for the rest.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import TEMPORARY, disk_errors, write_whole
from topr_exp.runtime.stop import StopFlag
from topr_exp.store.keys import KEY_FILE, KIND_NAMES, MARKER, canonical, foreign_entries, key_hash, read_key
from topr_exp.store.shards import Ragged, find_fault, read_seal, read_shard, write_shard
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

SHARD = "shard-"  # begins the names of a shard's files
MARK = "Tables that runs of topr_exp share: `python -m topr_exp.store` lists, verifies and prunes them.\n"
MISSING = "missing"  # the one fault of a shard that is no damage
POLL_SECONDS = (0.02, 1.0)  # first and longest pause before a lock of somebody else is asked for again

_verified: dict[Path, tuple[int, ...]] = {}  # shard file -> its status when its digest was found right


class Store:
    """A folder of tables that runs share.

    Every shard's digest is computed once a process, when it is first opened (about 1 s/GB). stop: ends `fill`.
    """

    def __init__(self, root: Path | str, stop: StopFlag | None = None) -> None:
        self.root, self.stop = Path(root), stop or StopFlag()

    def table(self, kind: str, key: Mapping[str, Any], shards: int) -> Table:
        """The table of this kind and key, made or not; nothing is written before `fill`.

        `shards` must follow from the key. Raises TOPRError when the folder holds another key or another number
        of shards, or when the key is no JSON.
        """
        if not KIND_NAMES.fullmatch(kind):
            raise TOPRError(f"kind must be lower-case letters, digits and _; got {kind!r}")
        assert shards >= 1, shards
        key = json.loads(canonical(key))
        folder = self.root / kind / key_hash(key)
        with disk_errors(f"read {folder}"):
            made = (folder / KEY_FILE).exists()
        if made:
            stored, stored_shards = read_key(folder)
            if canonical(stored) != canonical(key):
                raise TOPRError(f"{folder / KEY_FILE} holds another key of the same hash; remove the folder")
            if stored_shards != shards:
                raise TOPRError(
                    f"{folder} has {stored_shards} shards, not {shards}; remove the folder to make it again"
                )
        return Table(folder, key, shards, stop=self.stop)

    def open(self, folder: Path) -> Table:
        """The table in a folder of this store, by its key.json."""
        return Table(folder, *read_key(folder), stop=self.stop)

    def place(self, name: str) -> Path:
        """The folder of a table that is called kind/hash."""
        return self.root / name


def mark(root: Path) -> None:
    """Mark a folder that is empty or holds only tables as a store: `prune` removes nothing from any other."""
    with suppress(PermissionError):  # a store of others: they mark it
        if not (root / MARKER).exists():
            root.mkdir(parents=True, exist_ok=True)
            if not foreign_entries(root):
                write_whole(root / MARKER, MARK.encode())


class BorrowingStore(Store):
    """A store that takes from another one the tables that are whole there, instead of making them once more."""

    def __init__(self, root: Path | str, lender: Store | None, stop: StopFlag | None = None) -> None:
        super().__init__(root, stop)
        self.lender, self.lent = lender, set[str]()

    def table(self, kind: str, key: Mapping[str, Any], shards: int) -> Table:
        if self.lender is not None:
            theirs = self.lender.table(kind, key, shards)
            if (theirs.folder / KEY_FILE).exists() and theirs.complete():
                self.lent.add(theirs.name)
                return theirs
        return super().table(kind, key, shards)

    def place(self, name: str) -> Path:
        return self.lender.place(name) if self.lender is not None and name in self.lent else super().place(name)


class Table:
    """One table of a store; see `Store.table`. `error` tells why its key.json can't be read."""

    def __init__(
        self, folder: Path, key: Mapping[str, Any], shards: int, error: str = "", stop: StopFlag | None = None
    ) -> None:
        self.folder, self.key, self.shards, self.error = folder, key, shards, error
        self.kind, self._stop = folder.parent.name, stop or StopFlag()
        self.name = f"{self.kind}/{folder.name}"  # as the command line and other tables' keys refer to it

    def shard_file(self, index: int) -> Path:
        return self.folder / f"{SHARD}{index:05d}.arrow"

    def lock_file(self, index: int) -> Path:
        return self.folder / f"{SHARD}{index:05d}{locks.SUFFIX}"

    # ---- reading

    @property
    def imported(self) -> bool:
        """True if it holds completions made elsewhere, which no run can make again."""
        return self.kind == "imported" or "content" in self.key

    def missing(self) -> list[int]:
        """The shards that are absent or damaged."""
        return [index for index in range(self.shards) if self.fault(index) is not None]

    def complete(self) -> bool:
        """True if every shard is whole."""
        return all(self.fault(index) is None for index in range(self.shards))

    def bounds(self) -> list[int]:
        """The first row of each shard, then the number of rows, of the shards that are there."""
        return list(accumulate((read_seal(self.shard_file(index))[0] for index in range(self.shards)), initial=0))

    def fault(self, index: int, *, always: bool = False) -> str | None:
        """None for a whole shard, MISSING, or the damage in words.

        The digest is computed where this process has not yet done so for this file; `always`: in any case.
        """
        path = self.shard_file(index)
        with disk_errors(f"read {path}"):
            try:
                status = os.stat(path)
                state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if always or _verified.get(path) != state:
                    _verified.pop(path, None)
                    if fault := find_fault(path):
                        return fault
                    _verified[path] = state
            except FileNotFoundError:
                return MISSING
        return None

    def shard(self, index: int) -> pa.Table:
        """One shard, memory-mapped: its columns are views of the file. TOPRError when it is missing or damaged."""
        if not 0 <= index < self.shards:
            raise IndexError(f"shard {index} of {self.shards}")
        path, fault = self.shard_file(index), self.fault(index)
        if fault == MISSING:
            raise TOPRError(f"{path} (shard {index} of {self.shards}) was never made")
        if fault is not None:
            raise TOPRError(f"{path} is damaged ({fault}); the next run makes it again")
        with disk_errors(f"read {path}"):
            return read_shard(path)

    def read(self, columns: Iterable[str] | None = None) -> pa.Table:
        """All rows in the order of the shards, memory-mapped, without a copy; TOPRError as `shard`."""
        import pyarrow as pa

        shards = [self.shard(index) for index in range(self.shards)]
        if columns is not None:
            names = list(columns)
            shards = [shard.select(names) for shard in shards]
        return pa.concat_tables(shards)

    def ragged(self, column: str) -> Ragged:
        """A list column over all shards as numpy views."""
        return Ragged(self.read([column])[column])

    # ---- making

    def fill(
        self,
        make: Callable[[int], pa.Table],
        on_shard: Callable[[int, bool], None] = lambda index, made_here: None,
        on_wait: Callable[[str], None] = log.info,
    ) -> int:
        """Make the shards that are missing or damaged; return how many this process made.

        `make(index)` must be a function of the key and the index alone. Several processes may fill one table:
        they make different shards at the same time.
        `on_shard(index, made_here)` is called once a shard as soon as it is known to be whole; `on_wait(message)`
        when this process starts to wait for another.
        Raises TOPRError when the disk refuses; finished shards stay, so the same call goes on from there.
        """
        if not (self.folder / KEY_FILE).exists():
            self._write_key()
        pending, made, told, pause = list(range(self.shards)), 0, "", POLL_SECONDS[0]
        while pending:
            before, message = len(pending), ""
            for index in list(pending):
                made_here = False
                if (fault := self.fault(index)) is not None:
                    self._stop.check()
                    with disk_errors(f"write {self.lock_file(index)}"):
                        lock = locks.acquire(self.lock_file(index))
                    if isinstance(lock, locks.Owner):
                        makes = f"waiting for {lock}, which makes shard {index} of {self.shards} of {self.name}"
                        message = message or makes
                        continue
                    with lock:
                        made_here = self._make_shard(index, make, fault)
                    if not made_here and self.fault(index) is not None:
                        continue
                pending.remove(index)
                made += made_here
                on_shard(index, made_here)
            if message and len(pending) == before:
                if message != told:
                    on_wait(message)
                time.sleep(pause)
                told, pause = message, min(pause * 1.5, POLL_SECONDS[1])
            else:
                pause = POLL_SECONDS[0]
        self._tidy()
        return made

    def replace(self, index: int, table: pa.Table) -> None:
        """Put other rows in the place of a whole shard; TOPRError while another process is at work on it."""
        with disk_errors(f"write {self.lock_file(index)}"):
            lock = locks.acquire(self.lock_file(index))
        if isinstance(lock, locks.Owner):
            raise TOPRError(f"{lock} makes shard {index} of {self.name}; give the command again later")
        with lock:
            self._write_shard(index, table)

    def _make_shard(self, index: int, make: Callable[[int], pa.Table], fault: str) -> bool:
        """Make one shard whose lock this process holds; False when another process finished it."""
        # Taking the lock made NFS forget what it had cached of the folder, so what is seen now is true.
        if self.fault(index) is None:
            return False
        path, before = self.shard_file(index), b""
        with disk_errors(f"write in {self.folder}"):
            for leftover in self.folder.glob(f"{path.stem}.*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)
            if fault != MISSING:
                log.warning("%s is damaged (%s) and is made again", path, fault)
                before = read_seal(path)[1]
        table = make(index)
        if self.fault(index) is None:
            return False  # made by another process without locks: what is whole stays as it is
        written = self._write_shard(index, table)
        if written and before not in (b"", read_seal(path)[1]):
            log.warning(
                "%s is not what it was before it was damaged (by another program, or on a GPU); what was made from the "
                "old one doesn't fit it: python -m topr_exp.store prune --key %s --yes, then the same command again",
                path, self.name,
            )  # fmt: skip
        return written

    def _write_shard(self, index: int, table: pa.Table) -> bool:
        """Write a shard; False when another process, without locks, swept its temporary file."""
        path = self.shard_file(index)
        with disk_errors(f"write {path}", self._kept):
            try:
                write_shard(path, table)
            except FileNotFoundError:
                return False
        return True

    def _kept(self) -> str:
        done = self.shards - len(self.missing())
        return f"; {done} of {self.shards} shards are kept and the same command goes on from there"

    def _write_key(self) -> None:
        text = json.dumps({"shards": self.shards, "key": self.key}, indent=1, sort_keys=True)
        with disk_errors(f"write in {self.folder}"):
            mark(self.folder.parent.parent)
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # swept: another process wrote the same file
                write_whole(self.folder / KEY_FILE, (text + "\n").encode())

    def _tidy(self) -> None:
        """A complete table: note its use (for pruning by age) and remove what killed processes left."""
        with suppress(OSError):  # a store that others own, or read-only: reading it is enough
            mark(self.folder.parent.parent)
            os.utime(self.folder / KEY_FILE)
            for path in self.folder.iterdir():
                if path.name.endswith(TEMPORARY):
                    path.unlink(missing_ok=True)  # its final file exists, so even a living writer does not need it
                elif path.name.endswith(locks.SUFFIX) and isinstance(lock := locks.acquire(path), locks.Lock):
                    with lock:
                        pass  # giving it back deletes its file
