"""Lock of a run's folder, which keeps other processes out and shows that the run is alive."""

import time
from pathlib import Path

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.terminal import warn_once
from topr_exp.types import TOPRError

CLAIM = "run.claim"
LOST_NODE_SECONDS = 120.0  # NFS servers keep the locks of a silent client for 90


def find_owner(claim: Path) -> locks.Owner | None:
    """Find the process that holds a claim; None for no process."""
    with disk_errors(f"read {claim}"):
        return locks.living_owner(claim)


def lock_run_folder(folder: Path, name: str = CLAIM, activity: str = "run") -> locks.Lock:
    """Lock a folder, which is made if need be; TOPRError if another process has it.

    Waits for an owner on another machine as long as file servers keep a lost node's locks: its run may start at once.
    activity: what is done with the folder, as in "is being run".
    """
    deadline = time.monotonic() + LOST_NODE_SECONDS
    with disk_errors(f"write in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            lock_or_owner = locks.acquire(folder / name)
            if isinstance(lock_or_owner, locks.Lock):
                return lock_or_owner
            owner = lock_or_owner
            if owner.is_on_this_host() or time.monotonic() > deadline:
                remedy = "wait for it, or stop it and start again"
                if not owner.is_on_this_host():
                    # NFS 3 keeps it until that machine is back. What its process still writes is refused.
                    remedy += f"; if that machine is lost, remove {folder / name}"
                raise TOPRError(f"{folder} is being {activity} by process {owner}; {remedy}")
            warn_once(f"waiting for process {owner}, which has {folder}")
            time.sleep(1.0)
