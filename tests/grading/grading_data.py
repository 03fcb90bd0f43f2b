"""Where the tests find shared data, which is no part of the project: beside the repository, or TOPR_SHARED_DATA."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("TOPR_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a shared file; skips the test where it is absent."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set TOPR_SHARED_DATA)")
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
