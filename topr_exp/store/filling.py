"""Filling a table together with other processes: each makes shards that nobody else makes, then waits for the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topr_exp.runtime import locks
from topr_exp.runtime.files import TEMPORARY, disk_errors
from topr_exp.runtime.stop import StopFlag
from topr_exp.store.shards import MISSING, Shards, stem

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

POLL_SECONDS = (0.02, 1.0)  # first and longest pause before a lock of somebody else is asked for again


class Filling:
    """What this process does to make a table complete; the arguments are those of `Table.fill`."""

    def __init__(
        self,
        shards: Shards,
        name: str,
        make: Callable[[int], pa.Table],
        on_shard: Callable[[int, bool], None],
        on_wait: Callable[[str], None],
        stop: StopFlag,
    ) -> None:
        self._shards, self._name, self._make, self._on_shard = shards, name, make, on_shard
        self._wait, self._stop = _Wait(on_wait), stop
        self._pending = list(range(shards.shards))  # not known to be whole

    def run(self) -> int:
        """Make shards until none is pending; returns how many this process made."""
        made = 0
        self._pass_whole_shards(warn=True)
        while self._pending:
            finished, blocked = self._make_free_shards()
            made += len(finished)
            self._pending = [index for index in self._pending if index not in finished]
            self._pass_whole_shards()
            if self._pending and blocked and not finished:
                self._wait.pause(self._describe_wait(*blocked))
            else:
                self._wait.reset()
        return made

    def _pass_whole_shards(self, *, warn: bool = False) -> None:
        """Report the pending shards that are whole by now, and keep the others."""
        pending = []
        for index in self._pending:
            fault = self._shards.fault(index)
            if fault is None:
                self._on_shard(index, False)
                continue
            pending.append(index)
            if warn and fault != MISSING:
                log.warning("%s is damaged (%s) and is made again", self._shards.arrow_file(index), fault)
        self._pending = pending

    def _make_free_shards(self) -> tuple[set[int], tuple[locks.Owner, int] | None]:
        """Make what nobody else makes; returns that, and another owner with a shard that it holds, if there is one."""
        finished, blocked = set(), None
        for index in self._pending:
            self._stop.check()
            path = self._shards.folder / f"{stem(index)}{locks.SUFFIX}"
            with disk_errors(f"write {path}"):
                lock = locks.acquire(path)
            if isinstance(lock, locks.Owner):
                blocked = blocked or (lock, index)
                continue
            with lock:
                if self._make_shard(index):
                    finished.add(index)
                    self._on_shard(index, True)
        return finished, blocked

    def _make_shard(self, index: int) -> bool:
        """Make one shard; False when somebody else finished it."""
        shards = self._shards
        if shards.fault(index) is None:
            # Finished after we found it missing and before we had the lock. Creating that made NFS forget what it
            # had cached of the folder, so what we see now is true.
            return False
        with disk_errors(f"write in {shards.folder}"):
            for leftover in shards.folder.glob(f"{stem(index)}.*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)
        table = self._make(index)
        if shards.fault(index) is None:
            return False  # made by another process without locks: what is whole stays as it is
        before = shards.known_digest(index)
        written = shards.write_shard(index, table)
        if before not in (None, shards.known_digest(index)):
            log.warning(
                "%s is not what it was before it was damaged (by another program, or on a GPU); what was made from the "
                "old one doesn't fit it: python -m topr_exp.store prune --key %s --yes, then the same command again",
                shards.arrow_file(index), self._name,
            )  # fmt: skip
        return written

    def _describe_wait(self, owner: locks.Owner, index: int) -> str:
        return f"waiting for {owner}, which makes shard {index} of {self._shards.shards} of {self._name}"


class _Wait:
    """Pauses that grow while the same message holds, which is told once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told, self._seconds = tell, "", POLL_SECONDS[0]

    def pause(self, message: str) -> None:
        if message != self._told:
            self._tell(message)
            self._told = message
        time.sleep(self._seconds)
        self._seconds = min(self._seconds * 1.5, POLL_SECONDS[1])

    def reset(self) -> None:
        self._seconds = POLL_SECONDS[0]
