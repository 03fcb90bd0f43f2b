"""Evaluations during training, and the completions that a run keeps for people to read."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from tests.sweep_tools import result
from topr_exp.config.settings import Config
from topr_exp.evaluation.evaluation import PER_VERDICT
from topr_exp.models.policy import Policy
from topr_exp.pipeline import run
from topr_exp.runtime.stop import Interrupted
from topr_exp.sampling.sampler import HFSampler
from topr_exp.store import Store


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Config]:
    """The same run with and without evaluations while it trains, two iterations each."""
    folder, configs = tmp_path_factory.mktemp("curve"), []
    for more in ([], ["evaluation.every=2", "evaluation.problems=3"]):
        configs.append(config_of(*overrides(folder, "iterations=2", *more)))
        run(configs[-1])
    return configs[0], configs[1]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_evaluating_does_not_change_the_training(finished: tuple[Config, Config]) -> None:
    weights = [(config.folder / "model" / "model.safetensors").read_bytes() for config in finished]
    assert weights[0] == weights[1]
    losses = [[record["loss"] for record in lines(config.folder / "metrics.jsonl")] for config in finished]
    assert losses[0] == losses[1]


def test_the_curve_has_its_points_and_the_headline_figures_stand_apart(finished: tuple[Config, Config]) -> None:
    plain, curved = (lines(config.folder / "eval.jsonl") for config in finished)
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
    points = {(each["iteration"], each["step"]) for each in lines(folder / "eval.jsonl") if "step" in each}
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
    shown = lines(finished[0].folder / "completions.jsonl")
    kinds = Counter((entry["set"], entry["iteration"]) for entry in shown)
    assert set(kinds) == {("test", 0), ("test", 1), ("test", 2), ("train", 1), ("train", 2)}
    assert max(Counter((entry["set"], entry["iteration"], entry["verdict"]) for entry in shown).values()) <= PER_VERDICT
    for entry in shown:
        assert -100 < entry["logp"] < 0
    correct = [entry for entry in shown if entry["verdict"] == "correct"]
    assert correct
    assert all(entry["answer"] == entry["gold"] for entry in correct)
    assert all(entry["trained_on"] for entry in shown if entry["set"] == "train")


ROUNDS = ["algo=rloo", "schedule.rounds=2", "schedule.prompts=4", "schedule.updates=2", "optim.batch_size=8"]


@pytest.mark.parametrize(("more", "step"), [([], 2), (ROUNDS, 1)], ids=["offline", "in a round"])
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
