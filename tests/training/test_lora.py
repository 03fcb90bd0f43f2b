"""Training an adapter alone: what the optimizer and checkpoints hold, and whole runs."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import config_of, make_model, needs_peft, overrides, read_json, small_config
from tests.observed import OBSERVED, Observer, observed
from tests.sweep_tools import records
from tests.training.test_parallel import train
from topr_exp.evaluate import main as evaluate
from topr_exp.models.adapter import base_weights, trained_weights
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.pipeline import run

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
    assert set(map(id, group["params"])) == set(map(id, adapter.values()))
    stored = load_file(tmp_path / "step-00000003/part-00001-of-00001.safetensors")
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

    for name in [name for name in sys.modules if name.split(".")[0] == "peft"]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert evaluate([f"model={lora.folder}", f"output_dir={tmp_path / 'runs'}", "cluster.threads=1"]) == 0

    (path,) = (tmp_path / "runs").glob("*/*/eval.json")
    assert read_json(path)["figures"]["pass@k"] == summary["final"]["pass@k"]


class AdapterObserver(Observer):
    """Keeps the adapter that each round samples from, by the name of its weights."""

    def __init__(self):
        super().__init__()
        self.adapters = {}

    def before_sample(self, policy, n):
        if policy.base is not None:
            adapter = {name: weight.detach().clone() for name, weight in trained_weights(policy.model)}
            self.adapters[policy.fingerprint] = adapter


def test_each_iteration_goes_on_from_the_adapter_before_and_is_regularized_to_the_base(tmp_path):
    rounds = ["algo=kl_pg", "schedule=on_policy", "schedule.rounds=2", "schedule.prompts=4"]
    config = small_config(tmp_path, *rounds, "iterations=2", "optim.lr=1e-3", LORA, *OBSERVED)

    with observed(AdapterObserver()) as observer:
        run(config)

    folder = config.folder / "iteration-1/model"
    stored = load_file(folder / "adapter/adapter_model.safetensors")
    adapter = observer.adapters["iteration 2, update 0"]
    assert len(stored) == len(adapter)
    for name, weight in adapter.items():
        assert torch.equal(weight, stored[f"base_model.model.{name}".replace(".default.", ".")]), name
    assert weights_fingerprint(folder) != weights_fingerprint(config.folder / "model")
    first, _, first_of_second, _ = records(config.folder)
    assert first["vocab_kl_neg"] == pytest.approx(0, abs=1e-6), "the adapter begins as the base"
    assert first_of_second["vocab_kl_neg"] > 1e-4
