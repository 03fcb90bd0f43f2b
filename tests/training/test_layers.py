"""Compiled layers: the same numbers within rounding, and passes with a cache as before."""

import numpy as np
import pytest
import torch

from tests.conftest import make_model, refused, small_config, update_json
from tests.training.test_packing import SHARED, assert_same, make_smooth_model, scored
from tests.training.trainers import make_trainer, optim, weights
from topr_exp import pipeline
from topr_exp.runtime import distributed
from topr_exp.runtime.machine import cxx_compiler, python_header
from topr_exp.training import layers
from topr_exp.training import trainer as trainer_module
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.layers import compile_layers
from topr_exp.training.parallel import check_layers

needs_compiler = pytest.mark.skipif(
    cxx_compiler() is None or not python_header().is_file(), reason="there is no C++ compiler, or no Python.h"
)
SEVERAL_LENGTHS = [np.arange(0, 4), np.arange(4, 8), np.arange(2, 7)]


def test_passes_with_a_cache_are_not_compiled():
    model = make_model(11)
    ids = torch.tensor([[1, 2, 3]])
    compile_layers(model)

    with torch.compiler.set_stance("fail_on_recompile"):
        model(input_ids=ids, use_cache=True)
        with pytest.raises(RuntimeError, match="recompile"):
            model(input_ids=ids, use_cache=False)


@needs_compiler
@pytest.mark.parametrize("setting", ["compile", "gradient_checkpointing"])
def test_a_model_that_cant_be_trained_so_is_refused_before_anything_is_sampled(setting, tmp_path, monkeypatch):
    config = small_config(tmp_path, f"optim.{setting}=true")
    monkeypatch.setattr(layers, "layers_of", lambda model: [])
    with refused(f"optim.{setting}=true: .* has no layers that are known here; set false"):
        pipeline.run(config)
    assert not list(config.store.glob("rollouts/*"))


def test_quantized_weights_are_refused_before_anything_is_sampled(own_model, tmp_path):
    update_json(own_model / "config.json", quantization_config={"quant_method": "fp8"})
    config = small_config(tmp_path, f"model.path={own_model}")
    with refused(r"model.path: the weights in .* are quantized \(fp8\), which can't be trained; take the model that"):
        pipeline.run(config)
    assert not list(config.store.glob("rollouts/*"))


def test_a_model_without_known_layers_is_trained_with_its_activations_held(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "layers_of", lambda model: [])
    trainer, examples = make_trainer(tmp_path, gradient_checkpointing=None)
    assert not trainer.recompute
    trainer.update(GlobalBatch(examples, SEVERAL_LENGTHS[0], mu_is_policy=True), 1)


def test_a_model_that_cant_be_sharded_is_refused_where_it_would_be(monkeypatch):
    model = make_model(11)
    model._no_split_modules = None
    check_layers(model, optim(), "hsdp")
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    check_layers(model, optim(), None)
    with refused("cluster.parallel=fsdp: .* does not name its blocks; set ddp"):
        check_layers(model, optim(), "hsdp")


@pytest.mark.extended
@needs_compiler
def test_compiled_layers_give_the_same_scores_and_gradients():
    model = make_smooth_model()
    expected = scored(model, SHARED, "both")

    compile_layers(model)

    assert_same(scored(model, SHARED, "both", recompute=True), expected, 1e-5)


def final_weights(folder, *, resumes=False, **changes):
    trainer, examples = make_trainer(folder, **changes)
    for step, batch in enumerate(SEVERAL_LENGTHS):
        if resumes and step == 2:
            trainer.save({})
            trainer, _ = make_trainer(folder, **changes)
        trainer.update(GlobalBatch(examples, batch, mu_is_policy=step == 0), len(SEVERAL_LENGTHS))
    return weights(trainer)


@pytest.mark.extended
@needs_compiler
def test_updates_with_compiled_layers_stay_within_rounding_and_resume_to_the_same_bits(tmp_path):
    settings = {"compile": True, "gradient_checkpointing": True}

    eager = final_weights(tmp_path / "eager")
    compiled = final_weights(tmp_path / "compiled", **settings)
    resumed = final_weights(tmp_path / "resumed", resumes=True, **settings)

    assert (compiled - eager).abs().max() < 1e-5
    assert torch.equal(compiled, resumed)
