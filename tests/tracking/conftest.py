"""No test of tracking has an account or a network; offline W&B runs are read by W&B's own reader."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from tests.processes import start_command
from tests.sweep_tools import slow
from topr_exp.__main__ import main as topr_exp
from topr_exp.tracking import tracker

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


def main() -> int:
    """`python -m topr_exp` that waits for the client on a busy machine too."""
    tracker.FINISH_SECONDS = 240.0
    return topr_exp()


CHOSEN = ["name=sweep", "tracking=wandb", "baseline=-0.3"]
# 12 updates, no checkpoint
LONG = ["data.eval_n=8", "optim.epochs=3", "evaluation.every=4", "checkpoint.every_seconds=1000"]


@pytest.fixture(scope="session")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was killed at update 5 and given again, and what the second command printed."""
    tmp_path = tmp_path_factory.mktemp("run")
    environment = cut_off(home=tmp_path)
    given = overrides(tmp_path, *CHOSEN, *LONG, *slow("Slow"))
    folder = config_of(*given).folder
    first = start_command(*given, environment=environment)
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < 5:
        assert first.is_alive()
        time.sleep(0.05)
    first.kill()
    first.join()
    second = start_command(*given, module=__name__, output=tmp_path, environment=environment)
    second.join(500)
    said, error = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert second.exitcode == 0, error
    assert "warning" not in error
    assert "Traceback" not in error
    return folder, said


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


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary as it was last sent."""
    updates = [record["summary"].get("update", {}) for record in records if record["type"] == "summary"]
    return {name: value for update in updates for name, value in update.items()}
