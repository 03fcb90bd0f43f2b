"""`make clean` removes what `make` made, and nothing that a user or a run did."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_clean_removes_environments_that_make_made_and_no_result(tmp_path: Path) -> None:
    kept = ["outputs/runs/RUN/model/weights", "outputs/store/imported/HASH/key.json", ".venv/a-users-own"]
    made = [".venv-vllm/.made", ".venv-vllm/bin/python", ".mypy_cache/cache"]
    for name in (*kept, *made):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    done = subprocess.run(["make", "-C", tmp_path, "-f", ROOT / "Makefile", "clean"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [name for name in (*kept, *made) if (tmp_path / name).exists()] == kept
    assert "kept .venv: it was there before make" in done.stdout
