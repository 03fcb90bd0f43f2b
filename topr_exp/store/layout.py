"""Names of a store's folders and files, and the hash that names a table."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from topr_exp.runtime import locks
from topr_exp.runtime.files import TEMPORARY

KIND = re.compile(r"[a-z][a-z0-9_]*")  # name of a folder of tables
HASH = re.compile(r"[0-9a-f]{16}")  # name of a table's folder
HASH_BYTES = 8
KEY_FILE = "key.json"
SHARD = "shard-"  # begins the names of a shard's files
MARKER = "STORE"  # marks a folder as a store
# Files that may be removed: in a folder that somebody else packed, other names may be anything.
SHARD_LOCK = re.compile(rf"{SHARD}\d{{5,}}\{locks.SUFFIX}")
TEMPORARY_FILE = re.compile(rf"(?:key\.json|{SHARD}\d{{5,}}\.arrow)\.[0-9a-f]+\{TEMPORARY}")


def canonical_json(key: Mapping[str, Any]) -> str:
    """Return the one JSON text of a key: members sorted, no spaces, ASCII only; equal keys give equal texts.

    1, 1.0 and true differ, as in JSON. Tuples count as lists. Values beyond JSON (NaN, other types) raise ValueError or
    TypeError.
    """
    return json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_hash(key: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of BLAKE2b over the canonical JSON."""
    return hashlib.blake2b(canonical_json(key).encode("ascii"), digest_size=HASH_BYTES).hexdigest()


def shard_path(folder: Path, index: int) -> Path:
    """Return the file of a table's shard."""
    return folder / f"{SHARD}{index:05d}.arrow"


def foreign_entries(root: Path) -> list[str]:
    """List the entries of a store's folder that are no part of a store; hidden and unreadable ones are ignored."""
    names = []
    for path in sorted(root.iterdir()):
        is_ignored = path.name == MARKER or path.suffix == TEMPORARY or path.name.startswith(".")
        if not is_ignored and not _is_kind_folder(path):
            names.append(path.name)
    return names


def _is_kind_folder(path: Path) -> bool:
    """True for a folder that holds folders of tables only, or may not be read."""
    if not KIND.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    with suppress(PermissionError):
        return all(HASH.fullmatch(entry.name) or entry.name.startswith(".") for entry in path.iterdir())
    return True
