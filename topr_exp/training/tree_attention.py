"""Attention over a tree of tokens, as an attention function of transformers: `use_tree_attention` gives it to a model.

transformers passes extra arguments of a forward pass on to the attention function, which takes the tree from them.
Without one it calls transformers' own: sampling with a cache and padding work as before. Checkpointing works with both.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from topr_exp.runtime.terminal import warn
from topr_exp.training.packing import Sequences, Tree, cheapest_layout, lengths_of, padded_cost

NAME = "sdpa_or_tree"
# Rotary positions from position_ids, full causal attention through the interface: each is tested.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

# Rows are padded to multiples of this. On a GPU cuDNN plans each new shape and keeps the plan for good.
WIDTHS = {"cuda": 64}


@dataclass(frozen=True)
class Rows:
    """A level's R segments as rows padded on the right to S tokens."""

    start: int  # of the level in the row of tokens
    end: int
    shape: tuple[int, int]  # R, S
    places: Tensor | None  # [tokens] where each stands in the flattened rows; None where no row is padded
    above: list[Tensor]  # of each level above, [R] the row that each segment hangs below
    mask: Tensor | None  # [R or 1, 1, S, K], K keys above and S own: 0 where a query sees a key, else −∞; None: causal

    def pad(self, states: Tensor) -> Tensor:
        """[tokens of all levels, heads, size] to [R, S, heads, size]."""
        own, (rows, width) = states[self.start : self.end], self.shape
        if self.places is not None:
            own = own.new_zeros(rows * width, *own.shape[1:]).index_copy(0, self.places, own)
        return own.unflatten(0, self.shape)

    def unpad(self, states: Tensor) -> Tensor:
        """[R, S, heads, size] to [tokens of this level, heads, size]."""
        flat = states.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)


def tree_rows(tree: Tree, device: torch.device, dtype: torch.dtype) -> list[Rows]:
    """The levels of a tree, ready for attention in `dtype`."""

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    rows: list[Rows] = []
    widths: list[int] = []
    end = 0
    lines: list[NDArray[np.int64]] = []  # of each level above, the rows that the present level's segments hang below
    for depth, level in enumerate(tree.levels):
        if depth:
            parents = np.array([segment.parent for segment in level], dtype=np.int64)
            lines = [line[parents] for line in lines] + [parents]
        lengths = lengths_of(level)
        start, end, width = end, end + int(lengths.sum()), row_width(int(lengths.max()), device)
        real = np.arange(width) < lengths[:, None]
        places = None if real.all() else tensor(np.flatnonzero(real))
        mask = None
        if depth:  # of its own tokens those that are not later, and all of the segments above
            own = np.broadcast_to(np.tri(width, dtype=bool), (len(level), width, width))
            columns = [lengths_of(high)[line][:, None] for high, line in zip(tree.levels[:depth], lines, strict=True)]
            seen = np.concatenate([np.arange(wide) < column for wide, column in zip(widths, columns, strict=True)], 1)
            if seen.all():
                seen, own = seen[:1], own[:1]
            keys = np.broadcast_to(seen[:, None], (len(seen), width, seen.shape[1]))
            visible = np.concatenate([keys, own], axis=2)[:, None]
            mask = tensor(np.where(visible, np.float32(0), np.float32(-np.inf))).to(dtype)
        widths.append(width)
        rows.append(Rows(start, end, (len(level), width), places, [tensor(line) for line in lines], mask))
    return rows


def row_width(longest: int, device: torch.device) -> int:
    """Tokens of a row that holds `longest`, padding included."""
    step = WIDTHS.get(device.type, 1)
    return -(-longest // step) * step


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' SDPA, or, where the caller gave `tree` (its levels as `Rows`), attention over that.

    query: [1, heads, tokens, size]; key and value: [1, key heads, tokens, size]. Returns [1, tokens, heads, size].
    """
    tree: list[Rows] | None = options.pop("tree", None)
    if tree is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    # Under autocast rotation leaves query and key in float32, which attention would round only after they were moved.
    query, key, value = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    keys: list[Tensor] = []
    values: list[Tensor] = []
    parts = []
    for rows in tree:
        keys.append(rows.pad(key))
        values.append(rows.pad(value))
        out = attend(
            rows.pad(query).transpose(1, 2),
            with_segments_above(keys, rows).transpose(1, 2),
            with_segments_above(values, rows).transpose(1, 2),
            rows.mask,
            options.get("scaling"),
        )
        parts.append(rows.unpad(out.transpose(1, 2)))
    return torch.cat(parts)[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """torch's attention, plainly causal without a mask; all are [R, heads, tokens, size]."""
    grouped = query.shape[1] != key.shape[1]
    masked = mask is not None and query.is_cuda and not takes_grouped_heads(query.device)
    if grouped and query.is_cuda and (masked or query.dtype is torch.float32):
        times = query.shape[1] // key.shape[1]
        key, value, grouped = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), False
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


@functools.cache
def takes_grouped_heads(device: torch.device) -> bool:
    """True where a fused kernel takes grouped heads and a mask below float32: torch 2.14's, cuDNN's (sm_9x, sm_10x)."""
    return torch.__version__ >= "2.14" or torch.cuda.get_device_capability(device)[0] in (9, 10)


def with_segments_above(states: list[Tensor], rows: Rows) -> Tensor:
    """Keys or values of a level's segments with those of the segments above before them, [R, K, heads, size]."""
    if not rows.above:
        return states[-1]
    above = [
        level.expand(len(line), -1, -1, -1) if len(level) == 1 else level.index_select(0, line)
        for level, line in zip(states, rows.above, strict=False)
    ]
    return torch.cat([*above, states[-1]], dim=1)


def use_tree_attention(model: Any) -> bool:
    """Give a model this attention if trees are exact for it; says once where they are not."""
    if model.config._attn_implementation == NAME:
        return True
    if reason := why_not_exact(model):
        if not getattr(model, "_told_of_padding", False):
            warn(f"sequences are padded, and what they share is computed for each: {reason}")
            model._told_of_padding = True
        return False
    model.config._attn_implementation = NAME
    return True


def why_not_exact(model: Any) -> str | None:
    """Why a tree would not be exact for this model, in words; None where it is."""
    config = model.config
    if config.model_type not in MODEL_TYPES:
        return f"models of type {config.model_type} are not among {', '.join(MODEL_TYPES)}"
    if config._attn_implementation != "sdpa":
        return f"model.attention={config._attn_implementation}, where sdpa is needed"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (config.model_type == "mistral" and config.sliding_window is not None):
        return "the model's attention does not reach back to the first token in every layer"
    return None


def layout_for(model: Any, sequences: Sequences) -> tuple[float, Tree | None]:
    """About how many operations a layer takes in the cheapest layout, and its tree, None where it pads."""
    config, base = model.config, model.base_model
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(weight.numel() for weight in base.parameters()) - base.get_input_embeddings().weight.numel()
    size = weights // config.num_hidden_layers, config.num_attention_heads * head
    return cheapest_layout(sequences, *size) if use_tree_attention(model) else (padded_cost(sequences, *size), None)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
