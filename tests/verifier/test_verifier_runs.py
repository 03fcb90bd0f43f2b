"""Runs that train a verifier: what they leave behind, and that kills change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, lines_of, refused
from tests.training.broken_runs import record_engine
from topr_exp.config.settings import Config
from topr_exp.evaluate import main as evaluate_folder
from topr_exp.pipeline import run
from topr_exp.report.reader import read_run
from topr_exp.report.repetitions import read_repetitions
from topr_exp.runs.policies import Policies
from topr_exp.store import Store
from topr_exp.types import TOPRError

SMALL = [
    "experiment=smoke", "model=tiny_verifier", "data.train_problems=8", "data.test_problems=6", "task.solutions=3",
    "task.test_solutions=4", "data.n=2", "data.eval_n=2", "cluster.threads=1",
]  # fmt: skip


def settings(folder: Path, *more: str) -> Config:
    return config_of(*SMALL, f"output_dir={folder}", *more)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of this module share a store."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def finished(outputs: Path) -> Config:
    config = settings(outputs)
    run(config)
    return config


def stored(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_a_verifier_is_trained_on_the_truth_about_solutions(finished: Config) -> None:
    folder = finished.folder
    summary, sources = stored(folder, "summary.json"), stored(folder, "iteration-1/sources.json")
    assert summary["task"] == "verifier"
    assert summary["problems"] == {"train": 8 * 3, "test": 6 * 4}
    assert summary["n_train"] == 8 * 3 * 2
    store = Store(Path(sources["store"]))
    verdicts = store.open(store.root / sources["verdicts"])
    assert set(verdicts.key["golds"]) == {"correct", "incorrect"}
    assert verdicts.key["grader"] == "verdict"
    answers, names = (verdicts.read([name])[name].to_pylist() for name in ("answer", "verdict"))
    problems = store.open(store.root / sources["rollouts"]).read(["problem"])["problem"].to_pylist()
    for problem, answer, name in zip(problems, answers, names, strict=True):
        truth = verdicts.key["golds"][problem]
        assert name == ("invalid" if answer is None else "correct" if answer == truth else "incorrect")
    assert "invalid" in names


def test_the_figures_are_those_of_the_verdicts(finished: Config) -> None:
    folder = finished.folder
    summary, counted = stored(folder, "summary.json"), stored(folder, "verification.json")
    assert len(counted["problems"]) == 6
    for part, iteration in (("base", "0"), ("final", "1")):
        figures, values = summary[part]["verifier"], counted["iterations"][iteration]
        assert figures["accuracy"]["value"] == pytest.approx(summary[part]["pass@1"])  # pass@1 of the derived problems
        assert figures["accuracy"]["value"] == pytest.approx(sum(values["right"]) / (6 * 4 * 2))
    base, final = (sum(counted["iterations"][i]["weighted_sc"]) / 6 for i in "01")
    assert summary["final"]["verifier"]["weighted_sc - base"]["value"] == pytest.approx(final - base)
    entries = lines_of(folder / "completions.jsonl")
    assert all("\nSolution: " in entry["question"] for entry in entries)
    assert {entry["gold"] for entry in entries} == {"correct", "incorrect"}


def test_the_solver_writes_what_an_ordinary_run_of_it_writes(finished: Config, outputs: Path) -> None:
    """Solutions are the solver's completions of the problems: another run of that model finds them in the store."""
    solver = ["model=tiny", "data.n=3", "data.eval_n=4", "data.train_problems=8", "data.test_problems=6"]
    more = [f"sampler.prompts_per_shard={finished.sampler.prompts_per_shard}"]
    summary = run(config_of("experiment=smoke", *solver, *more, "cluster.threads=1", f"output_dir={outputs}"))
    assert summary["tokens"]["tokens_sampled"] == 0
    share = stored(finished.folder, "summary.json")["base"]["verifier"]["solved"]["value"]
    assert summary["base"]["pass@1"] == pytest.approx(share)


def test_the_solvers_engine_is_gone_before_the_verifier_is_loaded(tmp_path, monkeypatch):
    order = record_engine(monkeypatch)

    def load(*given: Any) -> None:
        order.append("load")
        raise TOPRError("far enough")

    monkeypatch.setattr(Policies, "load", load)
    with pytest.raises(TOPRError, match="far enough"):
        run(settings(tmp_path))
    assert order[-4:] == ["sample", "close", "load", "close"]


def test_a_trained_verifier_is_evaluated_as_its_run_did(finished, outputs, tmp_path, capsys):
    assert evaluate_folder([f"model={finished.folder}", f"output_dir={tmp_path}", "cluster.threads=1"]) == 0
    (path,) = tmp_path.glob("*/*/eval.json")
    told, final = json.loads(path.read_text())["figures"], stored(finished.folder, "summary.json")["final"]
    assert told["pass@1"] == final["pass@1"]
    assert told["verifier"]["weighted_sc"] == final["verifier"]["weighted_sc"]
    assert "oracle (pass@4)" in capsys.readouterr().out


def test_solutions_that_were_left_out_end_the_averages_by_problem(finished: Config) -> None:
    run = read_run(finished.folder)
    assert len(read_repetitions([run], "final")) == 1
    incomplete = read_run(finished.folder)
    incomplete.summary["too_long"] = {"train": 0, "test": 4}
    with refused("does not hold the same number of verdicts on each of its problems"):
        read_repetitions([incomplete], "final")
