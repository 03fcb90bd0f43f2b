"""The store: tables addressed by the hash of everything that decides them.

root/kind/<hash of the key>/ holds key.json (the whole key, readable) and the shards (shards.py).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import TEMPORARY, disk_errors, write_whole
from topr_exp.runtime.stop import StopFlag
from topr_exp.store.filling import Filling
from topr_exp.store.ragged import Ragged
from topr_exp.store.shards import Shards, stem
from topr_exp.store.survey import KEY_FILE, KIND_NAMES, canonical, key_hash, mark, read_key
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class Store:
    """A folder of tables that runs share.

    Every shard's checksum is computed once a process, when it is first opened (about 1 s/GB). stop: ends `fill`.
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
        table = Table(folder, key, shards, self.stop)
        with disk_errors(f"read {folder}"):
            made = (folder / KEY_FILE).exists()
        if made:
            self._compare(folder, key, shards)
        return table

    def open(self, folder: Path) -> Table:
        """The table in a folder of this store, by what its key.json says."""
        key, shards = read_key(folder)
        return Table(folder, key, shards, self.stop)

    def place(self, name: str) -> Path:
        """The folder of a table that is called kind/hash."""
        return self.root / name

    @staticmethod
    def _compare(folder: Path, key: Mapping[str, Any], shards: int) -> None:
        stored, stored_shards = read_key(folder)
        if canonical(stored) != canonical(key):
            raise TOPRError(f"{folder / KEY_FILE} holds another key of the same hash; remove the folder")
        if stored_shards != shards:
            raise TOPRError(f"{folder} has {stored_shards} shards, not {shards}; remove the folder to make it again")


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


class Table(Shards):
    """One table of a store; see `Store.table`."""

    def __init__(self, folder: Path, key: Mapping[str, Any], shards: int, stop: StopFlag) -> None:
        super().__init__(folder, shards)
        self.key, self._stop = key, stop

    @cached_property
    def name(self) -> str:
        """kind/hash, as the command line and other tables' keys refer to it."""
        return f"{self.folder.parent.name}/{self.folder.name}"

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
        made = Filling(self, self.name, make, on_shard, on_wait, self._stop).run()
        self._tidy()
        return made

    def replace(self, index: int, table: pa.Table) -> None:
        """Put other rows in the place of a whole shard; TOPRError while another process is at work on it."""
        path = self.folder / f"{stem(index)}{locks.SUFFIX}"
        with disk_errors(f"write {path}"):
            lock = locks.acquire(path)
        if isinstance(lock, locks.Owner):
            raise TOPRError(f"{lock} makes shard {index} of {self.name}; give the command again later")
        with lock:
            self.write_shard(index, table)

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
