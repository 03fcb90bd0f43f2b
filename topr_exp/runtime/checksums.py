"""SHA-256 checksums: of files, and lists of them beside a folder's files."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from topr_exp.runtime.files import disk_errors, open_regular
from topr_exp.runtime.json_files import read_object, write_json

CHECKSUMS = "checksums.json"


def file_digest(path: Path) -> str:
    """SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_digest(path: Path) -> str:
    """SHA-256 of a file, which this process reads once while its size and time stay."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _digest(path: Path, size: int, changed: int) -> str:
    return file_digest(path)


def write_checksums(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the checksums of the files in a folder beside them, those that are `known` as given."""
    checksums = dict(known or {})
    for path in folder.iterdir():
        if path.is_file() and path.name not in checksums:
            checksums[path.name] = file_digest(path)
    write_checksum_list(folder / CHECKSUMS, checksums)


def write_checksum_list(path: Path, checksums: Mapping[str, str]) -> None:
    """Write a list of checksums, with its own under its own name."""
    write_json(path, {**checksums, path.name: _sha256_of_list(checksums)})


def read_checksum_list(path: Path) -> dict[str, Any] | None:
    """The checksums of a list by file; None where it is not whole, or names what lies outside of its folder."""
    checksums = read_object(path)[0]
    if checksums.pop(path.name, None) != _sha256_of_list(checksums):
        return None
    names = [PurePosixPath(name) for name in checksums]
    outside = any(name.is_absolute() or ".." in name.parts for name in names)
    return None if outside else checksums


def find_damage(folder: Path, known: Mapping[str, str] | None = None, part: slice = slice(None)) -> str | None:
    """The first file of a folder (of a part of its names) that is not as its checksums or `known` ones say; or None.

    A file that is there and can't be read is a TOPRError: whether it is damaged is not known.
    """
    checksums = read_checksum_list(folder / CHECKSUMS)
    if checksums is None:
        return f"{CHECKSUMS} is no whole list of checksums"
    listed = {name: checksums[name] for name in sorted(checksums)[part]}
    return next(list_damage(folder, listed, known), None)


def list_damage(folder: Path, checksums: Mapping[str, Any], known: Mapping[str, str] | None = None) -> Iterator[str]:
    """What is wrong with each file that is not as its checksum says, in words; known: SHA-256 of files read before.

    TOPRError for a file that is there and can't be read.
    """
    for name in sorted(checksums):
        with disk_errors(f"read {folder / name}"):
            try:
                digest = (known or {}).get(name) or file_digest(folder / name)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                yield f"{name}: {error.strerror or error}"
                continue
        if digest != checksums[name]:
            yield f"{name} has another checksum"


def _sha256_of_list(checksums: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
