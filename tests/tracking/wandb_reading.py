"""An offline W&B run read back with W&B's own reader (`wandb leet inspect`, by the program behind it)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


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
