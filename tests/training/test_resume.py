"""Runs that break off and are given again, that learn nothing, and that sample in rounds."""

import re
from itertools import chain
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import NAMES, load
from tests.conftest import contents, lines_of, needs_peft, read_json, refused, small_config, update_json, write_lines
from tests.observed import OBSERVED, Observer, observed, reading_models
from tests.sweep_tools import records
from tests.training.broken_runs import break_off, run_both, twins
from tests.training.trainers import make_trainer, optim, weights
from topr_exp.composition.training_set import TrainingSet
from topr_exp.config.groups import CheckpointConfig
from topr_exp.pipeline import run
from topr_exp.runs.finished import model_folders_of
from topr_exp.runtime.terminal import warn_once
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.loop import FixedSet, train
from topr_exp.training.optimizers import learning_rate
from topr_exp.training.rounds import Rounds

ROUNDS = "schedule=on_policy schedule.prompts=4"
CURVE = "optim.lr=1e-3 optim.warmup_steps=3 optim.schedule=cosine"
LORA = "model.lora={rank:4,alpha:8,targets:all-linear} optim.lr=1e-3 iterations=2"
BROKEN = {  # settings, and the updates after which the run breaks off
    "offline": (f"{CURVE} algo=topr iterations=2 optim.epochs=2", 4),
    "within a round, with replay": (
        f"{CURVE} {ROUNDS} optim=paper schedule.rounds=4 schedule.updates=2 optim.batch_size=8 schedule.replay=0.6 "
        "algo=agro",
        5,
    ),
    "within a round, with the sampler's distribution": (
        f"{ROUNDS} mu=sampler sampler.top_logprobs=5 algo.center_scores=true optim.name=adafactor optim.lr=1e-3 "
        "schedule.rounds=2 schedule.updates=2 optim.batch_size=6 compose.n_examples=12",
        3,
    ),
    "lora": (f"{LORA} algo=agro evaluation.every=2", 5),  # within the second iteration
    "lora in rounds": (f"{LORA} {ROUNDS} algo=rloo schedule.rounds=2", 3),
}


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
    words, updates = BROKEN[case]
    settings = ["checkpoint.every_seconds=0", "checkpoint.weights_every=1", "data.test_problems=2", *words.split()]
    undisturbed, broken = twins(tmp_path, *settings)

    summary, resumed_summary = run_both(undisturbed, broken, updates)

    assert resumed_summary["tokens"] == summary["tokens"]
    weights_folders = model_folders_of(undisturbed.folder)
    assert undisturbed.folder / "iteration-1/update-1" in weights_folders
    for path in chain.from_iterable(folder.rglob("*.*") for folder in weights_folders):
        if path.suffix in (".safetensors", ".json"):
            copy = broken.folder / path.relative_to(undisturbed.folder)
            assert copy.read_bytes() == path.read_bytes(), path.name


def test_weights_of_an_update_are_written_once_and_again_only_where_they_are_damaged(tmp_path):
    config = small_config(tmp_path, "checkpoint.every_seconds=600", "checkpoint.weights_every=1")
    break_off(config, updates=2)
    first, second = (config.folder / f"iteration-1/update-{step}" for step in (1, 2))
    inode = first.stat().st_ino
    weights_of_second = contents(second)
    (second / "model.safetensors").write_bytes(b"")

    run(config)

    assert first.stat().st_ino == inode
    assert contents(second) == weights_of_second
    assert [folder.name for folder in model_folders_of(config.folder)] == ["model", "update-1", "update-2", "update-3"]


SHORT = ["checkpoint.every_seconds=0", "data.test_problems=2", "data.eval_n=1", "optim.lr=1e-3"]
OFFLINE = ["compose.n_examples=32"]
IN_ROUNDS = ["schedule.prompts=4", "schedule.rounds=2"]


IN_EVERY_TEST_RUN = ("dpo", "mis", "rloo")
OTHER_LOSSES = sorted({*NAMES} - {*IN_EVERY_TEST_RUN})


@pytest.mark.parametrize(
    "name", [*IN_EVERY_TEST_RUN, *(pytest.param(name, marks=pytest.mark.extended) for name in OTHER_LOSSES)]
)
def test_every_loss_trains_is_resumed_bit_for_bit_and_named_on_the_card(outputs, name):
    schedule = IN_ROUNDS if name in ("rloo", "agro_on_policy") else OFFLINE
    settings = [*SHORT, *schedule, f"algo={name}"]
    undisturbed, broken = (small_config(outputs, *settings, f"name={twin}") for twin in "ab")

    run_both(undisturbed, broken, updates=1)

    assert len(records(broken.folder)) == 2
    assert f"- {name}\n" in (broken.folder / "model/README.md").read_text()


