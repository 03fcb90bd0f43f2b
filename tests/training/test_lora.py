"""Training an adapter alone: what the optimizer and checkpoints hold, and whole runs."""

import importlib.util
import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import config_of, make_model, needs_peft, overrides
from tests.sweep_tools import records
from tests.training.test_parallel import train
from topr_exp.evaluate import main as evaluate
from topr_exp.models.adapter import base_weights, trained_weights
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.training.trainer import Trainer

pytestmark = needs_peft
LORA = "model.lora={rank: 4, alpha: 8, targets: all-linear}"


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_the_base_stays_bit_for_bit_and_the_optimizer_and_checkpoints_hold_the_adapter_alone(tmp_path, optimizer):
    trainer, lines = train(tmp_path, "topr, lora", optimizer, "ddp")
    trainer.save({})

    model, base = trainer.policy.model, dict(make_model(11).named_parameters())
    for name, weight in base_weights(model).items():
        assert torch.equal(weight, base[name]), name
        assert weight.grad is None
    adapter = dict(trained_weights(model))
    assert all(weight.any() for weight in adapter.values())  # B too, by now
    (group,) = trainer.optimizer.param_groups
    assert {id(weight) for weight in group["params"]} == {id(weight) for weight in adapter.values()}
    stored = load_file(tmp_path / "step-00000003" / "part-00001-of-00001.safetensors")
    assert {name.partition("/")[2] for name in stored} == adapter.keys()
    assert abs(lines[0]["log_ratio_pos"]) < 1e-5
    assert abs(lines[2]["log_ratio_pos"]) > 1e-4


# ---- whole runs


@pytest.mark.extended
def test_in_bfloat16_weights_that_stay_are_another_model_which_evaluate_loads_without_peft(tmp_path, monkeypatch):
    settings = overrides(tmp_path / "runs", "model.dtype=bfloat16", "mu=scored")
    lora = config_of(*settings, LORA)
    run(config_of(*settings))
    summary = run(lora)
    assert summary["tokens"]["tokens_sampled"] > 0  # not what float32 weights gave

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *package: None if name == "peft" else find_spec(name, *package)
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "peft"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert evaluate([f"model={lora.folder}", f"output_dir={tmp_path / 'runs'}", "cluster.threads=1"]) == 0

    (path,) = (tmp_path / "runs").glob("*/*/eval.json")
    assert json.loads(path.read_text())["figures"]["pass@k"] == summary["final"]["pass@k"]


def test_each_iteration_goes_on_from_the_adapter_before_and_is_regularized_to_the_base(tmp_path, monkeypatch):
    adapters, references = [], []
    initialize = Trainer.__init__

    def recorded(self, policy, loss, reference, *arguments):
        adapters.append({name: weight.detach().clone() for name, weight in trained_weights(policy.model)})
        references.append(reference.fingerprint)
        initialize(self, policy, loss, reference, *arguments)

    monkeypatch.setattr(Trainer, "__init__", recorded)
    rounds = ["algo=kl_pg", "schedule=on_policy", "schedule.rounds=2", "schedule.prompts=4"]
    config = config_of(*overrides(tmp_path, *rounds, "iterations=2", "optim.lr=1e-3", LORA))
    run(config)

    folder = config.folder / "iteration-1" / "model"
    stored = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert len(stored) == len(adapters[1])
    for name, weight in adapters[1].items():
        assert torch.equal(weight, stored[f"base_model.model.{name}".replace(".default.", ".")]), name
    base = load_policy(config_of().model, "cpu").fingerprint
    assert references == [base, base]
    assert weights_fingerprint(folder) != weights_fingerprint(config.folder / "model")
    assert abs(records(config.folder)[-1]["vocab_kl_pos"]) > 0
