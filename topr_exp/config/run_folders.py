"""Names of runs and of their sweeps' folders, and the folder that a run has already."""

import errno
import functools
import os
import re
from pathlib import Path

from topr_exp.schema import Range
from topr_exp.types import TOPRError

# Folders of output_dir, or of a run, that are no sweep's.
RESERVED_NAMES = ("store", "check", "model", "wandb", "tensorboard", "checkpoints", "report", "replaced")
HASH = re.compile(r"_[0-9a-f]{10}\Z")  # at the end of a run's name
HASH_LENGTH = 11  # characters, the _ among them


def is_name(name: str) -> bool:
    """True for a name that a sweep's folder can have."""
    is_safe = name[:1].isalnum() and all(character.isalnum() or character in "._-" for character in name)
    return is_safe and len(name.encode()) <= 100 and name not in RESERVED_NAMES


NAME = Range(
    f"1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit, and none of {', '.join(RESERVED_NAMES)}",
    is_name,
)


def folder_of(parent: Path, name: str) -> Path:
    """The folder `name` in `parent`, or where there is none, the one whose name has the same hash.

    The hash alone says what a run is. The words before it change with what a release or a YAML has for a default.
    """
    folder = parent / name
    try:
        if os.path.lexists(folder):
            return folder
        return list_hashed_folders(parent, parent.stat().st_mtime_ns).get(name[-HASH_LENGTH:], folder)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):  # a folder of the run may be there
            raise TOPRError(f"{parent} can't be read ({error.strerror})") from None
        return folder  # none there; what can't be written in is refused later


@functools.lru_cache(maxsize=8)
def list_hashed_folders(parent: Path, modified: int) -> dict[str, Path]:
    """The folders of runs in `parent`, by the hash at the end of their names.

    modified: time of its last change, in ns, so that a changed folder is listed anew.
    """
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if HASH.search(entry.name) and entry.is_dir()]
    return {name[-HASH_LENGTH:]: parent / name for name in names}