def test_updates_that_were_made_on_other_verdicts_are_told(tmp_path, capsys):
    config = small_config(tmp_path, *SHORT, *OFFLINE)
    break_off(config, updates=1)
    path = config.folder / "iteration-1/sources.json"
    sources = read_json(path)
    update_json(path, verdicts="verdicts/0")

    run(config)

    warning = f"updates 1 to 1 were made on verdicts/0 (now {sources['verdicts']}): "
    assert warning in capsys.readouterr().err


# ---- learning rates


def test_by_default_every_rate_is_lr_bit_for_bit():
    assert {learning_rate(optim(lr=1e-4), step, 7) for step in range(7)} == {1e-4}


def test_a_warm_up_that_never_ends_is_refused():
    assert learning_rate(optim(warmup_steps=3), 3, 4) == 1e-2
    with refused(r"^optim.warmup_steps must be below 3, the updates of an iteration; got 3$"):
        learning_rate(optim(warmup_steps=3), 0, 3)


# ---- passes over a set


@pytest.mark.parametrize("whole_groups", [False, True])
def test_the_order_of_a_pass_is_drawn_once(tmp_path, whole_groups):
    """Else each of the updates of a large set would sort it again."""
    trainer, examples = make_trainer(tmp_path, epochs=2, whole_groups=whole_groups)
    fixed_set = FixedSet(examples, trainer.config, seed=0, iteration=1, mu_is_start=True)

    rows = []
    with patch.object(TrainingSet, "order", autospec=True, side_effect=TrainingSet.order) as order:
        for step in range(fixed_set.update_count):
            rows += fixed_set.global_batch(step, Mock()).examples.tolist()

    assert order.call_count == 2
    first_pass, second_pass = (examples.order(0, 1, epoch, whole_groups=whole_groups) for epoch in range(2))
    assert rows == [*first_pass, *second_pass]


# ---- training sets that teach a loss nothing

ROWS = 24


def train_a_pass(trainer, examples, iteration=1):
    fixed_set = FixedSet(examples, trainer.config, seed=0, iteration=iteration, mu_is_start=True)
    train(trainer, fixed_set, Mock(), CheckpointConfig(1e9, weights_every=4), Mock(), iteration=iteration)


@pytest.mark.parametrize("algo, share", [("sft", 0), ("grpo", 0), ("grpo", 1)])
def test_a_pass_without_a_gradient_ends_the_run_in_its_first_iteration(tmp_path, capsys, algo, share):
    trainer, examples = make_trainer(tmp_path, load(algo), correct=np.full(ROWS, share > 0))
    initial = weights(trainer)
    warn_once.cache_clear()

    with refused(f"algo={algo} has nothing to learn from: {100 * share}.0 % of the"):
        train_a_pass(trainer, examples)

    trainer, examples = make_trainer(tmp_path / "later", load(algo), correct=np.full(ROWS, share > 0))
    train_a_pass(trainer, examples, iteration=2)

    assert trainer.step == 3
    assert torch.equal(weights(trainer), initial)
    warnings = capsys.readouterr().err
    assert f"warning: algo={algo} learnt nothing: no update had a gradient" in warnings
    assert warnings.count("warning: checkpoint.weights_every=4 keeps no weights of 3 updates") == 1


@pytest.mark.parametrize("position", [0, -1])
def test_an_example_in_any_batch_is_enough(tmp_path, position):
    """The first updates may have no gradient, and so may those of a run that goes on after the one that had."""
    loss = load("sft")
    _, examples = make_trainer(tmp_path / "order", loss)
    order = examples.order(0, 1, 0)
    is_correct = np.arange(ROWS) == order[position]
    trainer, examples = make_trainer(tmp_path, loss, is_correct)
    initial = weights(trainer)
    for batch in (order[:8], order[8:16]):
        trainer.update(GlobalBatch(examples, batch, mu_is_policy=False), 3)
    trainer.save({})
    resumed, _ = make_trainer(tmp_path, loss)

    train_a_pass(resumed, examples)

    assert not torch.equal(weights(resumed), initial)


WRONG_ROWS = []
for count in range(16):
    question = f"Mia has {count} shells. She buys 2 more. How many shells does Mia have now?"
    WRONG_ROWS.append({"question": question, "gold": str(count + 2), "completion": f" The answer is {count}."})


def test_a_set_without_positives_is_refused_for_sft_and_noted_for_topr(tmp_path, capsys):
    source = f"data.completions={write_lines(tmp_path / 'wrong.jsonl', WRONG_ROWS)}"
    with refused("algo=sft has nothing to learn from"):
        run(small_config(tmp_path, source, "algo=sft"))
    config = small_config(tmp_path, source, "compose=anna_karenina")
    capsys.readouterr()

    summary = run(config)

    printed = capsys.readouterr()
    note = "0 % of the 16 completions of the training set are correct: it has negatives alone"
    assert f"warning: {note}\n" in printed.err
    assert f"\nnote: {note}\n" in printed.out
    assert summary["note"] == note
    assert summary["positive_share"] == 0.0
    assert read_json(config.folder / "iteration-1/training_set.json")["note"] == note


