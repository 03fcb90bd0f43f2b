"""Files that are read whole and replaced whole."""

import json
import os
import re
from pathlib import Path
from typing import Any

from topr_exp import TOPRError

RECORDED = Path(__file__).resolve().parents[1] / "docs/results"  # a page's links are written to lead from here
UPWARD_LINK = re.compile(r"(?<=\]\()\.\./[^)#]+")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; {} where there is no file, TOPRError where it holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TOPRError(f"{path} is damaged or holds something else; remove it or check it out again")
    return content


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file, whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    if isinstance(content, str):
        content = content.encode()
    temporary.write_bytes(content)
    os.replace(temporary, path)


def links_from(folder: Path, text: str) -> str:
    """Make a page's links to the repository's files lead there from another folder."""
    target_folder = folder.resolve()
    return UPWARD_LINK.sub(lambda link: os.path.relpath(RECORDED / link[0], target_folder), text)


def plural(count: int, noun: str) -> str:
    """1 run, 2 runs."""
    if count != 1:
        noun += "s"
    return f"{count} {noun}"
