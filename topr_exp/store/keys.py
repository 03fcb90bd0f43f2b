"""Keys of tables: a table's folder is named by the hash of all that decides its rows, and holds that as key.json."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import TEMPORARY
from topr_exp.types import TOPRError

KEY_FILE = "key.json"
MARKER = "STORE"  # marks a folder as a store
KIND_NAMES = re.compile(r"[a-z][a-z0-9_]*")
HASHES = re.compile(r"[0-9a-f]{16}")
HASH_BYTES = 8  # 64 bits; a collision is noticed, because key.json holds the whole key


def foreign_entries(root: Path) -> list[str]:
    """List what is in a store's folder and no part of one; hidden entries, and ones that may not be read, aside."""
    return [
        path.name for path in sorted(root.iterdir()) if not (path.name == MARKER or is_passing(path) or is_kind(path))
    ]


def is_kind(path: Path) -> bool:
    """Check that a folder holds nothing but tables, by their names."""
    if not KIND_NAMES.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    with suppress(PermissionError):
        return all(HASHES.fullmatch(each.name) or is_passing(each) for each in path.iterdir())
    return True


def is_passing(path: Path) -> bool:
    """Check that an entry is hidden, or a temporary of a process at work."""
    return path.name.startswith(".") or path.name.endswith(TEMPORARY)


def read_key(folder: Path) -> tuple[dict[str, Any], int]:
    """Key and number of shards from a table's key.json; TOPRError when it can't be read or is another table's."""
    path, imported = folder / KEY_FILE, folder.parent.name == "imported"
    remedy = f"remove the folder to {'import its file' if imported else 'make it'} again"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        key, shards = dict(stored["key"]), int(stored["shards"])
        named = key_hash(key)
    except OSError as error:
        raise TOPRError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, TOPRError) as error:
        raise TOPRError(f"{path} is damaged ({error}); {remedy}") from error
    if named != folder.name:
        raise TOPRError(f"{path} holds another key than its folder's name says; damaged: {remedy}")
    return key, shards


def canonical(key: Mapping[str, Any]) -> str:
    """The one JSON text of a key: members sorted, no spaces, ASCII only; equal keys give equal texts.

    1, 1.0 and true are three different values, as they are in JSON. Tuples count as lists.
    Raises TOPRError for what JSON can't hold (NaN, infinities, other types).
    """
    try:
        return json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TOPRError(f"a store key holds JSON values only: {error}") from None


def key_hash(key: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of BLAKE2b over the canonical JSON."""
    return hashlib.blake2b(canonical(key).encode("ascii"), digest_size=HASH_BYTES).hexdigest()
