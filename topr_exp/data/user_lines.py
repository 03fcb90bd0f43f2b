"""Lines of a user's JSON file; the first wrong one is a TOPRError that names it."""

import codecs
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import open_regular
from topr_exp.types import TOPRError, has_half_pair

MAX_LINE_BYTES = 1 << 28  # whoever packed a run's folder names its file of problems, which may have no line break


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number the lines of a user's file with their objects; TOPRError names file and line where one holds none."""
    for number, line in numbered_lines(path):
        yield number, strict_object(f"{path}:{number}", line)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number the lines of a user's file that are not empty, the first without a byte order mark; TOPRError."""
    try:
        with open_regular(path) as file:
            read_line = partial(file.readline, MAX_LINE_BYTES + 1)
            for number, line in enumerate(iter(read_line, b""), start=1):
                if len(line) > MAX_LINE_BYTES:
                    raise TOPRError(f"{path}:{number}: a line of over {MAX_LINE_BYTES:,} bytes")
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TOPRError(f"{path} can't be read: {error.strerror}") from None


def json_fault(error: ValueError | RecursionError) -> str:
    """Say why a text is no JSON, without Python's advice on its own settings behind a semicolon."""
    return str(error).partition(";")[0]


OBJECT_A_LINE = "the file must hold an object a line: jq -c '.[]' FILE makes that of an array, jq -c . FILE of objects"


def strict_object(where: str, line: bytes) -> dict[str, Any]:
    """The JSON object of a user's line; TOPRError that begins with `where`."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        raise TOPRError(f"{where}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # a number of over 4300 digits, nested too deep
        goes_on = line.strip() in (b"[", b"{", b"[{")  # in the next line
        hint = f"; {OBJECT_A_LINE}" if goes_on else ""
        raise TOPRError(f"{where}: not valid JSON ({json_fault(error)}){hint}") from None
    if not isinstance(row, dict):
        hint = f"; {OBJECT_A_LINE}" if isinstance(row, list) else ""
        raise TOPRError(f"{where}: expected a JSON object, found {type(row).__name__}{hint}")
    if b"\\u" in line and has_half_pair(json.dumps(row, ensure_ascii=False)):
        raise TOPRError(f"{where}: holds half of a surrogate pair, which is no character")
    return row
