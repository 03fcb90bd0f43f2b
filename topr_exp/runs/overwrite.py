"""`overwrite=true`: a run's folder moves to `replaced/` beside it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.runs.run_lock import CLAIM, lock_run_folder
from topr_exp.runtime import distributed
from topr_exp.runtime.files import disk_errors, refuse_linked_folders, sync
from topr_exp.runtime.terminal import say

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

REPLACED = "replaced"


def move_overwritten_folder(config: "Config") -> "Config":
    """Move a run's folder aside where `overwrite` asks for it; return settings without `overwrite`."""
    if config.overwrite:
        move_aside(config.folder)
    return dataclasses.replace(config, overwrite=False)


@distributed.main_process_only
def move_aside(folder: Path) -> None:
    """Move a folder to `replaced/` under a new number; TOPRError if a run is at work in it."""
    if not folder.exists():
        return
    refuse_linked_folders(folder.parent, REPLACED)
    target = unused_path(folder)
    with lock_run_folder(folder), disk_errors(f"move {folder} to {target}"):
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        sync(target.parent)
        sync(folder.parent)
        (target / CLAIM).unlink(missing_ok=True)
    say(f"overwrite=true: what was in {folder} is now in {target}; without overwrite=true the command goes on")


def unused_path(folder: Path) -> Path:
    number = 1
    while (path := folder.parent / REPLACED / f"{folder.name}-{number}").exists():
        number += 1
    return path