# ---- rounds

GROUPS = f"algo=grpo {ROUNDS} schedule.rounds=4 optim.batch_size=16 data.n=4".split()


def test_an_engine_is_sized_anew_beside_what_rounds_keep(tmp_path, own_model):
    observer = Observer()

    def read(folder, read_model):
        observer.calls.append(folder.name)
        return read_model()

    config = small_config(tmp_path, *GROUPS, "algo=kl_pg", f"model.reference={own_model}", *OBSERVED)

    with observed(observer), reading_models(read):
        run(config)

    reference_index = observer.calls.index(own_model.name)
    assert observer.calls[reference_index - 2 : reference_index] == ["sample", "close"]


class Blocker(Observer):
    """Puts a file in the place of the model's folder while the last round samples."""

    def __init__(self, model_folder):
        super().__init__()
        self.model_folder = model_folder

    def before_sample(self, policy, n):
        if policy.fingerprint == "iteration 1, update 3":
            self.model_folder.touch()


@pytest.mark.extended
def test_tokens_of_rounds_count_once_where_the_model_could_not_be_written(tmp_path):
    settings = [*GROUPS, "checkpoint.every_seconds=0", *OBSERVED]
    undisturbed, broken = twins(tmp_path, *settings)
    model_folder = broken.folder / "model"

    with observed(Blocker(model_folder)), refused("cannot write .*/model: "):
        run(broken)
    model_folder.unlink()

    assert run(broken)["tokens"] == run(undisturbed)["tokens"]


def test_a_first_round_that_keeps_nothing_is_one_line(tmp_path):
    line = r"compose.pass_rate=\[0.9, 0.95\]: of 16 problems that round 0 drew \(10 times\) none is solved so often"
    with refused(rf"^{line}$"):
        run(small_config(tmp_path, *GROUPS[:-2], "compose.pass_rate=[0.9,0.95]", "data.n=16", "optim.batch_size=64"))


@pytest.mark.parametrize("schedule", [[], GROUPS])
def test_a_later_iteration_that_keeps_nothing_leaves_the_model_as_it_was(tmp_path, monkeypatch, capsys, schedule):
    config = small_config(tmp_path, *schedule, "iterations=2", "compose.pass_rate=[0,1]")
    first_model = config.folder / "iteration-1/model"
    keep = lambda completions, low, high: np.full(len(completions), not first_model.exists())
    monkeypatch.setattr("topr_exp.composition.selection.is_solved_between", keep)
    monkeypatch.setattr("topr_exp.training.rounds.is_solved_between", keep)

    summary = run(config)

    note = summary["note"].rpartition("iteration 2: ")[2]
    assert re.match(r"(no update: |0 of 4 updates; )compose.pass_rate=\[0.0, 1.0\]", note)
    assert capsys.readouterr().err.count(note.partition(": ")[2]) == 1
    assert summary["n_train"] == read_json(config.folder / "iteration-1/training_set.json")["n_train"]
    assert {record["iteration"] for record in records(config.folder)} == {1}
    assert contents(config.folder / "model")["model.safetensors"] == contents(first_model)["model.safetensors"]
    _, first, second = lines_of(config.folder / "eval.jsonl")
    assert first | {"iteration": 2} == second == summary["final"] | {"iteration": 2}
    assert run(config) == summary


BY_LENGTH = "schedule=async schedule.lag=null schedule.concurrency=6 schedule.tokens_per_update=9"


@pytest.mark.parametrize(
    "schedule, updates, reason",
    [
        ("iterations=2", 1, "16 problems that round 1 drew"),
        ("schedule=async schedule.lag=1", 2, "what was drawn for round 2"),
        (BY_LENGTH, 1, "none"),
    ],
)
def test_training_ends_at_a_later_round_that_keeps_nothing(tmp_path, monkeypatch, schedule, updates, reason):
    config = small_config(tmp_path, *GROUPS, *schedule.split(), "checkpoint.weights_every=1")
    split_groups = Rounds.split_groups
    keep = lambda rounds, table: split_groups(rounds, table) if rounds.trainer.step == 0 else []
    monkeypatch.setattr(Rounds, "solved_often_enough", keep)

    summary = run(config)

    note = rf"{updates} of 4 updates; compose.pass_rate=None: .*{reason}.*"
    if config.iterations == 2:
        note = f"iteration 1: {note}; {note}"
    assert re.fullmatch(note, summary["note"])
    assert len(records(config.folder)) == updates * config.iterations
    folder_names = [folder.name for folder in config.folder.glob("iteration-*/update-*")]
    assert folder_names == [f"update-{step}" for step in range(1, updates)], "those of the last one are the model's"
    assert run(config) == summary
