"""SHA-256 checksums of files, and the lists of them that folders of weights and finished runs carry.

A list holds its own checksum under its own name, so that lost entries are found as well.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from topr_exp.runtime.files import disk_errors, open_regular
from topr_exp.runtime.json_files import read_object, write_json

CHECKSUMS = "checksums.json"
ABSENCES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a regular file; OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once per process while its size and modification time stay; OSError."""
    status = path.stat()
    return _digest_of_version(path, status.st_size, status.st_mtime_ns)


@functools.cache  # of any number of files: a log may have thousands
def _digest_of_version(path: Path, size: int, modified_ns: int) -> str:
    """Return the SHA-256 of a file; size and modification time only tell the cache its versions apart."""
    return file_digest(path)


def write_checksums(folder: Path, known_digests: Mapping[str, str] | None = None) -> None:
    """Write the checksums of a folder's files into it, without reading those whose digests are known."""
    checksums = dict(known_digests or {})
    for path in folder.iterdir():
        if path.is_file() and path.name not in checksums:
            checksums[path.name] = file_digest(path)
    write_checksum_list(folder / CHECKSUMS, checksums)


def find_damage(folder: Path, known_digests: Mapping[str, str] | None = None, part: slice = slice(None)) -> str | None:
    """Describe the first file of a folder that differs from its checksum; None for none.

    part: of the sorted file names, to check. TOPRError for a file that exists and can't be read, damaged or not.
    """
    checksums = read_checksum_list(folder / CHECKSUMS)
    if checksums is None:
        return f"{CHECKSUMS} is no whole list of checksums"
    names = sorted(checksums)[part]
    faults = list_damage(folder, {name: checksums[name] for name in names}, known_digests)
    return next(faults, None)


def list_damage(
    folder: Path, checksums: Mapping[str, Any], known_digests: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Describe each file that differs from its checksum; TOPRError for a file that exists and can't be read."""
    known_digests = known_digests or {}
    for name in sorted(checksums):
        path = folder / name
        with disk_errors(f"read {path}"):
            try:
                digest = known_digests.get(name) or file_digest(path)
            except ABSENCES as error:
                yield f"{name}: {error.strerror or error}"
                continue
        if digest != checksums[name]:
            yield f"{name} has another checksum"


def write_checksum_list(path: Path, checksums: Mapping[str, str]) -> None:
    """Write checksums by file name, and the list's own under its own name."""
    write_json(path, {**checksums, path.name: _digest_of_list(checksums)})


def read_checksum_list(path: Path) -> dict[str, Any] | None:
    """Return checksums by file name; None for a list that is incomplete or names files outside its folder."""
    checksums, _ = read_object(path)
    if checksums.pop(path.name, None) != _digest_of_list(checksums):
        return None
    for name in checksums:
        relative_path = PurePosixPath(name)
        if relative_path.is_absolute() or ".." in relative_path.parts:
            return None
    return checksums


def _digest_of_list(checksums: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
