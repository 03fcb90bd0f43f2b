"""JSON files of a run, read without trust: damage is a fault in words or a count, and raises nothing.

A file that exists and can't be read raises TOPRError: else a disk that failed for a moment would decide what follows.
"""

import json
import math
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from topr_exp.runtime.files import disk_errors, read_file, write_text
from topr_exp.types import TOPRError

MAX_DEPTH = 24  # of nested lists and objects; a run's files have 6
MAX_SIZE = 1 << 28  # bytes; a run's files, and those of a model that are read, have a few million at most
MAX_SHOWN_LENGTH = 60  # characters of a wrong value in a message
MAX_NAMED_LINES = 10  # of a file, in a message
MISSING = "is missing"
# What reading a damaged file, and computing with what it holds, can raise; an assertion that fails is our mistake.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
TYPE_WORDS = {str: "a text", int: "a whole number", float: "a number", type(None): "null"}


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value` as JSON, atomically; TOPRError."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_object(path: Path, *, unreadable_is_damage: bool = False) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a file and ""; or {} and the fault, in words that continue the file's name.

    unreadable_is_damage: for files that are only shown, return a failed read as a fault instead of raising TOPRError.
    """
    try:
        content = read_file(path, MAX_SIZE)
    except FileNotFoundError:
        return {}, MISSING
    except OSError as error:
        if not unreadable_is_damage:
            raise TOPRError(f"cannot read {path}: {error.strerror}") from error
        return {}, f"can't be read ({error.strerror})"
    stored = parse_object(content)
    if stored is None:
        return {}, "holds no JSON object"
    if not stored:
        return {}, "holds nothing"
    return stored, ""


def read_typed_object(path: Path, schema: type, *, unreadable_is_damage: bool = False) -> tuple[dict[str, Any], str]:
    """As `read_object`; an entry of another type than the TypedDict `schema` declares is a fault, too.

    Entries that the schema lacks are returned unchecked: a newer version may have written them.
    """
    stored, fault = read_object(path, unreadable_is_damage=unreadable_is_damage)
    if not fault:
        fault = find_type_fault(stored, schema)
    if fault:
        return {}, fault
    return stored, ""


def read_lines(
    path: Path, is_valid: Callable[[dict[str, Any]], bool] = lambda _: True, *, growing: bool = False
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the valid JSON objects of a file with one per line, and the numbers of the other lines.

    A missing file has no lines. growing: another process is writing the file, so skip a last line without a newline.
    """
    with disk_errors(f"read {path}"):
        if not path.exists():
            return [], []
        content = read_file(path)
    if growing:
        content = content[: content.rfind(b"\n") + 1]
    records = []
    damaged_lines = []
    for number, line in enumerate(content.splitlines(), 1):
        record = parse_object(line)
        if record is not None and is_valid(record):
            records.append(record)
        else:
            damaged_lines.append(number)
    return records, damaged_lines


def name_lines(numbers: Sequence[int]) -> str:
    """Name lines of a file, such as "lines 3, 4"; of many the first ones."""
    noun = "line" if len(numbers) == 1 else "lines"
    text = f"{noun} {', '.join(map(str, numbers[:MAX_NAMED_LINES]))}"
    if len(numbers) > MAX_NAMED_LINES:
        text += f" and {len(numbers) - MAX_NAMED_LINES} more"
    return text


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else. Numbers beyond float become None, lone surrogates "?"."""
    try:
        decoded = text.decode()
        value = DECODER.decode(decoded)
        if "\\u" in decoded:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    brackets = decoded.count("[") + decoded.count("{")  # most texts have too few to nest deeply
    if brackets > MAX_DEPTH and not is_shallow(value):
        return None
    if isinstance(value, dict):
        return value
    return None


def is_shallow(value: Any, levels: int = MAX_DEPTH) -> bool:
    """True if lists and objects nest at most `levels` deep."""
    if levels == 0:
        return False
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return True
    return all(is_shallow(child, levels - 1) for child in value)


def as_number(value: Any) -> float | None:
    """Return a JSON value as a finite float; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < math.inf else None  # also false for nan


def parse_float(digits: str) -> float | None:
    value = float(digits)
    if math.isinf(value):
        return None
    return value


def parse_int(digits: str) -> int | None:
    if parse_float(digits) is None:
        return None
    return int(digits)


DECODER = json.JSONDecoder(parse_constant=lambda _: None, parse_float=parse_float, parse_int=parse_int)


# ---- types of entries


def find_type_fault(stored: dict[str, Any], schema: Any, prefix: str = "") -> str:
    """Describe the first entry that is missing or of another type than the TypedDict `schema` declares; "" for none.

    prefix: of the entry's name, for an object within another.
    """
    for key, hint in typing.get_type_hints(schema).items():
        name = f"{prefix}{key}"
        fault = ""
        if key not in stored:
            if key in schema.__required_keys__:
                fault = f"lacks {name}"
        elif typing.is_typeddict(hint) and isinstance(stored[key], dict):
            fault = find_type_fault(stored[key], hint, f"{name}.")
        elif not has_type(stored[key], hint):
            fault = f"has {name}={shorten(stored[key])}, which is not {describe_type(hint)}"
        if fault:
            return fault
    return ""


def has_type(value: Any, hint: Any) -> bool:
    """True if a JSON value has the annotated type."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(has_type(value, option) for option in arguments)
    if typing.is_typeddict(hint):
        return isinstance(value, dict) and not find_type_fault(value, hint)
    if origin is list:
        return isinstance(value, list) and all(has_type(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(has_type(item, arguments[1]) for item in value.values())
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, (int, float))
    if hint is str:
        return isinstance(value, str) and "\0" not in value  # which no path and no environment variable may have
    return isinstance(value, hint)


def describe_type(hint: Any) -> str:
    """Name an annotated type in a user's words."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint in TYPE_WORDS:
        return TYPE_WORDS[hint]
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(describe_type, arguments))
    if origin is list:
        return f"a list, each {describe_type(arguments[0])}"
    if origin is dict and arguments[1] is not Any:
        return f"an object, each value {describe_type(arguments[1])}"
    return "an object"


def shorten(value: Any) -> str:
    text = " ".join(str(value).split())
    if len(text) > MAX_SHOWN_LENGTH:
        text = text[:MAX_SHOWN_LENGTH] + "..."
    return text
