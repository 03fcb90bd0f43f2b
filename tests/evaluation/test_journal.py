"""Evaluations during training, the completions that a run keeps to be read, and what an evaluation hands over."""

import json
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import config_of, lines_of, make_completions, overrides
from tests.sweep_tools import result
from topr_exp.config.settings import Config
from topr_exp.evaluation.journal import EvaluatingJournal
from topr_exp.evaluation.showcase import PER_VERDICT
from topr_exp.evaluation.summary import summarise_evaluation, table_folders
from topr_exp.models.policy import Policy
from topr_exp.pipeline import run
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.hf import HFSampler
from topr_exp.store import Store
from topr_exp.types import VERDICTS, Problem, TOPRError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Config]:
    """The same run with and without evaluations while it trains, two iterations each."""
    folder, configs = tmp_path_factory.mktemp("curve"), []
    for more in ([], ["evaluation.every=2", "evaluation.problems=3"]):
        configs.append(config_of(*overrides(folder, "iterations=2", *more)))
        run(configs[-1])
    return configs[0], configs[1]


def test_evaluating_does_not_change_the_training(finished: tuple[Config, Config]) -> None:
    weights = [(config.folder / "model" / "model.safetensors").read_bytes() for config in finished]
    assert weights[0] == weights[1]
    losses = [[record["loss"] for record in lines_of(config.folder / "metrics.jsonl")] for config in finished]
    assert losses[0] == losses[1]


def test_the_curve_has_its_points_and_the_headline_figures_stand_apart(finished: tuple[Config, Config]) -> None:
    plain, curved = (lines_of(config.folder / "eval.jsonl") for config in finished)
    points = [record for record in curved if record.get("subset")]
    assert [(record["iteration"], record.get("step")) for record in points] == [
        (0, None), (1, 2), (1, 4), (1, None), (2, 2), (2, 4), (2, None)
    ]  # fmt: skip
    assert {record["problems"] for record in points} == {3}
    assert [record["samples_seen"] for record in points if "step" in record] == [32, 64, 32, 64]
    whole = [record for record in curved if not record.get("subset")]
    assert [record["pass@1"] for record in whole] == [record["pass@1"] for record in plain]
    summary = json.loads((finished[1].folder / "summary.json").read_text())
    assert [*summary][:2] == ["base", "final"]
    assert [*summary["final"]][:5] == ["pass@1", "maj@4", "correct", "incorrect", "invalid"]
    assert summary["final"]["pass@1"] == whole[-1]["pass@1"], "of all problems"


def test_each_point_of_the_curve_is_of_completions_of_its_own(finished: tuple[Config, Config]) -> None:
    """Every point within an iteration has a table of the weights at that update, and no two the same completions."""
    folder = finished[1].folder
    points = {(each["iteration"], each["step"]) for each in lines_of(folder / "eval.jsonl") if "step" in each}
    store, drawn = Store(folder / "store"), {}
    for path in (folder / "store" / "rollouts").iterdir():
        table = store.open(path)
        if place := re.fullmatch(rf"{folder.name}, iteration (\d+), update (\d+)", table.key["weights"]):
            logp = table.read(["sampler_logp"])["sampler_logp"].to_pylist()
            assert len(logp) == 3 * 4
            drawn[int(place[1]), int(place[2])] = round(sum(map(sum, logp)), 6)
    assert drawn.keys() == points == {(1, 2), (1, 4), (2, 2), (2, 4)}
    assert len({*drawn.values()}) == 4  # by weights that had moved


def test_the_showcase_holds_every_kind_with_log_probabilities(finished: tuple[Config, Config]) -> None:
    shown = lines_of(finished[0].folder / "completions.jsonl")
    kinds = Counter((entry["set"], entry["iteration"]) for entry in shown)
    assert set(kinds) == {("test", 0), ("test", 1), ("test", 2), ("train", 1), ("train", 2)}
    assert max(Counter((entry["set"], entry["iteration"], entry["verdict"]) for entry in shown).values()) <= PER_VERDICT
    for entry in shown:
        assert -100 < entry["logp"] < 0
    correct = [entry for entry in shown if entry["verdict"] == "correct"]
    assert correct
    assert all(entry["answer"] == entry["gold"] for entry in correct)
    assert all(entry["trained_on"] for entry in shown if entry["set"] == "train")


