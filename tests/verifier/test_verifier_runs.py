"""Runs that train a verifier: what they leave behind, and how they are evaluated."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.conftest import column, config_of, lines_of, read_json, refused
from tests.observed import OBSERVED, Observer, observed, reading_models
from tests.reference.model import table_of
from topr_exp.evaluate import main as evaluate_folder
from topr_exp.pipeline import run
from topr_exp.report.reader import read_run
from topr_exp.report.repetitions import read_repetitions
from topr_exp.types import TOPRError

SMALL = ["experiment=smoke", "data.train_problems=8", "data.test_problems=6", "cluster.threads=1"]
VERIFIER = ["model=tiny_verifier", "task.solutions=3", "task.test_solutions=4", "data.n=2", "data.eval_n=2"]


@pytest.fixture(scope="module")
def finished(outputs):
    config = config_of(*SMALL, *VERIFIER, f"output_dir={outputs}")
    run(config)
    return config


def test_a_verifier_is_trained_on_the_truth_about_solutions(finished):
    summary = read_json(finished.folder / "summary.json")
    assert summary["task"] == "verifier"
    assert summary["problems"] == {"train": 8 * 3, "test": 6 * 4}
    assert summary["n_train"] == 8 * 3 * 2

    sources = read_json(finished.folder / "iteration-1/sources.json")
    key = read_json(Path(sources["store"], sources["verdicts"], "key.json"))["key"]
    golds = key["golds"]
    assert set(golds) == {"correct", "incorrect"}
    assert key["grader"] == "verdict"
    rollouts, verdicts = (table_of(finished.folder, kind) for kind in ("rollouts", "verdicts"))
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        expected = "invalid"
        if verdict["answer"] is not None:
            expected = "correct" if verdict["answer"] == golds[rollout["problem"]] else "incorrect"
        assert verdict["verdict"] == expected
    assert None in column(verdicts, "answer")


def test_the_figures_are_those_of_the_verdicts(finished):
    summary = read_json(finished.folder / "summary.json")
    verification = read_json(finished.folder / "verification.json")
    assert len(verification["problems"]) == 6

    for part, iteration in (("base", "0"), ("final", "1")):
        figures = summary[part]["verifier"]
        counts = verification["iterations"][iteration]
        accuracy = figures["accuracy"]["value"]
        assert accuracy == pytest.approx(summary[part]["pass@1"])  # pass@1 of the derived problems
        assert accuracy == pytest.approx(sum(counts["right"]) / (6 * 4 * 2))
        assert figures["weighted_sc"]["value"] == pytest.approx(sum(counts["weighted_sc"]) / 6)
    for entry in lines_of(finished.folder / "completions.jsonl"):
        assert "\nSolution: " in entry["question"]
        assert entry["gold"] in ("correct", "incorrect")


def test_the_solver_writes_what_an_ordinary_run_of_it_writes(finished, outputs):
    """Solutions are the solver's completions of the problems: another run of that model finds them in the store."""
    shard_size = f"sampler.prompts_per_shard={finished.sampler.prompts_per_shard}"
    solver = ["model=tiny", "data.n=3", "data.eval_n=4", shard_size, f"output_dir={outputs}"]

    summary = run(config_of(*SMALL, *solver))

    assert summary["tokens"]["tokens_sampled"] == 0
    solved = read_json(finished.folder / "summary.json")["base"]["verifier"]["solved"]["value"]
    assert summary["base"]["pass@1"] == pytest.approx(solved)


def test_a_verifier_that_the_hub_lacks_is_told_before_its_solver_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError))
    config = config_of(*SMALL, *VERIFIER, f"output_dir={tmp_path}")
    model = replace(config.model, path="nobody/none")

    with refused("model nobody/none: not on this machine"):
        run(replace(config, model=model))

    assert not config.store.exists()


def test_the_engine_of_the_solver_is_gone_before_the_verifier_is_loaded(tmp_path):
    calls = []

    def read(folder, read_model):
        calls.append(folder.name)
        if folder.name == "tiny_verifier":
            raise TOPRError("far enough")
        return read_model()

    with observed(Observer(calls)), reading_models(read), refused("far enough"):
        run(config_of(*SMALL, *VERIFIER, *OBSERVED, f"output_dir={tmp_path}"))

    assert calls[-4:] == ["sample", "close", "tiny_verifier", "close"]


def test_a_trained_verifier_is_evaluated_as_its_run_did(finished, tmp_path, capsys):
    assert evaluate_folder([f"model={finished.folder}", f"output_dir={tmp_path}", "cluster.threads=1"]) == 0

    (path,) = tmp_path.glob("*/*/eval.json")
    figures = read_json(path)["figures"]
    final = read_json(finished.folder / "summary.json")["final"]
    assert figures["pass@1"] == final["pass@1"]
    assert figures["verifier"]["weighted_sc"] == final["verifier"]["weighted_sc"]
    assert "oracle (pass@4)" in capsys.readouterr().out


def test_solutions_that_were_left_out_end_the_averages_by_problem(finished):
    repetitions = read_repetitions([read_run(finished.folder)], "final")
    assert repetitions.values().shape == (1, 6), "a value for each problem, not for each of its solutions"

    incomplete = read_run(finished.folder)
    incomplete.summary["too_long"] = {"train": 0, "test": 4}
    with refused("does not hold the same number of verdicts on each of its problems"):
        read_repetitions([incomplete], "final")
