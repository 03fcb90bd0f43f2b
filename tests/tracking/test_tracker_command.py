"""`tracking=wandb` as a user starts it, with the real client and no network; W&B's own reader reads what it wrote."""

import re

import pytest

from tests.conftest import column, lines_of, read_json
from tests.tracking.conftest import history, inspect, offline_folders, summary
from topr_exp.tracking.workspace import main


@pytest.fixture(scope="module")
def records(resumed):
    folder, _ = resumed
    return inspect(folder)


def records_of(kind, records):
    return [record[kind] for record in records if record["type"] == kind]


def test_one_offline_run_is_left_with_its_settings(resumed, records):
    folder, out = resumed
    (offline,) = offline_folders(folder)
    assert out.splitlines()[-1] == f"W&B, offline: wandb sync {offline}"
    assert (folder / "DONE").exists()

    (run,) = records_of("run", records)
    (exit_record,) = records_of("exit", records)
    assert exit_record.get("exit_code", 0) == 0
    assert run["run_group"] == "sweep"
    assert run["job_type"] == "train"
    config = run["config"]["update"]
    assert config["baseline"] == -0.3
    assert config["algo"]["a_pos"] == 1
    assert "baseline=-0.3" in config["overrides"]
    assert "versions" in config["environment"]
    axes = {metric.get("glob_name"): metric.get("step_metric") for metric in records_of("metric", records)}
    for kind in ("train", "eval", "rest"):
        assert axes[f"{kind}/*"] == "optimizer_step"


def values_in(rows, chart):
    """The chart's values by update, one for each."""
    points = [row for row in rows if chart in row]
    values = {row["optimizer_step"]: row[chart] for row in points}
    assert len(values) == len(points)
    return values


def test_every_update_arrives_once_and_in_order(resumed, records):
    folder, _ = resumed
    rows = [row for row in history(records) if "train/loss" in row]
    updates = lines_of(folder / "metrics.jsonl")

    assert column(updates, "step") == list(range(1, 13))
    for chart, key in (("optimizer_step", "step"), ("samples", "samples"), ("train/loss", "loss")):
        assert column(rows, chart) == pytest.approx(column(updates, key))
    steps = column(history(records), "_step")
    assert steps == sorted(set(steps))


def test_every_evaluation_arrives_once(resumed, records):
    folder, _ = resumed
    accuracy_of_subset, accuracy = {}, {}
    for record in lines_of(folder / "eval.jsonl"):
        step = record.get("step", 12 * record["iteration"])
        accuracies = accuracy_of_subset if record.get("subset") else accuracy
        accuracies[step] = record["pass@1"]

    assert accuracy_of_subset.keys() == {0, 4, 8, 12}
    assert accuracy.keys() == {0, 12}
    rows = history(records)
    assert values_in(rows, "eval/pass_at_1") == pytest.approx(accuracy_of_subset)
    assert values_in(rows, "rest/whole_pass_at_1") == pytest.approx(accuracy)


CHARTS = """
train/loss train/ess train/log_ratio_pos train/log_ratio_neg eval/pass_at_1 eval/maj_at_8 eval/length
"""


def test_charts_are_few(records):
    names = set().union(*history(records))

    assert {name for name in names if name.startswith(("train/", "eval/"))} == {*CHARTS.split()}
    assert not [name for name in names if name.endswith(("_low", "_high", "_se", "maj_at_1"))]


def test_the_completions_of_the_test_problems_arrive_in_two_tables(resumed):
    folder, _ = resumed
    tables = list(map(read_json, offline_folders(folder)[0].glob("files/media/table/*.json")))

    sent_texts = []
    for table in tables:
        sent_texts += column(table["data"], table["columns"].index("completion"))

    assert len(tables) == 2
    texts = [entry["completion"] for entry in lines_of(folder / "completions.jsonl") if entry["set"] == "test"]
    assert sorted(sent_texts) == sorted(texts)


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
