"""Files and folders that are replaced whole or not at all, opened safely, with one-line errors of a failing disk."""

import errno
import importlib.util
import io
import math
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

TEMPORARY = ".tmp"  # suffix of files and folders that may be deleted at any time
RUST_OS_ERROR = re.compile(r"\(os error (\d+)\)")

_write_guards: dict[Path, Callable[[], None]] = {}  # by the folder below which they forbid writes, by raising


# ---- errors


@contextmanager
def disk_errors(action: str, note: str = "") -> Iterator[None]:
    """Turn an OSError of the block, or of a Rust library, into a TOPRError "cannot <action>: <reason><note>"."""
    try:
        yield
    except Exception as error:
        reason = disk_reason(error)
        if reason is None:
            raise
        raise TOPRError(f"cannot {action}: {reason}{note}") from error


def disk_reason(error: Exception) -> str | None:
    """Return the disk's reason for an error; None for other errors. (tokenizers raises bare Exceptions.)"""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    rust_error = RUST_OS_ERROR.search(str(error))
    if rust_error is not None and type(error) in (Exception, SafetensorError):
        return os.strerror(int(rust_error[1]))
    if isinstance(error, SafetensorError):
        return str(error)
    return None


# ---- reading


def open_own_file(path: Path | str, flags: int) -> int:
    """Open a file that only this project's processes write; an `opener` for `open`.

    OSError as `open_in_place`, and for a hard link, which may lead out of a folder that a stranger packed, too.
    """
    descriptor = open_in_place(path, flags & ~os.O_TRUNC)  # truncated below, once it is known to be the project's
    try:
        if os.fstat(descriptor).st_nlink > 1:
            raise OSError(errno.EMLINK, "another name is linked to it", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_in_place(path: Path | str, flags: int) -> int:
    """Open a file where its name stands.

    OSError for a symbolic link, and for anything but a regular file: a FIFO would block, a device may do anything.
    """
    safe_flags = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, safe_flags, 0o666)  # less the umask
    except OSError as error:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a FIFO without a reader, a socket
            raise OSError(errno.ENXIO, "it is no regular file", str(path)) from None
        raise
    try:
        refuse_irregular(path, descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file to read, also through links; OSError for a FIFO or a device, which would block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        refuse_irregular(path, descriptor)
        yield file


def refuse_irregular(path: Path | str, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_file(path: Path, limit: float = math.inf) -> bytes:
    """Return the content of a regular file; OSError, also for more bytes than `limit` or than there is memory for."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes", str(path))
        return read_whole(file)


def read_whole(file: io.BufferedReader) -> bytes:
    """Return the content of an open file; OSError, also where there is no memory for it."""
    try:
        return file.read()
    except MemoryError:
        raise OSError(errno.ENOMEM, "it is larger than the memory") from None


def refuse_linked_folders(folder: Path, *patterns: str) -> None:
    """Raise TOPRError for a folder that matches one of the patterns and is a symbolic link, which leads elsewhere.

    Also where a folder can't be listed: it may hide a link.
    """
    with disk_errors(f"read {folder}"):
        for pattern in patterns:
            for path in match_entries(folder, pattern):
                if path.is_symlink() and path.is_dir():
                    raise TOPRError(f"{path} is a symbolic link, and what lies elsewhere could change: remove it")


def match_entries(folder: Path, pattern: str) -> list[Path]:
    """List the entries below a folder by a pattern such as "iteration-*/*"; OSError, which `glob` hides.

    A part of the pattern without a star stands for itself, be there such an entry or not.
    """
    name, _, deeper_pattern = pattern.partition("/")
    entries = [folder / name]
    if "*" in name:
        try:
            entries = list_files(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return []
    if not deeper_pattern:
        return entries
    matches = []
    for entry in entries:
        matches += match_entries(entry, deeper_pattern)
    return matches


def list_files(folder: Path, *patterns: str) -> list[Path]:
    """Return the entries of a folder that match one of the patterns, sorted by name; OSError, which `glob` hides."""
    return sorted(path for path in folder.iterdir() if any(map(path.match, patterns)))


def see_new_names(folder: Path) -> None:
    """Have an NFS client forget which names a folder lacked: for up to a minute it would not look again.

    Another machine may have made them meanwhile; the client asks the server where a folder is opened.
    """
    with suppress(OSError):
        os.scandir(folder).close()


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder and below."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile by a process at work
            total += path.lstat().st_size
    return total


def find_module_file(module: str) -> Path | None:
    """Return the source file of a module, without importing it; None where there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if path.is_file():
        return path
    return None


# ---- atomic writes


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends without an error; it survives a power cut whole or absent.

    FileNotFoundError: another process finished this file and removed the temporary one.
    """
    temporary = temporary_path(path)
    try:
        # Not tempfile: its mode 0600 would lock other members of a group out of a shared store.
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
    sync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a temporary folder that replaces `path` when the block ends without an error; TOPRError.

    Its files get the folder's permissions.
    """
    temporary = temporary_path(path)
    with disk_errors(f"write {path}"):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            file_mode = temporary.stat().st_mode & 0o666
            for entry in [*temporary.rglob("*"), temporary]:
                if entry.is_file():
                    entry.chmod(file_mode)
                sync(entry)
            check_guards(path)
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync(path.parent)


def temporary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.urandom(6).hex()}{TEMPORARY}")


def sync(path: Path) -> None:
    """Flush a file, or the renames in a folder, to the disk; not of a folder whose file system has no call for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not (is_folder and error.errno == errno.EINVAL):  # as on shares of Windows, AFS and 9p
            raise
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: memoryview | bytes) -> None:
    """Replace the file `path` by `data`, atomically; OSError."""
    with atomic_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by `text`, atomically; TOPRError."""
    with disk_errors(f"write {path}"):
        write_bytes(path, text.encode())


@contextmanager
def guard_writes(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """During the block, call `check` before a file or folder is put into place below `folder`; it forbids by raising.

    It is called last, since flushing may have taken long.
    """
    _write_guards[folder] = check
    try:
        yield
    finally:
        del _write_guards[folder]


def check_guards(path: Path) -> None:
    """Call the guards of the folders that contain `path`."""
    for folder, check in list(_write_guards.items()):
        if path.is_relative_to(folder):
            check()
