"""The layers of a model while it trains: compiled by torch, their activations kept or computed again.

Both replace a layer's `forward`, so what surrounds its call, as FSDP's hooks, stays as it is.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from topr_exp.training import tree_attention
from topr_exp.types import TOPRError


def layers_of(model: Any) -> list[Any]:
    """The model's layers, each of which maps hidden states to hidden states."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextlib.contextmanager
def recomputed_layers(model: Any, wanted: bool) -> Iterator[None]:
    """While the block runs, forward passes keep each layer's inputs and the backward pass computes the rest again."""
    layers = layers_of(model) if wanted else []
    assert layers or not wanted, f"{type(model).__name__} has no layers that can be computed again"
    forwards = [layer.forward for layer in layers]
    replaced = [vars(layer).get("forward") for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, replaced, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def compile_layers(model: Any) -> None:
    """Have torch compile the layers, for rows of any length: few fused kernels in place of many small ones.

    Passes with a cache, by which a model samples, stay as they are. Attention over a tree is not compiled: its shapes
    differ from update to update, and its kernels are fused already. Results differ by rounding alone.
    """
    layers = layers_of(model)
    if not layers:
        raise TOPRError(f"optim.compile=true: {type(model).__name__} has no layers that can be compiled; set false")
    AttentionInterface.register(tree_attention.NAME, torch.compiler.disable(tree_attention.attention))
    for layer in layers:
        layer.forward = partial(forward_by_cache, layer.forward, torch.compile(layer.forward, dynamic=True))


def forward_by_cache(eager: Callable[..., Any], compiled: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """A layer's output: by `eager` where a cache grows with every token, else by `compiled`."""
    if options.get("past_key_values") is not None:
        return eager(*inputs, **options)
    return compiled(*inputs, **options)
