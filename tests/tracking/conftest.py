"""No test of tracking has an account or a network; offline W&B runs are read by W&B's own reader."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import config_of, overrides
from tests.processes import start_command
from tests.sweep_tools import slow, steps, wait_for
from topr_exp.__main__ import main as topr_exp
from topr_exp.tracking import tracker

DEAD = "http://127.0.0.1:9"  # nothing listens there
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
NAMED = ["name=sweep", "tracking=wandb", "baseline=-0.3"]
# 12 updates, no checkpoint
LONG = ["data.eval_n=8", "optim.epochs=3", "evaluation.every=4", "checkpoint.every_seconds=1000"]


def cut_off(home):
    """The environment of a user who is not logged in, and without a way to the network even for a client that tries."""
    variables = dict.fromkeys(PROXIES, DEAD)
    variables |= {"HOME": str(home), "WANDB_BASE_URL": DEAD, "WANDB_ERROR_REPORTING": "false", "WANDB_PROJECT": "ours"}
    for name, value in os.environ.items():
        if not name.startswith("WANDB_") and name != "NETRC":
            variables.setdefault(name, value)
    return variables


@pytest.fixture(autouse=True)
def nobody(variables, tmp_path):
    environment = cut_off(tmp_path / "home")
    variables.clear()
    variables.update(environment)


def main():
    """`python -m topr_exp` that waits for the client on a busy machine too."""
    tracker.FINISH_SECONDS = 240.0
    return topr_exp()


@pytest.fixture(scope="session")
def resumed(tmp_path_factory):
    """The folder of a run that was killed at update 5 and given again, and what the second command printed."""
    tmp_path = tmp_path_factory.mktemp("run")
    environment = cut_off(home=tmp_path)
    brake = tmp_path / "brake"
    words = overrides(tmp_path, *NAMED, *LONG, *slow(brake))
    folder = config_of(*words).folder
    killed = start_command(*words, environment=environment)
    wait_for(lambda: steps(folder) >= 5)
    killed.kill()
    killed.join()
    brake.unlink()

    second = start_command(*words, module=__name__, output=tmp_path, environment=environment)
    second.join(500)

    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert second.exitcode == 0, err
    assert "warning" not in err
    assert "Traceback" not in err
    return folder, out


def offline_folders(folder):
    return sorted((folder / "wandb").glob("offline-run-*"))


def inspect(folder):
    """The records of the one offline run in a run folder."""
    import wandb

    (offline,) = offline_folders(folder)
    (log,) = offline.glob("*.wandb")
    program = Path(wandb.__file__).parent / "bin/wandb-core"
    command = [program, "leet", "inspect", "-json", "-no-observability", "-run-file", log, offline.parent]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return list(map(json.loads, output.splitlines()))


def history(records):
    """The logged rows in order."""
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def summary(records):
    """The summary as it was last sent."""
    values = {}
    for record in records:
        if record["type"] == "summary":
            values |= record["summary"].get("update", {})
    return values
