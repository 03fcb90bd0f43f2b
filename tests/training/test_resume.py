"""Runs that break off and are given again, that learn nothing, and that sample in rounds."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import NAMES, load
from tests.conftest import config_of, needs_peft, overrides, refused, write_lines
from tests.sweep_tools import records, result
from tests.training.broken_runs import break_off, record_engine
from tests.training.trainers import make_examples, new_policy, new_trainer, optim, weights
from topr_exp.pipeline import run
from topr_exp.runs.policies import Policies
from topr_exp.training.loop import FixedSet, train
from topr_exp.training.optimizers import learning_rate
from topr_exp.training.trainer import Trainer
from topr_exp.types import TOPRError

ROUNDS = "schedule=on_policy schedule.prompts=4"
CURVE = "optim.lr=1e-3 optim.warmup_steps=3 optim.schedule=cosine"
LORA = "model.lora={rank:4,alpha:8,targets:all-linear} optim.lr=1e-3 iterations=2"
BROKEN = {  # settings, and the iteration and its update before which the run breaks off
    "offline": (f"{CURVE} algo=topr iterations=2 optim.epochs=2", 1, 4),
    "within a round, with replay": (
        f"{CURVE} {ROUNDS} optim=paper schedule.rounds=4 schedule.updates=2 optim.batch_size=8 schedule.replay=0.6 "
        "algo=agro",
        1,
        5,
    ),
    "within a round, with the sampler's distribution": (
        f"{ROUNDS} mu=sampler sampler.top_logprobs=5 algo.center_scores=true optim.lr=1e-3 schedule.rounds=2 "
        "schedule.updates=2 optim.batch_size=8",
        1,
        3,
    ),
    "lora": (f"{LORA} algo=agro evaluation.every=2", 2, 1),
    "lora in rounds": (f"{LORA} {ROUNDS} algo=rloo schedule.rounds=2", 2, 1),
}


def break_off_and_resume(broken, iteration, step):
    """Give a run that breaks off before an update of an iteration twice."""
    break_off(broken, lambda trainer: trainer.step == step and f"iteration {iteration}" in trainer.policy.fingerprint)
    metrics = (broken.folder / "metrics.jsonl").read_text()
    run(broken)
    assert (broken.folder / "metrics.jsonl").read_text().startswith(metrics), "no update is made again"


def summary_of(config):
    return json.loads((config.folder / "summary.json").read_text())


@pytest.mark.parametrize(
    "case",
    [
        "offline",
        "within a round, with the sampler's distribution",
        pytest.param("within a round, with replay", marks=pytest.mark.extended),
        pytest.param("lora", marks=[pytest.mark.extended, needs_peft]),
        pytest.param("lora in rounds", marks=[pytest.mark.extended, needs_peft]),
    ],
)
def test_a_run_that_broke_off_goes_on_bit_for_bit(tmp_path, case):
    words, iteration, step = BROKEN[case]
    settings = ["checkpoint.every_seconds=0", *words.split()]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *settings)) for name in ("a", "b"))

    run(undisturbed)
    break_off_and_resume(broken, iteration, step)

    assert result(broken.folder) == result(undisturbed.folder)
    assert summary_of(broken)["tokens"] == summary_of(undisturbed)["tokens"]
    for path in (undisturbed.folder / "model").rglob("*.*"):
        if path.suffix in (".safetensors", ".json"):
            copy = broken.folder / path.relative_to(undisturbed.folder)
            assert copy.read_bytes() == path.read_bytes(), path.name


SHORT = ["checkpoint.every_seconds=0", "data.test_problems=2", "data.eval_n=1", "optim.lr=1e-3"]
OFFLINE = ["compose.n_examples=32"]
IN_ROUNDS = ["schedule.prompts=4", "schedule.rounds=2"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A folder with a store that runs share."""
    return tmp_path_factory.mktemp("outputs")


IN_EVERY_TEST_RUN = ("dpo", "mis", "rloo")
OTHER_LOSSES = sorted({*NAMES} - {*IN_EVERY_TEST_RUN})


@pytest.mark.parametrize(
    "name", [*IN_EVERY_TEST_RUN, *(pytest.param(name, marks=pytest.mark.extended) for name in OTHER_LOSSES)]
)
def test_every_loss_trains_is_resumed_bit_for_bit_and_named_on_the_card(outputs, name):
    schedule = IN_ROUNDS if name in ("rloo", "agro_on_policy") else OFFLINE
    settings = [*SHORT, *schedule, f"algo={name}"]
    undisturbed, broken = (config_of(*overrides(outputs, *settings, f"name={twin}")) for twin in ("a", "b"))

    run(undisturbed)
    break_off_and_resume(broken, 1, 1)

    assert len(records(broken.folder)) == 2
    assert result(broken.folder) == result(undisturbed.folder)
    assert f"- {name}\n" in (broken.folder / "model" / "README.md").read_text()


# ---- learning rates


