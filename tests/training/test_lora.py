"""Training an adapter alone: what the optimizer and checkpoints hold, in one process and in several, and whole runs."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import config_of, make_model, needs_peft, overrides
from tests.processes import together
from tests.training.broken_runs import records
from tests.training.test_parallel import assert_same, weights
from tests.training.test_trainer import TOPR, make_examples, optim
from topr_exp.algorithms.agro import KLPG
from topr_exp.config.groups import Optimizer
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.evaluate import main as evaluate
from topr_exp.models.adapter import base_weights, trained_weights
from topr_exp.models.loading import weights_fingerprint
from topr_exp.models.policy import Policy, load_policy
from topr_exp.pipeline import run
from topr_exp.training.parallel import parallelize
from topr_exp.training.trainer import Trainer

pytestmark = needs_peft

KL = KLPG("kl_pg", 0.5, False)  # needs the whole distribution of π_ref
SETTING = "model.lora={rank: 4, alpha: 8, targets: all-linear}"


def lora_policy(compute: torch.dtype = torch.float32) -> Policy:
    policy = Policy(make_model(11).to(compute), None, "test", compute)
    policy.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, "base", None)
    return policy


def train(folder, loss, parallel, steps, optimizer=Optimizer.adamw, **changes):
    """Updates up to a step, from the newest checkpoint below `folder` on."""
    ours = lora_policy(changes.pop("compute", torch.float32))
    reference = ours.without_adapter() if "vocab_kl" in loss.needs else None
    config = optim(name=optimizer, micro_batch_size=2, lr=1e-2, **changes)
    trainer = Trainer(ours, loss, reference, config, folder, parallelize(ours, parallel))
    examples = make_examples(lora_policy(ours.compute), loss)
    order = np.resize(examples.training_set.order(0, 1, 0), 100)
    records = []
    for step in range(trainer.step, steps):
        records.append(trainer.update(examples, order[8 * step :][:8], steps, expect_unit_ratio=step == 0))
    return trainer, records


@pytest.mark.parametrize("optimizer", list(Optimizer), ids=lambda optimizer: optimizer.name)
def test_the_base_stays_bit_for_bit_and_the_optimizer_and_checkpoints_hold_the_adapter_alone(tmp_path, optimizer):
    trainer, records = train(tmp_path, TOPR, "ddp", 3, optimizer)
    trainer.save({})
    trained, base = dict(trained_weights(trainer.policy.model)), dict(make_model(11).named_parameters())
    for name, weight in base_weights(trainer.policy.model).items():
        assert torch.equal(weight, base[name]), name
    assert all(weight.grad is None for weight in trainer.policy.model.parameters() if not weight.requires_grad)
    held = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    assert {id(weight) for weight in held} == {id(weight) for weight in trained.values()}
    assert all(bool(weight.any()) for weight in trained.values())  # B too, by now
    stored = load_file(tmp_path / "step-00000003" / "part-00001-of-00001.safetensors")
    assert {name.split("/", 1)[1] for name in stored} == trained.keys()
    assert abs(records[0]["log_ratio_pos"]) < 1e-5
    assert abs(records[2]["log_ratio_pos"]) > 1e-3


def final(folder: Path, loss: Any, parallel: str, **changes: Any) -> dict[str, torch.Tensor]:
    return weights(train(folder, loss, parallel, 3, **changes)[0])


def finals(folder: Path, parallel: str) -> list[dict[str, torch.Tensor]]:
    """The weights of several losses and optimizers; of a checkpoint of one process; of a base in bfloat16."""
    return [
        final(folder / "topr", TOPR, parallel, optimizer=Optimizer.adafactor, gradient_checkpointing=True),
        final(folder / "kl", KL, parallel),
        final(folder / "whole", TOPR, parallel),
        final(folder / "bfloat16", TOPR, parallel, compute=torch.bfloat16),
    ]


def shared_work(folder: Path) -> list[dict[str, torch.Tensor]]:
    train(folder / "sharded", TOPR, "fsdp", 1)[0].save({})
    return finals(folder, "fsdp")


def test_two_processes_compute_what_one_computes_and_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    expected = finals(tmp_path / "alone", "ddp")
    train(tmp_path / "whole", TOPR, "ddp", 1)[0].save({})
    start = {name: weight.detach() for name, weight in lora_policy(torch.bfloat16).model.named_parameters()}
    for got in together(2, shared_work, tmp_path):
        for ours, theirs in zip(got[:-1], expected, strict=False):
            assert_same(ours, theirs, 1e-5)
        for name, weight in got[-1].items():
            assert weight.dtype is (torch.float32 if ".lora_" in name else torch.bfloat16)
            assert ".lora_" in name or torch.equal(weight, start[name]), name
        moved, other = (
            torch.cat([(each[-1][name] - start[name]).flatten() for name in start if ".lora_" in name])
            for each in (got, expected)
        )
        assert float((moved - other).norm() / other.norm()) < 0.3  # rounded in another order
    (checkpoint,) = (tmp_path / "sharded").iterdir()
    stored = [load_file(path) for path in sorted(checkpoint.glob("part-*.safetensors"))]
    assert len(stored) == 2
    assert all(".lora_" in name for each in stored for name in each)
    assert_same(final(tmp_path / "sharded", TOPR, "ddp"), expected[2], 1e-5)


# ---- whole runs


def test_in_bfloat16_weights_that_stay_are_another_model_which_evaluate_loads_without_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [*overrides(tmp_path / "runs", "model.dtype=bfloat16", "mu=scored")]
    full, lora = config_of(*short), config_of(*short, SETTING)
    run(full)
    summary = run(lora)
    assert summary["tokens"]["tokens_sampled"] > 0  # not what float32 weights gave
    find = importlib.util.find_spec  # the merged model needs no peft
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else find(name, *more))
    for name in [name for name in sys.modules if name.split(".")[0] == "peft"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert evaluate([f"model={lora.folder}", f"output_dir={tmp_path / 'runs'}", "cluster.threads=1"]) == 0
    (found,) = (tmp_path / "runs").glob("*/*/eval.json")
    assert json.loads(found.read_text())["figures"]["pass@k"] == summary["final"]["pass@k"]


def test_each_iteration_goes_on_from_the_adapter_before_and_is_regularized_to_the_base(tmp_path, monkeypatch):
    seen: list[tuple[dict[str, torch.Tensor], Any]] = []
    original = Trainer.__init__

    def spying(self: Trainer, policy: Policy, loss: Any, reference: Any, *arguments: Any) -> None:
        seen.append(({name: w.detach().clone() for name, w in trained_weights(policy.model)}, reference))
        original(self, policy, loss, reference, *arguments)

    monkeypatch.setattr(Trainer, "__init__", spying)
    rounds = ["algo=kl_pg", "schedule=on_policy", "schedule.rounds=2", "schedule.prompts=4"]
    config = config_of(*overrides(tmp_path, *rounds, "iterations=2", "optim.lr=1e-3", SETTING))
    run(config)
    (_, first), (second, reference) = seen
    folder = config.folder / "iteration-1" / "model"
    stored = load_file(folder / "adapter" / "adapter_model.safetensors")
    by_name = {f"base_model.model.{name}".replace(".default.", "."): weight for name, weight in second.items()}
    assert by_name.keys() == stored.keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in by_name.items())
    base = load_policy(config_of().model, "cpu")
    for each in (first, reference):
        assert each.fingerprint == base.fingerprint
    assert weights_fingerprint(folder) != weights_fingerprint(config.folder / "model")
    assert abs(records(config.folder)[-1]["vocab_kl_pos"]) > 0
