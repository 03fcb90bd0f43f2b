"""Results that are there whole or not at all: what a run writes besides the store's tables."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.store.files import TEMPORARY, disk_errors, sync_folder, unique_name, write_whole


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by `text`, atomically; TOPRError (one line) when the disk refuses."""
    with disk_errors(f"write {path}"):
        write_whole(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the file `path` by `value` as JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` (replacing it) when the block ends without an error."""
    temporary = path.with_name(f"{path.name}.{unique_name()}{TEMPORARY}")
    with disk_errors(f"write {path}"), library_errors():
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for entry in [*temporary.rglob("*"), temporary]:
                sync_folder(entry)  # opening and fsync work alike on files and folders
            if path.exists():
                shutil.rmtree(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(path.parent)


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Raise as OSError what torch and safetensors report in their own way when the disk refuses a write."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # of the open file that torch.save was given
            raise error.__context__ from None
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if type(error).__name__ == "SafetensorError" and number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise
