"""What the user set, as a tracker and a model card name it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.run_folders import write_json
from topr_exp.runs.provenance import overrides


def test_a_run_names_its_part_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topr", "-m", "seed=0,1"])
    assert overrides(tmp_path / "a") == ["seed=0,1"]
    runs = [{"folder": name, "overrides": [f"seed={i}"]} for i, name in enumerate("ab")]
    write_json(tmp_path / "sweep.json", {"runs": runs})
    assert overrides(tmp_path / "b") == ["seed=1"]
    assert overrides(tmp_path / "c") == ["seed=0,1"]