@pytest.mark.parametrize("every", [None, 2])
def test_a_journal_that_evaluates_hands_everything_on(every: int | None) -> None:
    """Before a checkpoint the records are made durable, once nothing forbids that they are kept."""
    calls: list[Any] = []
    inner = SimpleNamespace(
        log=lambda record: calls.append(("log", record["step"])),
        before_checkpoint=lambda step, steps: calls.append(("before_checkpoint", step, steps)),
    )
    evaluate = lambda step, samples: calls.append(("evaluate", step, samples))
    journal = EvaluatingJournal(inner, every, evaluate, StopFlag(), lambda: calls.append("check"))
    for step in (1, 2):
        journal.log({"step": step, "samples": 8 * step})
    journal.before_checkpoint(2, 10)
    evaluated = [] if every is None else [("evaluate", 2, 16)]
    assert calls == [("log", 1), ("log", 2), *evaluated, "check", ("before_checkpoint", 2, 10)]

    def forbid() -> None:
        raise TOPRError("a shard has changed")

    forbidden = EvaluatingJournal(inner, every, evaluate, StopFlag(), forbid)
    calls.clear()
    with pytest.raises(TOPRError, match="has changed"):
        forbidden.before_checkpoint(2, 10)
    assert calls == []


@pytest.mark.parametrize("more", [[], ["evaluation.every=2"]], ids=["plain", "evaluating"])
def test_each_checkpoint_of_a_run_counts_on_records_that_are_on_the_disk(tmp_path, monkeypatch, more):
    config = config_of(*overrides(tmp_path, "checkpoint.every_seconds=0", *more))
    events: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: events.append(os.readlink(f"/proc/self/fd/{number}")))
    replace = os.rename
    monkeypatch.setattr(os, "rename", lambda source, target: events.append(str(target)) or replace(source, target))
    run(config)
    checkpoints = [number for number, path in enumerate(events) if "/step-" in path and ".tmp" not in path]
    metrics = [number for number, path in enumerate(events) if path.endswith("metrics.jsonl")]
    assert len(checkpoints) >= 3
    for before, checkpoint in zip([0, *checkpoints], checkpoints, strict=False):
        assert any(before < number < checkpoint for number in metrics)


ROUNDS = ["algo=rloo", "schedule.rounds=2", "schedule.prompts=4", "schedule.updates=2", "optim.batch_size=8"]


@pytest.mark.parametrize(
    ("more", "step"), [([], 2), pytest.param(ROUNDS, 1, marks=pytest.mark.extended)], ids=["offline", "in a round"]
)
def test_a_signal_within_an_evaluation_saves_and_changes_nothing(tmp_path, monkeypatch, more, step):
    settings = ["evaluation.every=1", "sampler.prompts_per_shard=1", "checkpoint.every_seconds=600", *more]
    settings += ["data.train_problems=12", "data.test_problems=6"]
    undisturbed, stopped = (config_of(*overrides(tmp_path / name, *settings)) for name in ("whole", "stopped"))
    run(undisturbed)
    sample, asked = HFSampler.sample, list[str]()

    def disturbed(self: HFSampler, policy: Policy, *arguments: Any) -> Any:
        if policy.fingerprint.endswith(f"update {step}"):
            asked.append(policy.fingerprint)
            if len(asked) in (3, 5):
                os.kill(os.getpid(), signal.SIGTERM)
        return sample(self, policy, *arguments)

    monkeypatch.setattr(HFSampler, "sample", disturbed)
    for attempt in (3, 5):  # of 6 shards; the second time before any other update
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            run(stopped)
        assert len(asked) == attempt
        assert [path.name for path in (stopped.folder / "checkpoints" / "1").iterdir()] == [f"step-{step:08}"]
    run(stopped)
    assert len(asked) == 5 + 3
    assert result(stopped.folder) == result(undisturbed.folder)


# ---- an evaluation hands its parts over: which problems are asked, whose verdicts are summarised


