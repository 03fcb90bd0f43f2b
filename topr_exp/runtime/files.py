"""Files and folders written whole or not at all, checksums, and the one-line errors of a disk that refuses."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from topr_exp.types import TOPRError

TEMPORARY = ".tmp"  # ends the name of every file that may be deleted at any time
DIGEST_BYTES = 16

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than the limit (ulimit -f)",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "the file system is read-only",
}


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


def digest(data: memoryview | bytes) -> str:
    """BLAKE2b of bytes in memory, 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def file_digest(path: Path) -> str:
    """The same of a file, read in small pieces: memory stays constant and nothing is mapped."""
    state, piece = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            state.update(piece[:count])
    return state.hexdigest()


def flushed_digest(path: Path) -> str:
    """The digest of a file that was just written, which reaches the disk meanwhile: neither waits for the other."""
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(sync_folder, path)  # opening and fsync work alike on files and folders
        found = file_digest(path)
        flushing.result()
    return found


def write_whole(path: Path, data: memoryview | bytes) -> None:
    """Write a file as `whole_file` does."""
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all when the block ends, also after a power cut.

    A temporary beside it, fsync, rename, fsync of the folder. On any error the temporary is removed and the
    error goes on. FileNotFoundError means that somebody swept the temporary: the file was made by another.
    """
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    try:
        # Not tempfile: its mode 0600 would lock a group's other members out of a shared store.
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
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


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by `text`, atomically; TOPRError (one line) when the disk refuses."""
    with disk_errors(f"write {path}"):
        write_whole(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value` as JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` (replacing it) when the block ends without an error."""
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    with disk_errors(f"write {path}"), library_errors():
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for entry in [*temporary.rglob("*"), temporary]:
                sync_folder(entry)  # opening and fsync work alike on files and folders
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(path.parent)


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise as OSError what torch and safetensors report in their own way when the disk refuses a write."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # of the open file that torch.save was given
            raise error.__context__ from None
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if type(error).__name__ == "SafetensorError" and number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise
