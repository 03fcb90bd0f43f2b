"""JSON of files: of the user's, where a line that is wrong is refused, and of runs, whose damage raises no error."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.types import TOPRError, has_half_pair

DEEPEST = 24  # lists and objects within one another; those of a run's files are 6 deep
LONGEST_WHOLE = 300  # digits, so that a float can hold it
MISSING = "is missing"


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and objects of a user's file; empty lines and a byte order mark are passed over.

    Raises TOPRError naming file and line for anything else than UTF-8 with one JSON object a line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, strict_object(f"{path}:{number}", line)
    except OSError as error:
        raise TOPRError(f"{path} can't be read: {error.strerror}") from None


def strict_object(where: str, line: bytes) -> dict[str, Any]:
    """The JSON object of a user's line; TOPRError that begins with `where`."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        raise TOPRError(f"{where}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # a number of over 4300 digits, nested too deep
        raise TOPRError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise TOPRError(f"{where}: expected a JSON object, found {type(row).__name__}")
    if b"\\u" in line and has_half_pair(json.dumps(row, ensure_ascii=False)):
        raise TOPRError(f"{where}: holds half of a surrogate pair, which is no character")
    return row


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """Read the JSON object in a file; {} and the reason where there is none or an empty one."""
    try:
        found = parse_object(path.read_bytes())
    except FileNotFoundError:
        return {}, MISSING
    except OSError as error:
        return {}, f"can't be read ({error.strerror})"
    return found or {}, "holds no JSON object" if found is None else "" if found else "holds nothing"


def read_lines(path: Path, *, growing: bool = False) -> tuple[list[dict[str, Any]], int]:
    """Read the JSON objects of a file, one a line, and count the lines that hold none.

    growing: another process writes the file, so that a line without an end is left out.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1] if growing else content
    found = [parse_object(line) for line in whole.splitlines()]
    return [each for each in found if each is not None], found.count(None)


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Read a JSON object of plain values; None when it is none.

    Numbers that no float holds (NaN, 1e999) become None, halves of surrogate pairs "?".
    """
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
    """Check that lists and objects are nested at most so deep."""
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
    parse_int=lambda digits: int(digits) if len(digits) < LONGEST_WHOLE else None,
)
