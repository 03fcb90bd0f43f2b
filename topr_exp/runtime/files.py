"""Files and folders written whole or not at all, checksums, JSON, and the one-line errors of a disk that refuses.

A folder of weights (a checkpoint, a trained model) carries `checksums.json`: the SHA-256 of each of its files by name,
and under its own name that of the list, so that a list that lost entries is found as well.
"""

import errno
import importlib.util
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from topr_exp.types import TOPRError

TEMPORARY = ".tmp"  # ends the name of every file that may be deleted at any time
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # in the messages of libraries in Rust

_guards: dict[Path, Callable[[], None]] = {}  # folder -> what forbids writing below it, by raising


@contextmanager
def disk_errors(doing: str, note: Callable[[], str] = str) -> Iterator[None]:
    """Turn an OSError of the block, or a Rust library's, into a TOPRError "cannot <doing>: <reason><note>"."""
    try:
        yield
    except Exception as error:
        if (reason := disk_reason(error)) is None:
            raise
        raise TOPRError(f"cannot {doing}: {reason}{note()}") from error


def disk_reason(error: Exception) -> str | None:
    """Why a disk refused, where that is what an exception says; tokenizers raises a bare Exception for it."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    of_rust = OS_ERROR.search(str(error))
    if of_rust is not None and type(error) in (Exception, SafetensorError):
        return os.strerror(int(of_rust[1]))
    return str(error) if isinstance(error, SafetensorError) else None


def unique_name() -> str:
    return os.urandom(6).hex()


def open_own_file(path: Path | str, flags: int) -> int:
    """Descriptor of a file that only this project's processes write; an `opener` for `open`.

    OSError where the name leads to another file (a symbolic or hard link, in a folder that somebody else packed) or to
    no regular file: a FIFO would block, a device may do anything.
    """
    safe_flags = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, safe_flags, 0o666)  # less what the umask takes away
    except OSError as error:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a FIFO without a reader, a socket
            raise OSError(errno.ENXIO, "it is no regular file", str(path)) from None
        raise
    try:
        refuse_irregular(path, descriptor)
        if os.fstat(descriptor).st_nlink > 1:
            raise OSError(errno.EMLINK, "another name is linked to it", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """A file to read, through links too; OSError at once for a FIFO or a device, which would block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        refuse_irregular(path, descriptor)
        yield file


def refuse_irregular(path: Path | str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_file(path: Path) -> bytes:
    """What a regular file holds; OSError as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def find_module_file(module: str) -> Path | None:
    """Find the file of a module without importing it; None where it has none."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None and Path(spec.origin).is_file() else None


def list_files(folder: Path, *patterns: str) -> list[Path]:
    """The entries of a folder whose names match one of some patterns, by name; OSError. (`glob` leaves errors out.)"""
    return sorted(path for path in folder.iterdir() if any(path.match(pattern) for pattern in patterns))


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
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
        check_guards(path)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, or what a file holds."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: memoryview | bytes) -> None:
    """Write a file as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by `text`, atomically; TOPRError (one line) when the disk refuses."""
    with disk_errors(f"write {path}"):
        write_bytes(path, text.encode())


@contextmanager
def guard_writes(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """While the block runs, call `check` before any file or folder is put into place below `folder`."""
    _guards[folder] = check
    try:
        yield
    finally:
        del _guards[folder]


def check_guards(path: Path) -> None:  # called last, since flushing may have taken long
    """Raise what forbids writing below a folder that `path` is in."""
    for folder, check in list(_guards.items()):
        if path.is_relative_to(folder):
            check()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` (replacing it) when the block ends; its files get the folder's rights."""
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    with disk_errors(f"write {path}"):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            rights = temporary.stat().st_mode & 0o666
            for entry in [*temporary.rglob("*"), temporary]:
                if entry.is_file():
                    entry.chmod(rights)
                sync_folder(entry)  # opening and fsync work alike on files and folders
            check_guards(path)
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(path.parent)
