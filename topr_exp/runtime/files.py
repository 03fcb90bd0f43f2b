"""Files and folders written whole or not at all, checksums, JSON, and the one-line errors of a disk that refuses.

A folder of weights (a checkpoint, a trained model) carries `checksums.json`: the SHA-256 of each of its files by name,
and under its own name that of the list, so that a list that lost entries is found as well.
"""

import codecs
import errno
import functools
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from safetensors import SafetensorError

from topr_exp.types import TOPRError, has_half_pair

TEMPORARY = ".tmp"  # ends the name of every file that may be deleted at any time
DIGEST_BYTES = 16
CHECKSUMS = "checksums.json"
DEEPEST = 24  # lists and objects within one another; those of a run's files are 6 deep
MISSING = "is missing"
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


def file_digest(path: Path) -> str:
    """SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_of(module: str) -> Path | None:
    """Find the file of a module without importing it; None where it has none."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None and Path(spec.origin).is_file() else None


def known_digest(path: Path) -> str:
    """SHA-256 of a file, which this process reads once while its size and time stay."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _digest(path: Path, size: int, changed: int) -> str:
    return file_digest(path)


def files_named(folder: Path, *patterns: str) -> list[Path]:
    """The entries of a folder whose names match one of some patterns, by name; OSError. (`glob` leaves errors out.)"""
    return sorted(path for path in folder.iterdir() if any(path.match(pattern) for pattern in patterns))


def write_checksums(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write the checksums of the files in a folder beside them, those that are `known` as given."""
    checksums = dict(known or {})
    for path in folder.iterdir():
        if path.is_file() and path.name not in checksums:
            checksums[path.name] = file_digest(path)
    write_listed(folder / CHECKSUMS, checksums)


def write_listed(path: Path, checksums: Mapping[str, str]) -> None:
    """Write a list of checksums, with its own under its own name."""
    write_json(path, {**checksums, path.name: _sha256_of_list(checksums)})


def read_checksums(path: Path) -> dict[str, Any] | None:
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
    checksums = read_checksums(folder / CHECKSUMS)
    if checksums is None:
        return f"{CHECKSUMS} is no whole list of checksums"
    listed = {name: checksums[name] for name in sorted(checksums)[part]}
    return next(damaged_files(folder, listed, known), None)


def damaged_files(folder: Path, checksums: Mapping[str, Any], known: Mapping[str, str] | None = None) -> Iterator[str]:
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


def check_guards(path: Path) -> None:  # called last, since flushing may have taken long
    """Raise what forbids writing below a folder that `path` is in."""
    for folder, check in list(_guards.items()):
        if path.is_relative_to(folder):
            check()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
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


# ---- JSON: a line of the user's that is wrong is refused, damage of a run's files raises no error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number the lines of a user's file with their objects; TOPRError names file and line where one holds none."""
    for number, line in numbered_lines(path):
        yield number, strict_object(f"{path}:{number}", line)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number the lines of a user's file that are not empty, the first without a byte order mark."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TOPRError(f"{path} can't be read: {error.strerror}") from None


OBJECT_A_LINE = "the file must hold an object a line: jq -c '.[]' FILE makes that of an array, jq -c . FILE of objects"


def strict_object(where: str, line: bytes) -> dict[str, Any]:
    """The JSON object of a user's line; TOPRError that begins with `where`."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        raise TOPRError(f"{where}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # a number of over 4300 digits, nested too deep
        hint = f"; {OBJECT_A_LINE}" if line.strip() in (b"[", b"{", b"[{") else ""  # goes on in the next line
        raise TOPRError(f"{where}: not valid JSON ({error}){hint}") from None
    if not isinstance(row, dict):
        hint = f"; {OBJECT_A_LINE}" if isinstance(row, list) else ""
        raise TOPRError(f"{where}: expected a JSON object, found {type(row).__name__}{hint}")
    if b"\\u" in line and has_half_pair(json.dumps(row, ensure_ascii=False)):
        raise TOPRError(f"{where}: holds half of a surrogate pair, which is no character")
    return row


def read_object(path: Path, *, unreadable_is_damage: bool = False) -> tuple[dict[str, Any], str]:
    """Read the JSON object in a file; {} and the reason where there is none or an empty one.

    A file that can't be read is a TOPRError: what follows from {} would be decided by a disk that failed for a moment.
    unreadable_is_damage: for what is only shown, it is a reason as well.
    """
    try:
        found = parse_object(read_file(path))
    except FileNotFoundError:
        return {}, MISSING
    except OSError as error:
        if not unreadable_is_damage:
            raise TOPRError(f"cannot read {path}: {error.strerror}") from error
        return {}, f"can't be read ({error.strerror})"
    return found or {}, "holds no JSON object" if found is None else "" if found else "holds nothing"


def read_lines(path: Path, *, growing: bool = False) -> tuple[list[dict[str, Any]], int]:
    """Read the JSON objects of a file, one a line, and count the lines that hold none.

    growing: another process writes the file, so that a line without an end is left out.
    """
    with disk_errors(f"read {path}"):
        content = read_file(path) if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1] if growing else content
    found = [parse_object(line) for line in whole.splitlines()]
    return [each for each in found if each is not None], found.count(None)


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Read a JSON object, or None; numbers that no float holds become None, halves of surrogate pairs "?"."""
    try:
        text = line.decode()
        record = DECODER.decode(text)
        if text.count("[") + text.count("{") > DEEPEST and not is_shallow(record):
            return None
        if "\\u" in text:
            record = json.loads(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def is_shallow(value: Any, levels: int = DEEPEST) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(is_shallow(each, levels - 1) for each in inside)


def number(value: Any) -> float | None:
    """A value as a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < float("inf") else None  # also false for nan


def finite(digits: str) -> float | None:
    """A number of JSON as a float; None for one that no float holds."""
    value = float(digits)
    return None if math.isinf(value) else value


DECODER = json.JSONDecoder(
    parse_constant=lambda _: None,
    parse_float=finite,
    parse_int=lambda digits: None if finite(digits) is None else int(digits),
)
