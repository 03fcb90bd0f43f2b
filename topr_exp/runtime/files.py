"""Files and folders written whole or not at all, checksums, and the one-line errors of a disk that refuses.

A folder of weights (a checkpoint, a trained model) carries `checksums.json`: the SHA-256 of each of its files by name,
and under its own name that of the list, so that a list that lost entries is found as well.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from topr_exp.runtime.jsonfiles import read_object
from topr_exp.types import TOPRError

TEMPORARY = ".tmp"  # ends the name of every file that may be deleted at any time
DIGEST_BYTES = 16
CHECKSUMS = "checksums.json"

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit (ulimit -f)",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
}
_guards: dict[Path, Callable[[], None]] = {}  # folder -> what forbids writing below it, by raising


@contextmanager
def disk_errors(doing: str, note: Callable[[], str] = str) -> Iterator[None]:
    """Turn an OSError of the block into a TOPRError "cannot <doing>: <reason><note>"."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise TOPRError(f"cannot {doing}: {reason}{note()}") from error


def unique_name() -> str:
    """12 hexadecimal digits that no other process has."""
    return os.urandom(6).hex()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flushed_sha256(path: Path) -> str:
    """SHA-256 of a file that was just written, which reaches the disk meanwhile: neither waits for the other."""
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(sync_folder, path)  # opening and fsync work alike on files and folders
        found = file_digest(path)
        flushing.result()
    return found


def write_checksums(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the checksums of the files in a folder beside them, those that are `known` as given."""
    found = dict(known or {})
    for path in folder.iterdir():
        if path.is_file() and path.name not in found:
            found[path.name] = flushed_sha256(path)
    write_json(folder / CHECKSUMS, {**found, CHECKSUMS: _sha256_of_list(found)})


def find_damage(folder: Path, known: Mapping[str, str] | None = None, part: slice = slice(None)) -> str | None:
    """The first file of a folder that is not what its checksums say, in words; None where all are right.

    known: checksums that were computed before. part: of the names, where several processes share the work.
    """
    listed = read_object(folder / CHECKSUMS)[0]
    if listed.pop(CHECKSUMS, None) != _sha256_of_list(listed):
        return f"{CHECKSUMS} is no whole list of checksums"
    for name in sorted(listed)[part]:
        try:
            if ((known or {}).get(name) or file_digest(folder / name)) != listed[name]:
                return f"{name} has another checksum"
        except OSError as error:
            return f"{name}: {error.strerror or error}"
    return None


def _sha256_of_list(checksums: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all when the block ends, also after a power cut.

    FileNotFoundError means that somebody swept the temporary file: the file was made by another.
    """
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    try:
        # Not tempfile: its mode 0600 would lock a group's other members out of a shared store.
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_guards(path)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: memoryview | bytes) -> None:
    """Write a file as `whole_file` does."""
    with whole_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by `text`, atomically; TOPRError (one line) when the disk refuses."""
    with disk_errors(f"write {path}"):
        write_whole(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value` as JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def guarded(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `check` before any file or folder is put into place below `folder`."""
    _guards[folder] = check
    try:
        yield
    finally:
        del _guards[folder]


def _check_guards(path: Path) -> None:  # called last, since flushing may have taken long
    for folder, check in list(_guards.items()):
        if path.is_relative_to(folder):
            check()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` (replacing it) when the block ends without an error.

    Its files have the folder's rights: some libraries write theirs for their owner alone.
    """
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    with disk_errors(f"write {path}"), library_errors():
        temporary.mkdir(parents=True)
        try:
            yield temporary
            rights = temporary.stat().st_mode & 0o666
            for entry in [*temporary.rglob("*"), temporary]:
                if entry.is_file():
                    entry.chmod(rights)
                sync_folder(entry)  # opening and fsync work alike on files and folders
            _check_guards(path)
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(path.parent)


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise as OSError what safetensors reports in its own way when the disk refuses a write."""
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if type(error).__name__ == "SafetensorError" and number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise
