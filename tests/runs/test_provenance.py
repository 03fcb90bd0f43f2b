"""What the user set, as a tracker and a model card name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.run_folders import write_json
from topr_exp.runs.attempt import overrides


def test_a_run_names_its_part_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topr", "-m", "seed=0,1"])
    assert overrides(tmp_path / "a") == ["seed=0,1"]
    write_json(tmp_path / "launch.json", {"overrides": ["seed=1"]})
    assert overrides(tmp_path) == ["seed=1"]
