"""Problems from a folder of JSON lines with the fields of the hub's data sets.

GSM8K: train.jsonl and test.jsonl (question, answer ending in "#### N").
MATH: train*.jsonl and test.jsonl or math500.jsonl (problem, solution or answer, level, subject or type).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.config.data import Format
from topr_exp.data.jsonl import read_json_lines
from topr_exp.types import TOPRError

FILES = {
    (Format.gsm8k, "train"): ("train.jsonl",),
    (Format.gsm8k, "test"): ("test.jsonl",),
    (Format.math, "train"): ("train*.jsonl",),
    (Format.math, "test"): ("test.jsonl", "math500.jsonl"),
}


def read(data_format: Format, split: str, root: Path) -> tuple[str, Iterator[tuple[str, dict[str, Any]]]]:
    """Where the split was found, and its rows, each named "file:line".

    Raises TOPRError for a missing folder or file; reading the rows raises it for a malformed line.
    """
    if not root.is_dir():
        raise TOPRError(f"data.source={root}: no such folder; allowed: embedded, hub or a folder")
    if found := paths(data_format, split, root):
        return ", ".join(map(str, found)), _rows(found)
    wanted = " or ".join(FILES[data_format, split])
    raise TOPRError(f"data.source={root}: no {wanted} there, the {split} problems of {data_format.name}")


def paths(data_format: Format, split: str, root: Path) -> list[Path]:
    """The split's files; none where the folder has none."""
    found = (sorted(root.glob(pattern)) for pattern in FILES[data_format, split])
    return next(filter(None, found), [])


def _rows(paths: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        for number, row in read_json_lines(path):
            yield f"{path}:{number}", row
