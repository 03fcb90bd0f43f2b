"""Problems from a folder of JSON lines with the fields of the hub's data sets.

GSM8K: train.jsonl and test.jsonl (question, answer ending in "#### N").
MATH: train*.jsonl and test.jsonl or math500.jsonl (problem, solution or answer, level, subject or type).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.data.jsonl import read_json_lines
from topr_exp.types import TOPRError

FILES = {
    ("gsm8k", "train"): ("train.jsonl",),
    ("gsm8k", "test"): ("test.jsonl",),
    ("math", "train"): ("train*.jsonl",),
    ("math", "test"): ("test.jsonl", "math500.jsonl"),
}


def found(name: str, split: str, root: Path) -> list[Path]:
    """The files of a split of gsm8k or math; TOPRError for a missing folder or file."""
    if not root.is_dir():
        raise TOPRError(f"data.source={root}: no such folder; allowed: embedded, hub or a folder")
    if there := paths(name, split, root):
        return there
    wanted = " or ".join(FILES[name, split])
    raise TOPRError(f"data.source={root}: no {wanted} there, the {split} problems of {name}")


def paths(name: str, split: str, root: Path) -> list[Path]:
    """The split's files; none where the folder has none."""
    there = (sorted(root.glob(pattern)) for pattern in FILES[name, split])
    return next(filter(None, there), [])


def rows(name: str, split: str, root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A split's rows, each named "file:line"; TOPRError for a malformed line."""
    for path in found(name, split, root):
        for number, row in read_json_lines(path):
            yield f"{path}:{number}", row
