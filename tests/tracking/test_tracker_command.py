"""`tracking=wandb` as a user starts it, with the real client and no network; W&B's own reader reads what it wrote."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import lines_of
from tests.tracking.conftest import history, inspect, offline_folders, summary
from topr_exp.tracking.workspace import main


def test_one_offline_run_is_left_with_its_settings(resumed: tuple[Path, str]) -> None:
    folder, printed = resumed
    (offline,) = offline_folders(folder)
    assert printed.splitlines()[-1] == f"W&B, offline: wandb sync {offline}"
    assert (folder / "DONE").exists()
    records = inspect(folder)
    (exit_,) = (record["exit"] for record in records if record["type"] == "exit")
    assert exit_.get("exit_code", 0) == 0
    (started,) = (record["run"] for record in records if record["type"] == "run")
    assert (started["run_group"], started["job_type"]) == ("sweep", "train")
    config = started["config"]["update"]
    assert (config["baseline"], config["algo"]["a_pos"]) == (-0.3, 1)
    assert "baseline=-0.3" in config["overrides"]
    assert "versions" in config["environment"]
    axes = {record["metric"].get("glob_name"): record["metric"] for record in records if record["type"] == "metric"}
    assert {axes[f"{kind}/*"]["step_metric"] for kind in ("train", "eval", "rest")} == {"optimizer_step"}


def test_every_record_arrives_once_and_in_order(resumed: tuple[Path, str]) -> None:
    folder, _ = resumed
    rows = [row["item"] for row in history(inspect(folder))]
    updates = lines_of(folder / "metrics.jsonl")
    assert [line["step"] for line in updates] == list(range(1, 13))
    for name, key in (("optimizer_step", "step"), ("samples", "samples"), ("train/loss", "loss")):
        assert [row[name] for row in rows if "train/loss" in row] == pytest.approx([line[key] for line in updates])
    tests = lines_of(folder / "eval.jsonl")
    for name, steps in (("eval/pass_at_1", [0, 4, 8, 12]), ("rest/whole_pass_at_1", [0, 12])):
        found = [row for row in rows if name in row]
        assert [row["optimizer_step"] for row in found] == steps
        values = {line.get("step", 12 * line["iteration"]): line["pass@1"] for line in tests
                  if line.get("subset", False) == (name == "eval/pass_at_1")}  # fmt: skip
        assert [row[name] for row in found] == pytest.approx([values[step] for step in steps])
    charts = {name for row in rows for name in row if name.startswith(("train/", "eval/"))}
    assert charts == {"train/loss", "train/ess", "train/log_ratio_pos", "train/log_ratio_neg", "eval/pass_at_1",
                      "eval/maj_at_8", "eval/length"}  # fmt: skip
    assert not [name for row in rows for name in row if name.endswith(("_low", "_high", "_se", "maj_at_1"))]
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows})


def test_summary_and_completions_arrive(resumed: tuple[Path, str]) -> None:
    folder, _ = resumed
    records, stored = inspect(folder), json.loads((folder / "summary.json").read_text())
    assert summary(records)["final/pass_at_1"] == pytest.approx(stored["final"]["pass@1"])
    assert summary(records)["seconds/training"] == stored["seconds"]["training"]
    paths = offline_folders(folder)[0].glob("files/media/table/*.json")
    tables = [json.loads(path.read_text()) for path in paths]
    assert len(tables) == 2
    column = tables[0]["columns"].index("completion")
    shown = [entry["completion"] for entry in lines_of(folder / "completions.jsonl") if entry["set"] == "test"]
    assert sorted(row[column] for table in tables for row in table["data"]) == sorted(shown)


# ---- the workspace: written without an account, and it asks for what a run really sends


def saved(tmp_path: Path, *arguments: str) -> str:
    assert main([*arguments, "--save", str(tmp_path / "spec.json")]) == 0
    return (tmp_path / "spec.json").read_text()


def test_sections_and_filter(tmp_path: Path) -> None:
    spec = json.loads(saved(tmp_path, "--project", "mine", "--group", "ptilde"))
    assert spec["project"] == "mine"
    section = spec["spec"]["section"]
    sections = {one["name"]: len(one["panels"]) for one in section["panelBankConfig"]["sections"]}
    assert sections == {"Learning curves by algorithm": 4, "Ratios": 6, "Invalid answers": 2,
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
