"""No test of tracking has an account or a network; offline W&B runs are read by W&B's own reader."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

DEAD = "http://127.0.0.1:9"  # nothing listens there
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


def cut_off(home: Path) -> dict[str, str]:
    """The environment of a user who is not logged in, and without a way to the network even for a client that tries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") and name != "NETRC"}
    known = {"HOME": str(home), "WANDB_BASE_URL": DEAD, "WANDB_ERROR_REPORTING": "false"}
    return kept | known | dict.fromkeys(PROXIES, DEAD)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = cut_off(tmp_path / "home")
    for name in {*os.environ} - {*wanted}:
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


def offline_folders(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*"))


def inspect(folder: Path) -> list[dict[str, Any]]:
    """The records of the one offline run in a run folder."""
    import wandb

    (offline,) = offline_folders(folder)
    (log,) = offline.glob("*.wandb")
    program = Path(wandb.__file__).parent / "bin" / "wandb-core"
    command = [program, "leet", "inspect", "-json", "-no-observability", "-run-file", log, offline.parent]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    return [json.loads(line) for line in lines]


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The logged rows in order."""
    return [record["history"] for record in records if record["type"] == "history"]
