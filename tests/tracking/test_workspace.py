"""The W&B workspace's specification: written without an account, and it asks for what a run really sends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tracking.conftest import history, inspect, summary
from topr_exp.tracking.workspace import main


def saved(tmp_path: Path, *arguments: str) -> str:
    assert main([*arguments, "--save", str(tmp_path / "spec.json")]) == 0
    return (tmp_path / "spec.json").read_text()


def test_sections_and_filter(tmp_path: Path) -> None:
    spec = json.loads(saved(tmp_path, "--project", "mine", "--group", "ptilde"))
    assert spec["project"] == "mine"
    section = spec["spec"]["section"]
    sections = {one["name"]: len(one["panels"]) for one in section["panelBankConfig"]["sections"]}
    assert sections == {"Learning curves by algorithm": 4, "Ratios": 6, "Invalid answers": 1,
                        "Effective proportion of positives": 1, "Runs": 2}  # fmt: skip
    (runs,) = section["runSets"]
    assert runs["filters"]["filters"][0]["value"] == "ptilde"
    (runs,) = json.loads(saved(tmp_path))["spec"]["section"]["runSets"]
    assert runs.get("filters", {}).get("filters", []) == []


def test_it_asks_for_what_a_run_sends(tmp_path: Path, resumed: tuple[Path, str]) -> None:
    records = inspect(resumed[0])
    known = {name for row in history(records) for name in row["item"]} | {*summary(records)}
    text = saved(tmp_path)
    asked = {*re.findall(r'"((?:train|eval|rest|final|base)/[^"]*)"', text)}
    asked |= {*re.findall(r'"summary(?:_metrics)?[:.]([^"]*)"', text)}
    assert len(asked) > 12
    assert asked <= known, asked - known
    assert {"optimizer_step", "samples"} <= known


def test_without_an_account_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: nobody is logged in to W&B: `wandb login`, or --save FILE")


def test_a_refusal_of_wandb_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert main(["--entity", "me"]) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith("error: W&B did not take the workspace (")
