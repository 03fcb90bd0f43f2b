"""The store: tables addressed by the hash of everything that decides them, in shards that are whole or absent.

root/kind/<hash of the key>/ holds key.json (the whole key, readable), shard-00000.arrow (an Arrow IPC file,
uncompressed, so that it is read by mapping it) and shard-00000.json (its checksum, rows and bytes). A shard
counts when both its files are there and agree. The checksum file is written last.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.store import claims
from topr_exp.store.files import TEMPORARY, digest, disk_errors, file_digest, write_whole
from topr_exp.store.keys import canonical, key_hash
from topr_exp.store.ragged import Ragged
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

KEY_FILE = "key.json"
TABLE_CLAIM = f"table{claims.SUFFIX}"
KIND_NAMES = re.compile(r"[a-z][a-z0-9_]*")
MISSING = "missing"  # the one fault of a shard that is no damage
POLL_SECONDS = (0.02, 1.0)  # first and longest pause between two looks at a claim of somebody else

_verified: dict[str, tuple[object, ...]] = {}  # shard file -> what it looked like when its checksum was found right


class Store:
    """A folder of tables that runs share.

    `verify` reads every shard's checksum once a process, when it is first opened (about 1 s/GB); without it only
    names and sizes are compared. `stale` is the number of seconds after which a silent claim of another host
    counts as dead.
    """

    def __init__(self, root: Path | str, *, verify: bool = True, stale: float = claims.STALE_SECONDS) -> None:
        self.root, self._verify, self._stale = Path(root), verify, stale

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
        table = Table(folder, key, shards, verify=self._verify, stale=self._stale)
        if (folder / KEY_FILE).exists():
            self._compare(folder, key, shards)
        return table

    def open(self, folder: Path) -> Table:
        """The table in a folder of this store, by what its key.json says."""
        key, shards = read_key(folder)
        return Table(folder, key, shards, verify=self._verify, stale=self._stale)

    @staticmethod
    def _compare(folder: Path, key: Mapping[str, Any], shards: int) -> None:
        stored, stored_shards = read_key(folder)
        if canonical(stored) != canonical(key):
            names = sorted(name for name in {*stored, *key} if stored.get(name) != key.get(name))
            raise TOPRError(
                f"{folder / KEY_FILE} holds another key than its folder's name says (differs in "
                f"{', '.join(names) or 'a type'}): damaged or a hash collision; remove the folder to make it again"
            )
        if stored_shards != shards:
            raise TOPRError(f"{folder} has {stored_shards} shards, not {shards}; remove the folder to make it again")


class Table:
    """One table of a store; see `Store.table`."""

    def __init__(self, folder: Path, key: Mapping[str, Any], shards: int, *, verify: bool, stale: float) -> None:
        self.folder, self.key, self.shards = folder, key, shards
        self._verify, self._stale = verify, stale

    @cached_property
    def name(self) -> str:
        """kind/hash, as the command line and other tables' keys refer to it."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def arrow_file(self, index: int) -> Path:
        return self.folder / f"{_stem(index)}.arrow"

    def checksum_file(self, index: int) -> Path:
        return self.folder / f"{_stem(index)}.json"

    # ---- reading

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

    def shard(self, index: int) -> pa.Table:
        """One shard, memory-mapped: its columns are views of the file. TOPRError when it is missing or damaged."""
        import pyarrow as pa

        if not 0 <= index < self.shards:
            raise IndexError(f"shard {index} of {self.shards}")
        fault = self.fault(index)
        if fault == MISSING:
            raise TOPRError(f"{self.arrow_file(index)} (shard {index} of {self.shards}) was never made")
        if fault is not None:
            raise TOPRError(f"{self.arrow_file(index)} is damaged ({fault}); the next run makes it again")
        with disk_errors(f"read {self.arrow_file(index)}"):
            return pa.ipc.open_file(pa.memory_map(str(self.arrow_file(index)))).read_all()

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

    def fault(self, index: int, *, always: bool = False) -> str | None:
        """What is wrong with a shard: None when it is whole, MISSING, or the damage in words.

        The checksum is computed when the store verifies and this process has not yet done so for this file;
        `always` computes it in any case.
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
        look = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, expected["blake2b"])
        if always or (self._verify and _verified.get(str(arrow)) != look):
            with disk_errors(f"read {arrow}"):
                if file_digest(arrow) != expected["blake2b"]:
                    _verified.pop(str(arrow), None)
                    return "its checksum is wrong"
            _verified[str(arrow)] = look
        return None

    # ---- writing

    def fill(
        self,
        make: Callable[[int], pa.Table],
        on_shard: Callable[[int, bool], None] | None = None,
        *,
        parallel: bool = True,
        on_wait: Callable[[str], None] = log.info,
    ) -> int:
        """Make the shards that are missing or damaged; return how many this process made.

        `make(index)` must be a function of the key and the index alone. Several processes may fill one table:
        with `parallel` they make different shards at the same time, without it one makes all and the others wait.
        `on_shard(index, made_here)` is called once a shard as soon as it is known to be whole; `on_wait(message)`
        when this process starts to wait for another.
        Raises TOPRError when the disk refuses; finished shards stay, so the same call goes on from there.
        """
        report = on_shard or (lambda index, made_here: None)
        made, patience = 0, _Patience(on_wait)
        pending = self._settle(range(self.shards), report, warn=True)
        if pending:
            self._prepare()
        while pending:
            finished, blocked = set(), None
            for claim_file, indices in self._units(pending, parallel):
                with disk_errors(f"write {claim_file}"):
                    claim = claims.take(claim_file, self._stale)
                if isinstance(claim, claims.Owner):
                    blocked = blocked or (claim, indices)
                    continue
                with claim:
                    for index in indices:
                        if self._make(index, make, claim):
                            finished.add(index)
                            report(index, True)
            made += len(finished)
            pending = self._settle([index for index in pending if index not in finished], report)
            if pending and blocked and not finished:
                patience.wait(self._describe_wait(*blocked, pending, parallel))
            else:
                patience.reset()
        self._tidy()
        return made

    def _settle(self, indices: Iterable[int], report: Callable[[int, bool], None], warn: bool = False) -> list[int]:
        """Report the shards that are whole; return the others."""
        pending = []
        for index in indices:
            fault = self.fault(index)
            if fault is None:
                report(index, False)
                continue
            pending.append(index)
            if warn and fault != MISSING:
                log.warning("%s is damaged (%s) and is made again", self.arrow_file(index), fault)
        return pending

    def _units(self, pending: list[int], parallel: bool) -> list[tuple[Path, list[int]]]:
        """What is claimed as one: each shard, or the whole table."""
        if not parallel:
            return [(self.folder / TABLE_CLAIM, pending)]
        return [(self.folder / f"{_stem(index)}{claims.SUFFIX}", [index]) for index in pending]

    def _describe_wait(self, owner: claims.Owner, indices: list[int], pending: list[int], parallel: bool) -> str:
        if parallel:
            return f"waiting for {owner}, which makes shard {indices[0]} of {self.shards} of {self.name}"
        return f"waiting for {owner}, which makes {self.name} ({len(pending)} of {self.shards} shards to go)"

    def _prepare(self) -> None:
        with disk_errors(f"write in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / KEY_FILE).exists():
                text = json.dumps({"shards": self.shards, "key": self.key}, indent=1, sort_keys=True)
                with suppress(FileNotFoundError):  # swept: another process wrote the same file
                    write_whole(self.folder / KEY_FILE, (text + "\n").encode())

    def _make(self, index: int, make: Callable[[int], pa.Table], claim: claims.Claim) -> bool:
        """Make one claimed shard; False when somebody else finished it or took the claim over."""
        if self.fault(index) is None:
            # Finished between our look and our claim; creating the claim made NFS forget what it had cached
            # of the folder, so this look is a fresh one.
            return False
        with disk_errors(f"write in {self.folder}"):
            for leftover in self.folder.glob(f"{_stem(index)}.*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)
        table = make(index)
        if not claim.kept() or self.fault(index) is None:
            return False  # taken for dead meanwhile; the new owner writes, and what is whole stays as it is
        data = _serialise(table)
        checksum = {"rows": table.num_rows, "bytes": data.nbytes, "blake2b": digest(data)}
        with disk_errors(f"write {self.arrow_file(index)}", self._what_is_kept):
            try:
                self.checksum_file(index).unlink(missing_ok=True)
                write_whole(self.arrow_file(index), data)
                write_whole(self.checksum_file(index), (json.dumps(checksum) + "\n").encode())
            except FileNotFoundError:
                return False  # taken for dead, and the process that took over swept our temporary
        return True

    def _what_is_kept(self) -> str:
        done = self.shards - len(self.missing())
        return f"; {done} of {self.shards} shards are kept and the same command goes on from there"

    def _tidy(self) -> None:
        """A complete table: note its use (for pruning by age) and remove what killed processes left."""
        with suppress(OSError):  # a store that others own, or read-only: reading it is enough
            os.utime(self.folder / KEY_FILE)
            for path in self.folder.iterdir():
                if path.name.endswith(TEMPORARY):
                    path.unlink(missing_ok=True)  # its final file exists, so even a living writer does not need it
                elif claims.SUFFIX in path.name:
                    seen = claims.look(path)
                    if seen is not None and not claims.is_alive(seen, self.folder, self._stale):
                        claims.remove(path, seen, self._stale)


class _Patience:
    """Pauses that grow while the same message holds, which is told once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told, self._pause = tell, "", POLL_SECONDS[0]

    def wait(self, message: str) -> None:
        if message != self._told:
            self._tell(message)
            self._told = message
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, POLL_SECONDS[1])

    def reset(self) -> None:
        self._pause = POLL_SECONDS[0]


def read_key(folder: Path) -> tuple[dict[str, Any], int]:
    """Key and number of shards from a table's key.json; TOPRError when it can't be read."""
    path = folder / KEY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return dict(stored["key"]), int(stored["shards"])
    except OSError as error:
        raise TOPRError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TOPRError(f"{path} is damaged ({error}); remove the folder to make it again") from error


def _stem(index: int) -> str:
    return f"shard-{index:05d}"


def _read_checksum(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_bytes())
        return {"rows": int(stored["rows"]), "bytes": int(stored["bytes"]), "blake2b": str(stored["blake2b"])}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"its checksum file {path.name} is not readable") from None


def _serialise(table: pa.Table) -> memoryview:
    """The bytes of an Arrow IPC file with one record batch: the same for equal tables, however they were chunked."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return memoryview(sink.getvalue())
