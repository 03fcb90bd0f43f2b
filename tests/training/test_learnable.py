"""A training set that teaches a loss nothing ends the run; one without positives that still trains is told."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import load
from tests.conftest import config_of, make_model, overrides
from tests.training.test_trainer import make_examples, new_trainer, optim, weights
from topr_exp.pipeline import run
from topr_exp.training.on_policy import train_offline
from topr_exp.types import TOPRError

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
    order = made(tmp_path, make_policy, "sft", np.zeros(ROWS, bool))[1].training_set.order(0, 1, 0)
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
    (tmp_path / "wrong.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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


def test_rounds_without_positives_are_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may have none, all of them together should have some."""
    (tmp_path / "strict.py").write_text('def grade(completion, gold):\n    return "incorrect"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rounds = ["schedule=on_policy", "schedule.rounds=1", "schedule.prompts=4", "data.grader=strict:grade"]
    summary = run(config_of(*overrides(tmp_path), *rounds))
    assert summary["note"].startswith("0 % of the ")
    assert run(config_of(*overrides(tmp_path)))["note"] is None
