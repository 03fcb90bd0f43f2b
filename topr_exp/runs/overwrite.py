"""`overwrite=true`: a run's folder moves to `replaced/` beside it."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

from topr_exp.runs.run_lock import CLAIM, lock_run_folder
from topr_exp.runtime import distributed
from topr_exp.runtime.files import disk_errors, sync
from topr_exp.runtime.terminal import say

REPLACED = "replaced"  # beside runs: what `overwrite` moved aside


def move_overwritten_folder(config: Any) -> Any:
    """Move a run's folder to `replaced/` beside it where `overwrite` asks for it; returns settings that go on."""
    if config.overwrite:
        move_aside(config.folder)
    return dataclasses.replace(config, overwrite=False)


@distributed.main_process_only
def move_aside(folder: Path) -> None:
    if not folder.exists():
        return
    names = (f"{folder.name}-{number}" for number in itertools.count(1))
    target = next(path for name in names if not (path := folder.parent / REPLACED / name).exists())
    with lock_run_folder(folder), disk_errors(f"move {folder} to {target}"):
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        for changed in (target.parent, folder.parent):
            sync(changed)
        (target / CLAIM).unlink(missing_ok=True)
    say(f"overwrite=true: what was in {folder} is now in {target}; without overwrite=true the command goes on")
