"""Whole runs with the shipped model on a handful of problems: what they leave behind, and what a kill changes."""

import json
import random
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, lines_of, overrides
from tests.processes import start_command
from tests.sweep_tools import result, slow, steps, wait_for
from topr_exp.models.model_folder import fetch_model_folder, weights_fingerprint
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.runs import policies
from topr_exp.runs.stage_timer import STAGES


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of this module share a store."""
    return tmp_path_factory.mktemp("outputs")


def test_a_run_leaves_everything_behind(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = config_of(*overrides(outputs, "data=math", "baseline=-0.3"))
    summary = run(config)
    folder = config.folder
    names = {"config.yaml", "environment.json", "metrics.jsonl", "eval.jsonl", "summary.json", "model", "DONE"}
    assert names <= {path.name for path in folder.iterdir()}
    assert summary == json.loads((folder / "summary.json").read_text())
    assert (summary["algo"], summary["data"], summary["source"], summary["model"]) == (
        "topr",
        "math",
        "embedded",
        "tiny",
    )
    assert (summary["baseline"], summary["n_train"]) == (-0.3, 16 * 4)
    p = summary["positive_share"]
    assert summary["effective_positive"] == pytest.approx(p * 1.3 / (1 - (1 - 2 * p) * 0.3))
    for figures in (summary["base"], summary["final"]):
        assert figures["correct"] + figures["incorrect"] + figures["invalid"] == pytest.approx(1)
        assert figures["pass@1"] == pytest.approx(figures["correct"])
        assert list(figures)[:5] == ["pass@1", "maj@4", "correct", "incorrect", "invalid"]
    assert tuple(summary["seconds"]) == STAGES
    assert [record["step"] for record in lines_of(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    environment = json.loads((folder / "environment.json").read_text())
    assert {"git_commit", "versions", "cores", "seed", "python"} <= set(environment)
    printed = "".join(capsys.readouterr())
    for text in ("R           correct: > 0 100 %; wrong: < 0 100 %",
                 "a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0", "in the form of", "M parameters, cpu with 1 thread, ",
                 str(folder), "[ ]: 95 % over"):  # fmt: skip
        assert text in printed
    assert "π_old" not in printed, "μ is compared with the sampler's as it was scored"
    assert run(config) == summary
    assert "finished before, nothing to do" in capsys.readouterr().out

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.get_input_embeddings().weight.shape[0] >= len(AutoTokenizer.from_pretrained(folder / "model"))
    next_run = config_of(*overrides(outputs, f"model.path={folder / 'model'}", "data=math", "name=next"))
    assert run(next_run)["base"]["pass@1"] == summary["final"]["pass@1"]


def test_runs_that_differ_in_training_alone_share_what_was_sampled(outputs: Path) -> None:
    first = run(config_of(*overrides(outputs)))
    second = run(config_of(*overrides(outputs, "seed=5", "effective_positive=0.5", "optim.lr=1e-5")))
    assert second["tokens"]["tokens_sampled"] == second["tokens"]["tokens_scored"] == 0
    assert second["effective_positive"] == pytest.approx(0.5)
    third = run(config_of(*overrides(outputs, "sampler.seed=7")))
    assert third["tokens"]["tokens_sampled"] > 0
    assert third["base"] == first["base"]  # evaluation has a seed of its own


def test_each_iteration_stands_for_itself(tmp_path: Path) -> None:
    """Its weights are kept if they were to be, what they sampled is this run's alone, the last one is the result."""
    more = ["iterations=3", "compose=anna_karenina", "checkpoint.keep_iterations=[1]", "data.eval_n=3"]
    config = config_of(*overrides(tmp_path, *more))
    summary = run(config)
    assert sorted(int(path.parent.name[10:]) for path in config.folder.glob("iteration-*/model")) == [1]
    base = weights_fingerprint(fetch_model_folder("tiny"))
    shared, own = (keys_of(folder / "store", "weights") for folder in (tmp_path, config.folder))
    assert shared == [base] * 2, "to train on and to test"
    assert sorted(Counter(own).values()) == [1, 2, 2], "the last one is tested alone"
    assert base not in own
    counts, seeds = (
        [value for folder in (tmp_path, config.folder) for value in keys_of(folder / "store", name)]
        for name in ("n", "seed")
    )
    drawn = [seed for seed, count in zip(seeds, counts, strict=True) if count == config.data.n]
    assert len(drawn) == len({*drawn}) == 3, "a policy was trained on what the earlier numbers drew"
    recorded = lines_of(config.folder / "eval.jsonl")
    assert [record["iteration"] for record in recorded] == [0, 1, 2, 3]
    for part, iteration in (("base", 0), ("final", 3)):
        assert summary[part] == {name: value for name, value in recorded[iteration].items() if name != "iteration"}
    sets = [json.loads((config.folder / f"iteration-{i}" / "training_set.json").read_text()) for i in (1, 2, 3)]
    assert len({each["positive_share"] for each in sets}) > 1
    assert all(summary[name] == sets[-1][name] for name in ("n_train", "positive_share", "effective_positive"))


