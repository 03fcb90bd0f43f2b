"""A store's folder on the disk: the file that marks it, its tables, and what the store did not make.

root/kind/<hash of the key>/ is a table where key.json can be read and its key has that hash. Everything else is left
alone, but for folders of such a name that hold only what the store writes: damaged tables.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import TEMPORARY, write_whole
from topr_exp.types import TOPRError

KEY_FILE = "key.json"
SHARD = "shard-"  # begins the names of a shard's files
MARKER = "STORE"
MARK = "Tables that runs of topr_exp share: `python -m topr_exp.store` lists, verifies and prunes them.\n"
KIND_NAMES = re.compile(r"[a-z][a-z0-9_]*")
HASHES = re.compile(r"[0-9a-f]{16}")


@dataclass
class Survey:
    """The entries of a store's folder, hidden ones aside."""

    tables: dict[Path, str] = field(default_factory=dict)  # with the damage of key.json, "" where there is none
    foreign: list[Path] = field(default_factory=list)  # not made by a store
    unseen: list[Path] = field(default_factory=list)  # this user may not read them


def survey(root: Path) -> Survey:
    """Sort all entries of a store's folder; OSError where it can't be read."""
    found = Survey()
    for kind in visible(root):
        try:
            if KIND_NAMES.fullmatch(kind.name) and kind.is_dir():
                for folder in visible(kind):
                    _sort(folder, found)
            elif kind.name != MARKER and not kind.name.endswith(TEMPORARY):
                found.foreign.append(kind)
        except PermissionError:
            found.unseen.append(kind)
    return found


def _sort(folder: Path, found: Survey) -> None:
    if not HASHES.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        found.foreign.append(folder)
        return
    try:
        read_key(folder)
        found.tables[folder] = ""
    except TOPRError as error:
        if isinstance(error.__cause__, PermissionError):
            found.unseen.append(folder)
        elif all(path.name.startswith((KEY_FILE, SHARD)) for path in visible(folder)):
            found.tables[folder] = str(error)
        else:
            found.foreign.append(folder)


def visible(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, by name."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def mark(root: Path) -> None:
    """Mark a folder that is empty or holds only tables as a store: `prune` removes nothing from any other."""
    with suppress(PermissionError):  # a store of others: they mark it
        if (root / MARKER).exists():
            return
        if root.exists() and (found := survey(root)) and (found.foreign or found.unseen):
            return
        root.mkdir(parents=True, exist_ok=True)
        write_whole(root / MARKER, MARK.encode())


def refuse_unmarked(root: Path, found: Survey) -> None:
    """TOPRError for a folder from which `prune` may remove nothing: it holds more than a store, or was never marked."""
    if found.foreign:
        raise TOPRError(f"{root} holds {found.foreign[0]}, which is no table of a store; nothing is removed from there")
    if not (root / MARKER).exists():
        raise TOPRError(
            f"{root} has no file {MARKER}, which marks a store; the next run that uses the store writes it, or "
            f"`touch {root / MARKER}`; nothing is removed before"
        )


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


HASH_BYTES = 8  # 64 bits; a collision is noticed, because key.json holds the whole key


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
