"""`tracking=wandb` as a user starts it, with the real client and no network; W&B's own reader reads what it wrote."""

import json
import re

import pytest

from tests.conftest import column, lines_of, read_json
from tests.tracking.conftest import history, inspect, offline_folders, summary
from topr_exp.tracking.workspace import main


@pytest.fixture(scope="module")
def records(resumed):
    folder, _ = resumed
    return inspect(folder)


def test_one_offline_run_is_left_with_its_settings(resumed, records):
    folder, out = resumed
    (offline,) = offline_folders(folder)
    assert out.splitlines()[-1] == f"W&B, offline: wandb sync {offline}"
    assert (folder / "DONE").exists()

    (run,) = [record["run"] for record in records if record["type"] == "run"]
    (exit_record,) = [record["exit"] for record in records if record["type"] == "exit"]
    assert exit_record.get("exit_code", 0) == 0
    assert (run["run_group"], run["job_type"]) == ("sweep", "train")
    config = run["config"]["update"]
    assert (config["baseline"], config["algo"]["a_pos"]) == (-0.3, 1)
    assert "baseline=-0.3" in config["overrides"]
    assert "versions" in config["environment"]
    axes = {}
    for record in records:
        if record["type"] == "metric":
            axes[record["metric"].get("glob_name")] = record["metric"].get("step_metric")
    assert {axes[f"{kind}/*"] for kind in ("train", "eval", "rest")} == {"optimizer_step"}


def test_every_record_arrives_once_and_in_order(resumed, records):
    folder, _ = resumed
    rows = history(records)
    updates = lines_of(folder / "metrics.jsonl")
    assert column(updates, "step") == list(range(1, 13))
    for chart, key in (("optimizer_step", "step"), ("samples", "samples"), ("train/loss", "loss")):
        values = [row[chart] for row in rows if "train/loss" in row]
        assert values == pytest.approx([update[key] for update in updates])

    evaluations = lines_of(folder / "eval.jsonl")
    for chart, is_subset, steps in (
        ("eval/pass_at_1", True, [0, 4, 8, 12]),
        ("rest/whole_pass_at_1", False, [0, 12]),
    ):
        points = [row for row in rows if chart in row]
        assert column(points, "optimizer_step") == steps
        accuracies = {}
        for record in evaluations:
            if record.get("subset", False) == is_subset:
                accuracies[record.get("step", 12 * record["iteration"])] = record["pass@1"]
        assert [row[chart] for row in points] == pytest.approx([accuracies[step] for step in steps])
    assert column(rows, "_step") == sorted(set(column(rows, "_step")))


def test_charts_are_few(records):
    names = set().union(*history(records))

    charts = {name for name in names if name.startswith(("train/", "eval/"))}
    ratios = {"train/ess", "train/log_ratio_pos", "train/log_ratio_neg"}
    assert charts == {"train/loss", *ratios, "eval/pass_at_1", "eval/maj_at_8", "eval/length"}
    assert not [name for name in names if name.endswith(("_low", "_high", "_se", "maj_at_1"))]


def test_summary_and_completions_arrive(resumed, records):
    folder, _ = resumed
    stored = read_json(folder / "summary.json")
    assert summary(records)["final/pass_at_1"] == pytest.approx(stored["final"]["pass@1"])
    assert summary(records)["seconds/training"] == stored["seconds"]["training"]

    paths = list(offline_folders(folder)[0].glob("files/media/table/*.json"))
    assert len(paths) == 2
    texts = []
    for table in map(json.loads, (path.read_text() for path in paths)):
        completion_index = table["columns"].index("completion")
        texts += column(table["data"], completion_index)
    entries = lines_of(folder / "completions.jsonl")
    assert sorted(texts) == sorted(entry["completion"] for entry in entries if entry["set"] == "test")


# ---- the workspace: written without an account, and it asks for what a run really sends


def save_workspace(tmp_path, *words):
    assert main([*words, "--save", str(tmp_path / "spec.json")]) == 0
    return (tmp_path / "spec.json").read_text()


def test_a_workspace_asks_for_what_a_run_sends(tmp_path, records):
    sent_names = set(summary(records)).union(*history(records))
    text = save_workspace(tmp_path)

    names = set(re.findall(r'"((?:train|eval|rest|final|base)/[^"]*)"', text))
    names |= set(re.findall(r'"summary(?:_metrics)?[:.]([^"]*)"', text))
    assert len(names) > 12
    assert names <= sent_names, names - sent_names


def test_a_workspace_of_nobody_is_one_line(capsys):
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("error: nobody is logged in to W&B: `wandb login`, or --save FILE")


@pytest.mark.extended
def test_what_wandb_refuses_is_one_line(variables, capsys):
    variables["WANDB_API_KEY"] = "0" * 40
    assert main(["--entity", "me"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: W&B did not take the workspace (")
