"""Attention over a tree of tokens, as an attention function of transformers.

transformers passes extra arguments of a forward pass on to the attention function, which takes the tree from them.
Without one it calls transformers' own: sampling with a cache and padding work as before. Checkpointing works with both.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from topr_exp.models.loading import text_config
from topr_exp.runtime.terminal import warn
from topr_exp.training.packing import Layout, ModelShape, Sequences, Tree, cheapest_layout, lengths_of, padded_cost

NAME = "sdpa_or_tree"
# Rotary positions from position_ids, full causal attention through the interface: each is tested.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

# Rows are padded to multiples of this. On a GPU cuDNN plans each new shape and keeps the plan for good.
WIDTH_STEPS = {"cuda": 64}


@dataclass(frozen=True)
class PaddedLevel:
    """The R segments of a level of the tree as rows, padded on the right to S tokens."""

    start: int  # of the level in the tree's row of tokens
    end: int
    shape: tuple[int, int]  # R, S
    padded_index: Tensor | None  # [tokens] place of each token in the flattened rows; None where no row is padded
    ancestors: list[Tensor]  # for each level above, [R]: the row there of the segment's ancestor
    mask: Tensor | None  # [R or 1, 1, S, K], K keys above and S in the row: 0 where visible, else −∞; None: causal

    def pad(self, states: Tensor) -> Tensor:
        """Pad states: [tokens of all levels, heads, size] to [R, S, heads, size]."""
        states = states[self.start : self.end]
        if self.padded_index is not None:
            rows, width = self.shape
            padded_states = states.new_zeros(rows * width, *states.shape[1:])
            states = padded_states.index_copy(0, self.padded_index, states)
        return states.unflatten(0, self.shape)

    def unpad(self, states: Tensor) -> Tensor:
        """Drop the padding: [R, S, heads, size] to [tokens of this level, heads, size]."""
        flat = states.flatten(0, 1)
        if self.padded_index is None:
            return flat
        return flat.index_select(0, self.padded_index)


def padded_levels(tree: Tree, device: torch.device, dtype: torch.dtype) -> list[PaddedLevel]:
    """Prepare the levels of a tree for attention in `dtype`."""

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    levels: list[PaddedLevel] = []
    is_token_by_level: list[NDArray[np.bool_]] = []  # of each level above, [rows, width]
    ancestors: list[NDArray[np.int64]] = []  # as in PaddedLevel
    end = 0
    for depth, segments in enumerate(tree.levels):
        if depth > 0:
            parents = np.array([segment.parent_index for segment in segments], dtype=np.int64)
            ancestors_of_parents = [rows[parents] for rows in ancestors]
            ancestors = [*ancestors_of_parents, parents]
        lengths = lengths_of(segments)
        start = end
        end = start + int(lengths.sum())
        width = row_width(int(lengths.max()), device)
        is_token = np.arange(width) < lengths[:, None]
        padded_index = None
        if not is_token.all():
            padded_index = tensor(np.flatnonzero(is_token))
        mask = None
        if depth > 0:
            mask = visibility_mask(is_token_by_level, ancestors, width, device=device, dtype=dtype)
        level = PaddedLevel(
            start=start,
            end=end,
            shape=(len(segments), width),
            padded_index=padded_index,
            ancestors=[tensor(rows) for rows in ancestors],
            mask=mask,
        )
        levels.append(level)
        is_token_by_level.append(is_token)
    return levels


def visibility_mask(
    is_token_by_level: Sequence[NDArray[np.bool_]],
    ancestors: Sequence[NDArray[np.int64]],
    width: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return 0 where a token sees a key, else −∞: [R, 1, S, K above + S], or [1, ...] if all rows agree.

    A token sees the tokens of its row that are not later, and all tokens of the segments above. It is made on the
    device: at 8,000 tokens below 16,000 each row has 190 million values. is_token_by_level: of each level above, [rows,
    width]; ancestors: as in PaddedLevel; width: S.
    """
    is_key_by_level = []
    for is_token, rows in zip(is_token_by_level, ancestors, strict=True):
        is_key_by_level.append(is_token[rows])
    is_key = np.concatenate(is_key_by_level, axis=1)  # [R, K above] False at padding
    if is_key.all():
        is_key = is_key[:1]
    row_count, key_count = is_key.shape
    is_no_key = torch.from_numpy(~is_key).to(device, non_blocking=True)
    is_later = torch.ones(width, width, dtype=torch.bool, device=device).triu(1)
    mask = torch.zeros(row_count, width, key_count + width, dtype=dtype, device=device)
    mask[:, :, :key_count].masked_fill_(is_no_key[:, None], -torch.inf)
    mask[:, :, key_count:].masked_fill_(is_later, -torch.inf)
    return mask[:, None]


