"""Training an adapter alone: what the optimizer and checkpoints hold, and whole runs."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import column, make_model, needs_peft, read_json, small_config
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

    model = trainer.policy.model
    untrained = make_model(11)
    for name, weight in base_weights(model).items():
        assert torch.equal(weight, untrained.get_parameter(name)), name
        assert weight.grad is None
    adapter = dict(trained_weights(model))
    assert all(weight.any() for weight in adapter.values())  # B too, by now
    (group,) = trainer.optimizer.param_groups
    assert set(map(id, group["params"])) == set(map(id, adapter.values()))
    stored = load_file(tmp_path / "step-00000003/part-00001-of-00001.safetensors")
    assert {name.partition("/")[2] for name in stored} == adapter.keys()
    first_line, _, last_line = lines
    assert abs(first_line["log_ratio_pos"]) < 1e-5
    assert abs(last_line["log_ratio_pos"]) > 1e-4


# ---- whole runs


@pytest.mark.extended
def test_a_merged_model_of_bfloat16_is_evaluated_without_peft(tmp_path, monkeypatch):
    config = small_config(tmp_path, "model.dtype=bfloat16", "mu=scored", LORA)
    summary = run(config)
    for name in [name for name in sys.modules if name.split(".")[0] == "peft"]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed

    assert evaluate([f"model={config.folder}", f"output_dir={tmp_path}", "cluster.threads=1"]) == 0

    (path,) = tmp_path.glob("evaluations/*/eval.json")
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
        name_in_file = f"base_model.model.{name}".replace(".default.", ".")
        assert torch.equal(weight, stored[name_in_file]), name
    assert weights_fingerprint(folder) != weights_fingerprint(config.folder / "model")
    first, _, first_of_second, _ = column(records(config.folder), "vocab_kl_neg")
    assert first == pytest.approx(0, abs=1e-6), "the adapter begins as the base"
    assert first_of_second > 1e-4