def keys_of(store: Path, name: str) -> list[Any]:
    """What drew each table of completions: its weights, or its seed."""
    return [json.loads(path.read_text())["key"][name] for path in store.glob("rollouts/*/key.json")]


@pytest.mark.parametrize(
    "more", [["algo=agro", "iterations=2"], ["schedule=on_policy", "schedule.rounds=2", "optim.batch_size=32"]]
)
def test_a_model_is_gone_before_the_next_one_is_loaded(outputs, more, monkeypatch):
    """At 8B there is no memory for the trained weights, their gradients, and the same weights read from disk."""
    loaded: list[Any] = []

    def load(*given: Any) -> Any:
        policy_of_the_run = len(given) == 3 or not loaded  # else the reference, which stands beside it
        if policy_of_the_run:
            assert all(model() is None for model in loaded)
        policy = load_policy(*given)
        if policy_of_the_run:
            loaded.append(weakref.ref(policy.model))
        return policy

    config = config_of(*overrides(outputs, *more, "evaluation.every=1"))
    monkeypatch.setattr(policies, "load_policy", load)
    run(config)
    assert len(loaded) == 1 + config.iterations


ROUNDS = ["algo=rloo", "schedule.rounds=20", "schedule.prompts=4"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["optim.epochs=6", *slow("Slow")], id="topr"),
        pytest.param([*ROUNDS, *slow("SlowRLOO")], id="rloo", marks=pytest.mark.extended),
    ],
)
def test_kill_and_the_same_command_again_gives_the_same_weights(tmp_path: Path, more: list[str]) -> None:
    arguments = [*more, "checkpoint.every_seconds=0", "optim.batch_size=16", "optim.micro_batch_size=16"]
    undisturbed = config_of(*overrides(tmp_path / "a", *arguments, "algo.seconds=0"))
    run(undisturbed)
    killed = config_of(*overrides(tmp_path / "b", *arguments))
    command = overrides(tmp_path / "b", *arguments)
    moments: list[Callable[[], bool]] = [
        killed.folder.exists,  # in one of the first stages, or in training
        lambda: steps(killed.folder) >= 2,
        lambda: steps(killed.folder) >= 4,
    ]
    rng = random.Random(0)
    for reached in moments:
        process = start_command(*command)
        wait_for(lambda reached=reached, process=process: reached() or not process.is_alive())
        time.sleep(rng.uniform(0.0, 0.3))
        assert process.is_alive(), "was done before it could be killed"
        process.kill()
        process.join(60)
        assert not (killed.folder / "DONE").exists()
    last = start_command(*command)
    last.join(500)
    assert last.exitcode == 0
    assert result(killed.folder) == (expected := result(undisturbed.folder))
    assert len(expected["updates"]) >= 20


IN_ROUNDS = ("schedule.prompts=4", "schedule.updates=1", "schedule.rounds=2")


@pytest.mark.parametrize("rounds", [(), pytest.param(IN_ROUNDS, marks=pytest.mark.extended)])
def test_how_far_the_samplers_mu_is_from_the_policy_is_said(
    outputs: Path, rounds: tuple[str, ...], capsys: Any
) -> None:
    """At temperature 1 they are the same, at 0.6 not."""
    gaps = []
    for temperature in (1.0, 0.6):
        run(config_of(*overrides(outputs, "mu=sampler", f"sampler.temperature={temperature}", "name=mu", *rounds)))
        (line,) = re.findall(r"^log μ +\|log π − log μ\| is (\S+) a token(.*)$", capsys.readouterr().out, re.MULTILINE)
        gaps.append(float(line[0]))
        if not rounds:
            share = float(re.search(r"effective sample size (\S+) %", line[1])[1])
            assert (share == 100) == (temperature == 1)
    assert gaps[0] < 1e-4 < 0.01 < gaps[1]
