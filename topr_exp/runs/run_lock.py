"""Lock of a run's folder."""

import time
from pathlib import Path

from topr_exp.runtime import locks
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.terminal import warn
from topr_exp.types import TOPRError

CLAIM = "run.claim"
LOST_NODE_SECONDS = 120.0  # NFS servers keep the locks of a silent client for 90


def lock_run_folder(path: Path, name: str = CLAIM, doing: str = "run") -> locks.Lock:
    """Keep other processes out of a folder, which is made if need be; TOPRError when another process has it.

    Waits for an owner on another machine as long as file servers keep a lost node's locks: its run may start at once.
    """
    began, told = time.monotonic(), False
    with disk_errors(f"write in {path}"):
        path.mkdir(parents=True, exist_ok=True)
        while not isinstance(lock := locks.acquire(path / name), locks.Lock):
            if lock.is_on_this_host() or time.monotonic() > began + LOST_NODE_SECONDS:
                raise TOPRError(f"{path} is being {doing} by process {lock}; wait for it, or stop it and start again")
            if not told:
                warn(f"waiting for process {lock}, which has {path}")
            told = True
            time.sleep(1.0)
    return lock
