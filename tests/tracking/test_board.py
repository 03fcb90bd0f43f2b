"""`tracking=tensorboard`: the records arrive once each, also after a kill, and its absence is told before a start."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.run_folders import add_metrics, evaluation, make_run, write_lines
from tests.tracking.test_mirror import PATIENT, wait_for
from topr_exp.tracking import tracker as tracker_module
from topr_exp.tracking.board import fenced
from topr_exp.tracking.tracker import Tracker
from topr_exp.types import ConfigError

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no tensorboard")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "FINISH_SECONDS", 240.0)


def points(folder: Path) -> dict[str, tuple[list[int], list[float]]]:
    """What TensorBoard's own reader finds: steps and values by name, the numbers alone."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    scalars = {name: found.Scalars(name) for name in found.Tags()["scalars"]}
    return {name: ([one.step for one in each], [one.value for one in each]) for name, each in scalars.items()}


def updates(folder: Path) -> tuple[list[int], Any]:
    """What metrics.jsonl has of the loss."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines], pytest.approx([line["loss"] for line in lines])


@needs_tensorboard
def test_a_run_arrives(tmp_path: Path) -> None:
    """The whole program: its own command line, a real run, then the written file."""
    command = [sys.executable, "-c", PATIENT, *overrides(tmp_path, "name=sweep", "tracking=tensorboard")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    (folder,) = (path.parent for path in (tmp_path / "sweep").glob("*/DONE"))
    assert done.stdout.splitlines()[-1] == f"TensorBoard: tensorboard --logdir {tmp_path / 'sweep'}"
    found = points(folder)
    assert found["train/loss"] == updates(folder)
    summary = json.loads((folder / "summary.json").read_text())
    ends = [summary[name]["pass@1"] for name in ("base", "final")]
    assert found["eval/pass_at_1"] == ([0, len(updates(folder)[0])], pytest.approx(ends))
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert "finished before, nothing to do" in again.stdout
    assert points(folder) == found


@needs_tensorboard
def test_a_killed_run_goes_on_without_doubled_points(tmp_path: Path) -> None:
    config, folder = make_run(tmp_path, "tracking=tensorboard", steps=12, done=False)
    (folder / "config.yaml").write_text("seed: 0\n")
    with Tracker(config, folder) as first:
        wait_for(folder, "opened", first)
    assert points(folder)["train/loss"][0] == list(range(1, 13))
    # The next attempt starts from a checkpoint at update 8 and writes other lines after it.
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:8]
    (folder / "metrics.jsonl").write_text("".join(kept))
    with Tracker(config, folder) as second:
        wait_for(folder, "opened", second)
        add_metrics(folder, range(9, 11), random.Random(0))
        write_lines(folder / "eval.jsonl", [evaluation(0, 0.2), evaluation(1, 0.5)])
    found = points(folder)
    assert found["train/loss"] == updates(folder)
    assert found["train/loss"][0] == list(range(1, 11))
    assert found["eval/pass_at_1"] == ([0, 10], pytest.approx([0.2, 0.5]))


def test_it_has_to_be_installed_and_has_no_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from topr_exp.runs import preflight

    def find_spec(name: str) -> Any:
        return None if name == "tensorboard" else object()

    monkeypatch.setattr(preflight.importlib.util, "find_spec", find_spec)
    with pytest.raises(ConfigError, match=r"^tracking=tensorboard: the package tensorboard is not installed \(pip"):
        config_of("tracking=tensorboard", "dry_run=true")
    with pytest.raises(ConfigError, match=r"nothing reads tracking\.project here; tracking=wandb does"):
        config_of("tracking=tensorboard", "tracking.project=x")


def test_a_text_is_shown_as_it_is() -> None:
    assert fenced("a\n```\n<b>") == "    a\n    ```\n    <b>"
