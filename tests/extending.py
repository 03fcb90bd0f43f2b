"""The files and the commands that the pages on losses, sources and rewards print."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from topr_exp.runs import preflight

LOSS = (ROOT / "docs" / "own_loss.md").read_text()
SOURCE = (ROOT / "docs" / "own_problems.md").read_text().partition("\n## A source of problems\n")[2]
REWARD = (ROOT / "docs" / "own_grader.md").read_text().partition("\n## A graded reward\n")[2]
MODULES = ("soft_topr", "coins", "closeness", "first_words")


@contextmanager
def project(folder: Path, *parts: str) -> Iterator[Path]:
    """A folder with the files of these parts, and nothing else; the working folder, as for the reader."""
    for part in parts:
        for name, code in re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", part, re.DOTALL):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        forget()
        yield folder
        forget()


def forget() -> None:
    """Have the project's files read anew."""
    preflight._problem_sets.clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def commands(part: str) -> list[list[str]]:
    """The words of each run that a part starts, after `python -m topr_exp`."""
    return [line.split()[3:] for line in part.splitlines() if line.startswith("python -m topr_exp ")]
