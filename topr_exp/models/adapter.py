"""LoRA by peft: small matrices beside a model's linear layers are trained, its own weights stay as they are.

The model stays the class that it is, so that all else computes with it as with any other. Its weights with the
adapter's product added are what is on disk and what engines load (`merged`); the adapter alone lies beside them.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models.loading import refuse_damage
from topr_exp.runtime.checksums import write_checksums
from topr_exp.types import ConfigError

WEIGHTS = "adapter_model.safetensors"
NAME = "default"  # peft's, of an adapter that has none
PREFIX = "base_model.model."  # peft's, of the weights of a model that it wraps


def add_adapter(model: Any, lora: LoRA, seed: int) -> None:
    """Give a model an adapter that changes nothing yet, in float32, and freeze everything else."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = lora.names or ALL_LINEAR
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    names = base_weights(model).keys()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    if base_weights(model).keys() != names:  # such as experts that are one tensor
        raise ConfigError(f"model.lora: an adapter of {type(model).__name__} can't be merged into its weights")
    for _, weight in trained_weights(model):
        weight.data = weight.data.float()  # peft makes them as the layers are


def trained_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weights that training changes: all of a model, or its adapter's."""
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write a model's adapter as peft does, so that `PeftModel.from_pretrained` adds it to the model `base`."""
    from peft import get_peft_model_state_dict

    folder.mkdir()
    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {PREFIX + name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config[NAME]
    stored = dataclasses.replace(config, base_model_name_or_path=base, inference_mode=True)
    stored.target_modules = sorted(stored.target_modules)
    stored.save_pretrained(folder)
    write_checksums(folder)


def load_adapter(model: Any, folder: Path) -> None:
    """Set the adapter of a model, which has one of the same shape, to what `save_adapter` wrote."""
    from peft import set_peft_model_state_dict

    refuse_damage(folder)
    weights = load_file(folder / WEIGHTS)
    set_peft_model_state_dict(model, {name.removeprefix(PREFIX): weight for name, weight in weights.items()})


def fingerprint(base: str, folder: Path, alpha: float) -> str:
    """A name for the weights `base` with the adapter of a folder, as weights_fingerprint is for a model's folder.

    alpha: the numerator of the adapter's scale; the denominator is the rank, which its tensors' shapes have.
    """
    scaled = f"{base} {float(alpha)} ".encode()
    return hashlib.sha256(scaled + (folder / WEIGHTS).read_bytes()).hexdigest()[:32]


def base_weights(model: Any) -> dict[str, Tensor]:
    """The weights that a model has without its adapter, by the names that they have there."""
    named = model.named_parameters()
    return {name.replace(".base_layer.", "."): weight.detach() for name, weight in named if ".lora_" not in name}


@torch.no_grad()
def merged(model: Any, name: str, weight: Tensor) -> Tensor:
    """One of `base_weights` plus what the adapter adds, summed in float32, in main memory (a GPU may lack the room)."""
    module, _, kind = name.rpartition(".")
    layer = model.get_submodule(module)
    if kind != "weight" or not hasattr(layer, "get_delta_weight"):
        return weight
    return (weight.float() + layer.get_delta_weight(NAME).float()).to(weight.dtype).cpu()


@contextlib.contextmanager
@torch.no_grad()
def merged_in(model: Any) -> Iterator[None]:
    """Compute as an engine does that has the adapter in its weights, and so rounds their sum; afterwards as before."""
    kept = []
    try:
        for name, weight in base_weights(model).items():
            if (total := merged(model, name, weight)) is not weight:
                kept.append((weight, weight.to("cpu", copy=True)))
                weight.copy_(total)
        with adapters_off(model):
            yield
    finally:
        for weight, before in kept:
            weight.copy_(before)


class WithoutAdapter:
    """A module as it computes with its adapters off; in everything else the module itself.

    module: asked each time, since a policy's model is another object while FSDP's parts are gathered.
    """

    def __init__(self, module: Callable[[], Any]) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module(), name)

    @property
    def base_model(self) -> "WithoutAdapter":
        return WithoutAdapter(lambda: self._module().base_model)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        with adapters_off(self._module()):
            return self._module()(*arguments, **more)


@contextlib.contextmanager
def adapters_off(module: Any) -> Iterator[None]:
    """Compute without adapters; peft's own switch drops gradients that an earlier forward pass may need."""
    layers = [layer for layer in module.modules() if hasattr(layer, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
