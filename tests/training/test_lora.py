"""Training an adapter alone: what the optimizer and checkpoints hold, in one process and in several, and whole runs."""

import importlib.util
import json
import sys
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import config_of, make_model, needs_peft, overrides
from tests.sweep_tools import records
from tests.training.test_parallel import train
from topr_exp.evaluate import main as evaluate
from topr_exp.models.adapter import base_weights, trained_weights
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.models.policy import Policy, load_policy
from topr_exp.pipeline import run
from topr_exp.training.trainer import Trainer

pytestmark = needs_peft

SETTING = "model.lora={rank: 4, alpha: 8, targets: all-linear}"


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_the_base_stays_bit_for_bit_and_the_optimizer_and_checkpoints_hold_the_adapter_alone(tmp_path, optimizer):
    trainer, records = train(tmp_path, "topr, lora", optimizer, "ddp")
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
    assert abs(records[2]["log_ratio_pos"]) > 1e-4


# ---- whole runs


@pytest.mark.extended
def test_in_bfloat16_weights_that_stay_are_another_model_which_evaluate_loads_without_peft(tmp_path, monkeypatch):
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