def row_width(longest: int, device: torch.device) -> int:
    """Return the width of rows that hold `longest` tokens, padding included."""
    step = WIDTH_STEPS.get(device.type, 1)
    return step * math.ceil(longest / step)


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as transformers' SDPA, or over the option `tree` (padded levels) if the caller gave one.

    query: [1, heads, tokens, size]; key and value: [1, key heads, tokens, size]. Returns [1, tokens, heads, size].
    """
    levels: list[PaddedLevel] | None = options.pop("tree", None)
    if levels is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    # As [tokens, heads, size], which levels pad and attention takes transposed. Under autocast rotation leaves query
    # and key in float32, which attention would round only after they were moved.
    query = query[0].transpose(0, 1).to(value.dtype)
    key = key[0].transpose(0, 1).to(value.dtype)
    value = value[0].transpose(0, 1)
    scale = options.get("scaling")
    keys_by_level: list[Tensor] = []
    values_by_level: list[Tensor] = []
    outputs = []
    for level in levels:
        keys_by_level.append(level.pad(key))
        values_by_level.append(level.pad(value))
        level_query = level.pad(query).transpose(1, 2)
        level_key = with_ancestors(keys_by_level, level).transpose(1, 2)
        level_value = with_ancestors(values_by_level, level).transpose(1, 2)
        output = attend(level_query, level_key, level_value, level.mask, scale)
        outputs.append(level.unpad(output.transpose(1, 2)))
    return torch.cat(outputs)[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Call torch's attention, plainly causal without a mask; all are [R, heads, tokens, size]."""
    has_grouped_heads = query.shape[1] != key.shape[1]
    if has_grouped_heads and query.is_cuda:
        takes_mask = mask is None or takes_grouped_heads(query.device)
        has_kernel = takes_mask and query.dtype is not torch.float32
        if not has_kernel:  # give each query head its own copy of the key head
            group_size = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(group_size, 1)
            value = value.repeat_interleave(group_size, 1)
            has_grouped_heads = False
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=has_grouped_heads,
    )


@functools.cache
def takes_grouped_heads(device: torch.device) -> bool:
    """True where a fused kernel takes grouped heads and a mask below float32: torch 2.14's, cuDNN's (sm_9x, sm_10x)."""
    generation, _ = torch.cuda.get_device_capability(device)
    return torch.__version__ >= "2.14" or generation in (9, 10)  # a TorchVersion, not compared as text


def with_ancestors(states_by_level: list[Tensor], level: PaddedLevel) -> Tensor:
    """Put the keys or values of the segments above before a level's own, [R, K, heads, size].

    states_by_level: [rows, width, heads, size] of each level down to this one.
    """
    *levels_above, own_states = states_by_level
    if not levels_above:
        return own_states
    columns = []
    for states_above, rows in zip(levels_above, level.ancestors, strict=True):
        if len(states_above) == 1:  # a view costs nothing
            columns.append(states_above.expand(len(rows), -1, -1, -1))
        else:
            columns.append(states_above.index_select(0, rows))
    columns.append(own_states)
    return torch.cat(columns, dim=1)


def use_tree_attention(model: Any) -> bool:
    """Give a model this attention if trees are exact for it; warn once for each model where they are not."""
    if model.config._attn_implementation == NAME:
        return True
    reason = why_not_exact(model)
    if reason is None:
        model.config._attn_implementation = NAME
        return True
    if not getattr(model, "_warned_of_padding", False):
        warn(f"sequences are padded, and what they share is computed for each: {reason}")
        model._warned_of_padding = True
    return False


def why_not_exact(model: Any) -> str | None:
    """Say why a tree would not be exact for this model; None where it is."""
    config = text_config(model)
    if config is not model.config:
        return "the model has several parts"
    if config.model_type not in MODEL_TYPES:
        return f"models of type {config.model_type} are not among {', '.join(MODEL_TYPES)}"
    model_class = type(next(model.modules()))  # also of a model that is seen with its adapter off
    if not model_class.__module__.startswith("transformers."):  # it may attend by the mask, which a tree leaves open
        return f"the code of {model_class.__name__} is not transformers'"
    if config._attn_implementation != "sdpa":
        return f"its attention is {config._attn_implementation}, where sdpa is needed"
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_window = config.model_type == "mistral" and config.sliding_window is not None
    if layer_types != {"full_attention"} or has_window:
        return "the model's attention does not reach back to the first token in every layer"
    return None


def shape_of(model: Any) -> ModelShape:
    """Count the weights of a model's layers, which takes as long as the choice of a layout."""
    config = text_config(model)
    base = model.base_model
    weight_count = sum(weight.numel() for weight in base.parameters())
    embedding_count = base.get_input_embeddings().weight.numel()
    layer_weights = (weight_count - embedding_count) // config.num_hidden_layers
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(layer_weights, config.num_attention_heads * head_size)


def layout_for(model: Any, sequences: Sequences, shape: ModelShape | None = None) -> Layout:
    """Choose the cheapest layout that is exact for a model; shape: the model's, where it is known."""
    shape = shape or shape_of(model)
    if not use_tree_attention(model):
        return Layout(padded_cost(sequences, shape), None)
    return cheapest_layout(sequences, shape)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
