"""Layers of a model while it trains: compiled by torch, their activations held or computed again.

Both replace a layer's `forward`, so that hooks around its call, as FSDP's, stay as they are.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from topr_exp.models.loading import NEW_CACHE_ARGUMENT, OLD_CACHE_ARGUMENT
from topr_exp.training import tree_attention
from topr_exp.types import TOPRError


def layers_of(model: Any) -> list[Any]:
    """List the model's layers, each of which maps hidden states to hidden states."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextlib.contextmanager
def recomputed_layers(model: Any, enabled: bool) -> Iterator[None]:
    """Hold each layer's inputs alone while the block runs; the backward pass computes the rest again."""
    if not enabled:
        yield
        return
    layers = layers_of(model)
    assert layers, f"{type(model).__name__} has no layers that can be computed again"
    instance_forwards = [vars(layer).get("forward") for layer in layers]  # None: the class's method
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, instance_forwards, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def layers_for(setting: str, model: Any) -> list[Any]:
    """List the model's layers; TOPRError where it has none for `setting`, a switch of `optim`, to change."""
    layers = layers_of(model)
    if not layers:
        raise TOPRError(f"optim.{setting}=true: {type(model).__name__} has no layers that are known here; set false")
    return layers


def compile_layers(model: Any) -> None:
    """Have torch compile the layers, for rows of any length: few fused kernels in place of many small ones.

    Passes with a cache, by which a model samples, stay as they are. Attention over a tree is not compiled: its shapes
    differ from update to update, and its kernels are fused already. Results differ by rounding alone.
    """
    layers = layers_for("compile", model)
    AttentionInterface.register(tree_attention.NAME, torch.compiler.disable(tree_attention.attention))
    for layer in layers:
        compiled = torch.compile(layer.forward, dynamic=True)
        layer.forward = partial(forward_by_cache, layer.forward, compiled)


def forward_by_cache(eager: Callable[..., Any], compiled: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Compute a layer's output by `eager` where a cache grows with every token, else by `compiled`."""
    cache = options.get(NEW_CACHE_ARGUMENT, options.get(OLD_CACHE_ARGUMENT))
    if cache is not None:
        return eager(*inputs, **options)
    return compiled(*inputs, **options)
