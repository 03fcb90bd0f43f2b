"""Read files of JSON lines, naming the line that is wrong."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.types import TOPRError, has_half_pair


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and objects of a file of JSON lines; empty lines and a byte order mark are passed over.

    Raises TOPRError naming file and line for anything else than UTF-8 with one JSON object a line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, _parse(path, number, line)
    except OSError as error:
        raise TOPRError(f"{path} can't be read: {error.strerror}") from None


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise TOPRError(f"{path}:{number}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise TOPRError(f"{path}:{number}: not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise TOPRError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
    if b"\\u" in line and has_half_pair(json.dumps(row, ensure_ascii=False)):
        raise TOPRError(f"{path}:{number}: holds half of a surrogate pair, which is no character")
    return row


def text_of(where: str, row: dict[str, Any], field: str) -> str:
    """A field that has to be a text and not empty; TOPRError otherwise."""
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise TOPRError(f"{where}: the field {field} is " + ("missing" if value is None else "not a text or empty"))
    return value
