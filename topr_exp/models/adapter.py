"""LoRA by peft: small matrices beside a model's linear layers are trained, its own weights stay frozen.

The model keeps its class, so that all code computes with it as with any other. Its weights with the adapter's product
added are what is on disk and what engines load (`merged_weight`); the adapter alone lies beside them.
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
from topr_exp.models.model_folder import refuse_damage
from topr_exp.runtime.checksums import write_checksums
from topr_exp.types import ConfigError

WEIGHTS = "adapter_model.safetensors"
NAME = "default"  # peft's, of an adapter without a name
PREFIX = "base_model.model."  # peft's, of the weights of a model that it wraps


def add_adapter(model: Any, lora: LoRA, seed: int) -> None:
    """Give a model an adapter that changes nothing yet, in float32, and freeze everything else."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = lora.target_names or ALL_LINEAR
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    own_names = base_weights(model).keys()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**64)  # torch takes no longer ones
        inject_adapter_in_model(config, model)
    if base_weights(model).keys() != own_names:  # such as experts that are one tensor
        raise ConfigError(f"model.lora: an adapter of {type(model).__name__} can't be merged into its weights")
    for _, weight in trained_weights(model):
        weight.data = weight.data.float()  # peft takes the layers' dtype


def trained_weights(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weights that training changes, by name: all of a model, or its adapter's."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name, weight


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write a model's adapter as peft does, so that `PeftModel.from_pretrained` adds it to the model `base`."""
    from peft import get_peft_model_state_dict

    folder.mkdir()
    weights = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {PREFIX + name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = dataclasses.replace(model.peft_config[NAME], base_model_name_or_path=base, inference_mode=True)
    config.target_modules = sorted(config.target_modules)  # peft's set has another order in each process
    config.save_pretrained(folder)
    write_checksums(folder)


def load_adapter(model: Any, folder: Path) -> None:
    """Set the adapter of a model, which has one of the same shape, to the weights that `save_adapter` wrote."""
    from peft import set_peft_model_state_dict

    refuse_damage(folder)
    tensors = load_file(folder / WEIGHTS)
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    set_peft_model_state_dict(model, weights)


def fingerprint(base_fingerprint: str, folder: Path, alpha: float) -> str:
    """Hash what decides the outputs of a model with an adapter, as weights_fingerprint does for a model's folder.

    folder: the adapter's. alpha: the numerator of the adapter's scale; the denominator is the rank, which its tensors'
    shapes have.
    """
    scaled_base = f"{base_fingerprint} {float(alpha)} ".encode()
    return hashlib.sha256(scaled_base + (folder / WEIGHTS).read_bytes()).hexdigest()[:32]


def base_weights(model: Any) -> dict[str, Tensor]:
    """A model's weights without its adapter, by the names that they have there."""
    weights = {}
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            weights[name.replace(".base_layer.", ".")] = weight.detach()
    return weights


@torch.no_grad()
def merged_weight(model: Any, name: str, weight: Tensor) -> Tensor:
    """One of `base_weights` plus the adapter's product: summed in float32, rounded to the weight's dtype.

    The sum is in main memory, since a GPU may lack the room. A weight that has no adapter is returned itself.
    """
    layer_name, _, parameter_name = name.rpartition(".")
    layer = model.get_submodule(layer_name)
    if parameter_name != "weight" or not hasattr(layer, "get_delta_weight"):
        return weight
    total = weight.float() + layer.get_delta_weight(NAME).float()
    return total.to(weight.dtype).cpu()


@contextlib.contextmanager
@torch.no_grad()
def with_merged_adapter(model: Any) -> Iterator[None]:
    """Compute with `merged_weight` in place of the adapter while the block runs, as an engine does."""
    backups = []
    try:
        for name, weight in base_weights(model).items():
            total = merged_weight(model, name, weight)
            if total is not weight:
                backups.append((weight, weight.to("cpu", copy=True)))
                weight.copy_(total)
        with adapters_off(model):
            yield
    finally:
        for weight, backup in backups:
            weight.copy_(backup)


class WithoutAdapter:
    """A module that computes with its adapters off; in everything else the module itself.

    find_module: called at every use, since a policy's model is another object while FSDP's parts are gathered.
    """

    def __init__(self, find_module: Callable[[], Any]) -> None:
        self._find_module = find_module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find_module(), name)

    @property
    def base_model(self) -> "WithoutAdapter":
        """The model without its output layer; forward passes call it alone, so it too leaves out the adapter."""
        return WithoutAdapter(lambda: self._find_module().base_model)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with adapters_off(self._find_module()):
            return self._find_module()(*arguments, **options)


@contextlib.contextmanager
def adapters_off(module: Any) -> Iterator[None]:
    """Compute without adapters; peft's own switch drops gradients that an earlier forward pass may need."""
    switched_layers = []  # not those that are off already, as within another block
    for layer in module.modules():
        if hasattr(layer, "lora_A") and not layer._disable_adapters:
            switched_layers.append(layer)
            layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in switched_layers:
            layer._disable_adapters = False