def test_by_default_every_rate_is_lr_bit_for_bit():
    assert {learning_rate(optim(lr=1e-4), step, 7) for step in range(7)} == {1e-4}


def test_a_warm_up_that_never_ends_is_refused():
    assert learning_rate(optim(warmup_steps=3), 3, 4) == 1e-2
    with refused(r"^optim.warmup_steps must be below 3, the updates of an iteration; got 3$"):
        learning_rate(optim(warmup_steps=3), 0, 3)


# ---- training sets that teach a loss nothing

ROWS = 24


def make_trainer(folder, algo, is_correct):
    """A trainer, and 24 examples of which some are correct."""
    policy, loss = new_policy(), load(algo)
    return new_trainer(policy, loss, optim(), folder), make_examples(policy, loss, correct=is_correct)


def train_a_pass(trainer, examples):
    fixed_set = FixedSet(examples, trainer.config, seed=0, iteration=1, mu_is_start=True)
    train(trainer, fixed_set, Mock(), iteration=1, save_every=1e9)


@pytest.mark.parametrize(("algo", "correct"), [("sft", 0), ("grpo", 0), ("grpo", ROWS)])
def test_a_pass_without_a_gradient_ends_the_run(tmp_path, algo, correct):
    trainer, examples = make_trainer(tmp_path, algo, np.arange(ROWS) < correct)
    initial = weights(trainer).clone()

    with refused(rf"algo={algo} has nothing to learn from: {100 * (correct > 0)}.0 % of the"):
        train_a_pass(trainer, examples)

    assert trainer.step == 3
    assert torch.equal(weights(trainer), initial)


@pytest.mark.parametrize("position", [0, -1])
def test_an_example_in_any_batch_is_enough(tmp_path, position):
    """The first updates may have no gradient, and so may those of a run that goes on after the one that had."""
    _, examples = make_trainer(tmp_path / "first", "sft", np.zeros(ROWS, bool))
    is_correct = np.arange(ROWS) == examples.order(0, 1, 0)[position]
    trainer, examples = make_trainer(tmp_path, "sft", is_correct)
    for start in (0, 8):
        batch = examples.order(0, 1, 0)[start : start + 8]
        trainer.update(examples, batch, 3, expect_unit_ratio=False)
    trainer.save({})

    resumed, _ = make_trainer(tmp_path, "sft", is_correct)
    initial = weights(make_trainer(tmp_path / "new", "sft", is_correct)[0])
    train_a_pass(resumed, examples)

    assert not torch.equal(weights(resumed), initial)


def test_a_run_without_positives(tmp_path, capsys):
    rows = []
    for count in range(16):
        question = f"Mia has {count} shells. She buys 2 more. How many shells does Mia have now?"
        rows.append({"question": question, "gold": str(count + 2), "completion": f" The answer is {count}."})
    source = f"data.completions={write_lines(tmp_path / 'wrong.jsonl', rows)}"
    with refused("algo=sft has nothing to learn from"):
        run(config_of(*overrides(tmp_path), source, "algo=sft"))
    config = config_of(*overrides(tmp_path), source, "compose=anna_karenina")
    capsys.readouterr()

    summary = run(config)

    printed = capsys.readouterr()
    note = "0 % of the 16 completions of the training set are correct: it has negatives alone"
    assert f"warning: {note}\n" in printed.err
    assert f"\nnote: {note}\n" in printed.out
    assert (summary["note"], summary["positive_share"]) == (note, 0.0)
    assert json.loads((config.folder / "iteration-1" / "training_set.json").read_text())["note"] == note


# ---- rounds

GROUPS = f"algo=grpo {ROUNDS} schedule.rounds=4 optim.batch_size=16 data.n=4".split()


def test_an_engine_is_sized_anew_beside_what_rounds_keep(tmp_path, monkeypatch):
    calls = record_engine(monkeypatch)

    def reference(self):
        calls.append("reference")
        raise TOPRError("far enough")

    monkeypatch.setattr(Policies, "reference", reference)
    with pytest.raises(TOPRError, match="far enough"):
        run(config_of(*overrides(tmp_path, *GROUPS)))

    assert calls[-4:] == ["sample", "close", "reference", "close"]


@pytest.mark.extended
def test_tokens_of_rounds_count_once_where_the_model_could_not_be_written(tmp_path, monkeypatch):
    settings = [*GROUPS, "checkpoint.every_seconds=0"]
    undisturbed, broken = (config_of(*overrides(tmp_path / name, *settings)) for name in "ab")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_policy", Mock(side_effect=TOPRError("disk full")))
        with pytest.raises(TOPRError, match="disk full"):
            run(broken)

    assert run(broken)["tokens"] == run(undisturbed)["tokens"]


def test_a_round_that_keeps_nothing(tmp_path):
    line = r"compose.pass_rate=\[0.9, 0.95\]: of 16 problems that round 0 drew \(10 times\) none is solved so often"
    with refused(rf"^{line}$"):
        run(config_of(*overrides(tmp_path, *GROUPS, "compose.pass_rate=[0.9,0.95]")))