# Of each problem four completions: their verdicts and the classes of their answers.
SAID = {
    "a": (["correct", "correct", "incorrect", "incorrect"], [0, 0, 1, 2]),
    "b": (["incorrect", "incorrect", "correct", "invalid"], [0, 0, 1, -1]),
    "c": (["invalid", "invalid", "invalid", "correct"], [-1, -1, -1, 0]),
    "d": (["incorrect"] * 4, [0, 1, 2, 3]),
}
LEVELS, SUBJECTS, SOURCES = (1, 2, 1, 3), ("sums", "sums", "words", None), ("x", "x", "y", "y")
PROBLEMS = [Problem(name, "?", "1", *more) for name, *more in zip(SAID, LEVELS, SUBJECTS, SOURCES, strict=True)]


def answers(path: str = "string") -> Completions:
    verdicts = [VERDICTS.index(word) for words, _ in SAID.values() for word in words]
    classes = [number for _, numbers in SAID.values() for number in numbers]
    rows = range(len(verdicts))
    columns = {
        "tokens": [[1] * (3 + i % 4) for i in rows],
        "finish": ["length" if i % 8 == 7 else "stop" for i in rows],
    }
    columns |= {"verdict": verdicts, "class": classes, "path": [path] * len(verdicts)}
    completions: Completions = make_completions(
        np.repeat(np.arange(len(PROBLEMS)), 4), problems=PROBLEMS, name="rollouts/r", **columns
    )
    assert completions.stored is not None
    return replace(completions, stored=replace(completions.stored, verdicts="verdicts/v"))


def test_the_figures_are_those_of_the_problems_in_their_order() -> None:
    figures = summarise_evaluation(answers())
    assert (figures["problems"], figures["samples"]) == (4, 4)
    assert table_folders(answers(), Store("nowhere")) == {
        "rollouts": "nowhere/rollouts/r",
        "verdicts": "nowhere/verdicts/v",
    }
    assert figures["pass@1"] == pytest.approx(np.mean([2, 1, 1, 0]) / 4)
    assert figures["maj@4"] == pytest.approx(np.mean([1, 0, 1, 0]))
    assert (figures["correct"], figures["incorrect"], figures["invalid"]) == (4 / 16, 8 / 16, 4 / 16)
    assert figures["correct_histogram"] == [1, 2, 1, 0, 0]
    by_level = {name: (part["pass@1"], part["problems"]) for name, part in figures["levels"].items()}
    assert by_level == {"1": (3 / 8, 2), "2": (1 / 4, 1), "3": (0.0, 1)}
    assert {name: part["maj@4"] for name, part in figures["subjects"].items()} == {"sums": 0.5, "words": 1.0}
    shares = {name: (part["correct"], part["incorrect"], part["invalid"]) for name, part in figures["levels"].items()}
    assert shares == {"1": (3 / 8, 2 / 8, 3 / 8), "2": (1 / 4, 2 / 4, 1 / 4), "3": (0.0, 1.0, 0.0)}


def test_the_figures_of_the_first_problems_are_those_of_no_others() -> None:
    figures = summarise_evaluation(answers(), 2)
    assert (figures["problems"], figures["pass@1"], figures["maj@4"]) == (2, 3 / 8, 0.5)
    assert figures["levels"].keys() == {"1", "2"}
    assert summarise_evaluation(answers("timeout"), 2)["grader_timeouts"] == 8
    assert (
        summarise_evaluation(answers(), 1)["truncated_share"],
        summarise_evaluation(answers(), 2)["truncated_share"],
    ) == (0, 1 / 8)


def test_problems_of_one_source_are_one_case() -> None:
    """Means 1/2, 1/4 | 1/4, 0 of two sources: resampled, their means are 3/8, 1/4 or 1/8."""
    assert summarise_evaluation(answers())["pass@k"]["1"] == {"value": 1 / 4, "low": 1 / 8, "high": 3 / 8}


def test_no_majority_where_incorrect_answers_cannot_be_told_apart() -> None:
    told = answers("user")
    classes = pa.array([0 if is_correct else -1 for is_correct in told.is_correct], pa.int32())
    figures, left = summarise_evaluation(told), summarise_evaluation(told.with_columns({"class": classes}))
    assert figures.keys() - left.keys() == {"maj@4"}
    assert left["maj@k"] == {}
    assert left["levels"]["1"].keys() == figures["levels"]["1"].keys() - {"maj@4"}
