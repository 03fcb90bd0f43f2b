"""Runs that break off and are given again, that learn nothing, and that sample in rounds."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import load
from tests.conftest import config_of, make_model, needs_peft, overrides, write_lines
from tests.sweep_tools import records
from tests.training.broken_runs import break_off, record_engine
from tests.training.test_trainer import make_examples, new_trainer, optim, weights
from topr_exp.pipeline import run
from topr_exp.runs.policies import Policies
from topr_exp.training.optimizers import learning_rate
from topr_exp.training.trainer import Trainer, train_offline
from topr_exp.types import TOPRError

# By hand: a warm-up of 3 and five updates after it.
CURVE = ["optim.lr=1e-3", "optim.warmup_steps=3", "optim.schedule=cosine"]
LORA = ["model.lora={rank: 4, alpha: 8, targets: all-linear}", "optim.lr=1e-3", "iterations=2"]
ROUNDS = ["schedule=on_policy", "schedule.prompts=4"]


TWO_UPDATES = ["optim=paper", "schedule.rounds=4", "schedule.updates=2", "optim.batch_size=8", "schedule.replay=0.6"]
CASES = {  # settings, and the iteration and its update before which the run breaks off
    "within a round, with replay": ([*CURVE, *ROUNDS, *TWO_UPDATES, "algo=agro"], 1, 5),
    "lora": ([*LORA, "algo=agro", "evaluation.every=2"], 2, 1),
    "offline": ([*CURVE, "algo=topr", "iterations=2", "optim.epochs=2"], 1, 4),
    "lora in rounds": ([*LORA, *ROUNDS, "algo=rloo", "schedule.rounds=2"], 2, 1),
}
MARKS = {name: [*[pytest.mark.extended] * (name != "offline"), *[needs_peft] * ("lora" in name)] for name in CASES}


@pytest.mark.parametrize("case", [pytest.param(name, marks=MARKS[name]) for name in CASES])
def test_a_run_that_broke_off_goes_on_bit_for_bit(tmp_path: Path, case: str) -> None:
    settings, iteration, step = CASES[case]

    def breaks_off(trainer: Trainer) -> bool:
        return trainer.step == step and f"iteration {iteration}" in trainer.policy.fingerprint

    every = ["checkpoint.every_seconds=0", *settings]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *every)) for name in ("a", "b"))
    whole = run(undisturbed)
    break_off(broken, breaks_off)
    made = (broken.folder / "metrics.jsonl").read_text().splitlines()
    again = run(broken)
    lines = (broken.folder / "metrics.jsonl").read_text().splitlines()
    assert lines[: len(made)] == made, "times included: no update was made again"
    assert records(broken.folder) == records(undisturbed.folder)
    assert again["tokens"] == whole["tokens"]
    files = [path for path in (undisturbed.folder / "model").rglob("*") if path.suffix in (".safetensors", ".json")]
    assert files
    for path in files:
        same = broken.folder / path.relative_to(undisturbed.folder)
        assert same.read_bytes() == path.read_bytes(), path.name


def test_by_default_every_rate_is_lr_bit_for_bit() -> None:
    assert {learning_rate(optim(lr=1e-4), done, 7) for done in range(7)} == {1e-4}


def test_a_warm_up_that_never_ends_is_refused() -> None:
    assert learning_rate(optim(warmup_steps=3), 3, 4) == 1e-2
    with pytest.raises(TOPRError, match=r"^optim.warmup_steps must be below 3, the updates of an iteration; got 3$"):
        learning_rate(optim(warmup_steps=3), 0, 3)


# ---- training sets that teach a loss nothing


ROWS = 24


@pytest.mark.parametrize(("algo", "correct"), [("sft", 0), ("grpo", 0), ("grpo", ROWS)])
def test_a_pass_without_a_gradient_ends_the_run(tmp_path: Path, make_policy: Any, algo: str, correct: int) -> None:
    trainer, examples, before = made(tmp_path, make_policy, algo, np.arange(ROWS) < correct)
    with pytest.raises(TOPRError, match=rf"algo={algo} has nothing to learn from: {100 * (correct > 0)}.0 % of the"):
        train_offline(trainer, examples, Mock(), 0, 1, 1e9, mu_is_start=True)
    assert trainer.step == 3
    assert torch.equal(weights(trainer), before)


@pytest.mark.parametrize("place", [0, -1])
def test_an_example_in_any_batch_is_enough(tmp_path: Path, make_policy: Any, place: int) -> None:
    """The first updates may have no gradient, and so may those of a run that goes on after the one that had."""
    order = made(tmp_path, make_policy, "sft", np.zeros(ROWS, bool))[1].order(0, 1, 0)
    trainer, examples, before = made(tmp_path, make_policy, "sft", np.arange(ROWS) == order[place])
    update, calls = trainer.update, []

    def breaks_off(*given: Any, **more: Any) -> Any:
        if len(calls) == 2:
            trainer.save({})
            raise KeyboardInterrupt
        calls.append(1)
        return update(*given, **more)

    trainer.update = breaks_off
    with pytest.raises(KeyboardInterrupt):
        train_offline(trainer, examples, Mock(), 0, 1, 1e9, mu_is_start=True)
    trainer = made(tmp_path, make_policy, "sft", np.arange(ROWS) == order[place])[0]
    train_offline(trainer, examples, Mock(), 0, 1, 1e9, mu_is_start=True)
    assert not torch.equal(weights(trainer), before)


def made(folder: Path, make_policy: Any, algo: str, correct: np.ndarray) -> tuple[Any, Any, torch.Tensor]:
    """A trainer, 24 examples of which some are correct, and the weights."""
    policy, loss = make_policy(make_model(11)), load(algo)
    trainer = new_trainer(policy, loss, optim(), folder)
    return trainer, make_examples(policy, loss, correct=correct), weights(trainer).clone()


def test_a_run_without_positives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = "Mia has {} shells. She buys 2 more. How many shells does Mia have now?"
    rows = [
        {"question": question.format(a), "gold": str(a + 2), "completion": f" The answer is {a}."} for a in range(16)
    ]
    write_lines(tmp_path / "wrong.jsonl", rows)
    wrong = f"data.completions={tmp_path / 'wrong.jsonl'}"
    with pytest.raises(TOPRError, match="algo=sft has nothing to learn from"):
        run(config_of(*overrides(tmp_path), wrong, "algo=sft"))
    told = "0 % of the 16 completions of the training set are correct: it has negatives alone"
    config = config_of(*overrides(tmp_path), wrong, "compose=anna_karenina")
    capsys.readouterr()
    summary = run(config)
    printed = capsys.readouterr()
    assert f"warning: {told}\n" in printed.err
    assert f"\nnote: {told}\n" in printed.out
    assert (summary["note"], summary["positive_share"]) == (told, 0.0)
    assert json.loads((config.folder / "iteration-1" / "training_set.json").read_text())["note"] == told


@pytest.mark.extended
def test_rounds_without_positives_are_told_at_the_end(smoke, tmp_path, monkeypatch):
    """A round may have none, all of them together should have some."""
    (tmp_path / "strict.py").write_text('def grade(completion, gold):\n    return "incorrect"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rounds = ["schedule=on_policy", "schedule.rounds=1", "schedule.prompts=4", "data.grader._target_=strict.grade"]
    summary = run(config_of(*overrides(tmp_path), *rounds))
    assert summary["note"].startswith("0 % of the ")
    assert smoke[1]["note"] is None


# ---- rounds


def test_an_engine_is_sized_anew_beside_what_rounds_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = record_engine(monkeypatch)

    def reference(self: Policies) -> None:
        order.append("reference")
        raise TOPRError("far enough")

    monkeypatch.setattr(Policies, "reference", reference)
    with pytest.raises(TOPRError, match="far enough"):
        run(config_of(*overrides(tmp_path, *SOME)))
    assert order[-4:] == ["sample", "close", "reference", "close"]


@pytest.mark.extended
def test_tokens_of_rounds_count_once_where_the_model_could_not_be_written(tmp_path: Path) -> None:
    whole, broken = (config_of(*overrides(tmp_path / name, *SOME, "checkpoint.every_seconds=0")) for name in "ab")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "save_policy", Mock(side_effect=TOPRError("disk full")))
        with pytest.raises(TOPRError, match="disk full"):
            run(broken)
    assert run(broken)["tokens"] == run(whole)["tokens"]


SOME = ["algo=grpo", "schedule=on_policy", "schedule.rounds=4", "schedule.prompts=4", "optim.batch_size=16", "data.n=4"]


def test_a_round_that_keeps_nothing(tmp_path: Path) -> None:
    none = ["compose.pass_rate=[0.9,0.95]"]
    with pytest.raises(TOPRError) as caught:
        run(config_of(*overrides(tmp_path, *SOME, *none)))
    assert str(caught.value) == (
        "compose.pass_rate=[0.9, 0.95]: of 16 problems that round 0 drew (10 times) none is solved so often"
    )
