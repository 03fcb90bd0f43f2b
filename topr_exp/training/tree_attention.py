"""Attention over a tree of tokens, as an attention function of transformers: `use_tree_attention` gives it to a model.

transformers passes the extra arguments of a model's forward pass on to the attention function. This one takes the tree
from them; without a tree it calls transformers' own. So a model keeps working in every other way: sampling with a
cache, padded batches, gradient checkpointing (which calls a layer again with the same arguments).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from topr_exp.training.packing import Level, Size, Tree

NAME = "sdpa_or_tree"
# Rotary positions from position_ids, full causal attention through the interface: each is tested.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """A level's R segments as rows padded on the right to S tokens."""

    start: int  # of the level in the row of tokens
    end: int
    shape: tuple[int, int]  # R, S
    places: Tensor | None  # [tokens] where each stands in the flattened rows; None where no row is padded
    sources: Tensor | None  # [R * S] the token at each place; any at a padded one
    holes: Tensor | None  # [padded] the padded places
    above: list[Tensor]  # of each level above, [R] the row that each segment hangs below
    visible: Tensor | None  # [R or 1, 1, S, K] bool, K keys above and S own keys; None: plainly causal
    masks: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def pad(self, states: Tensor) -> Tensor:
        """[tokens of all levels, heads, size] to [R, S, heads, size]."""
        own = states[self.start : self.end]
        if self.places is not None:
            own = Reindexed.apply(own, self.sources, self.places, None)
        return own.unflatten(0, self.shape)

    def unpad(self, states: Tensor) -> Tensor:
        """[R, S, heads, size] to [tokens of this level, heads, size]."""
        flat = states.flatten(0, 1)
        return flat if self.places is None else Reindexed.apply(flat, self.places, self.sources, self.holes)

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """Additive attention mask: 0 where a query sees a key, −∞ elsewhere."""
        if self.visible is not None and dtype not in self.masks:
            self.masks[dtype] = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device).masked_fill(
                ~self.visible, -torch.inf
            )
        return self.masks.get(dtype)


class Reindexed(torch.autograd.Function):
    """states[index], whose gradient is gradient[inverse] with 0 at `holes`: no sum, since each state is taken once."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index: Tensor, inverse: Tensor, holes: Tensor | None) -> Tensor:
        ctx.inverse, ctx.holes = inverse, holes
        return states.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back = gradient.index_select(0, ctx.inverse)
        return back if ctx.holes is None else back.index_fill_(0, ctx.holes, 0), None, None, None


def tree_rows(tree: Tree, device: torch.device) -> list[Rows]:
    """The levels of a tree, ready for attention."""
    levels: list[Rows] = []
    start = 0
    lines: list[NDArray[np.int64]] = []  # of each level above, the rows that the present level's segments hang below
    for depth, level in enumerate(tree.levels):
        if depth:
            lines = [line[level.parents] for line in lines] + [level.parents]
        end = start + int(level.lengths.sum())
        levels.append(_level_rows(level, start, end, lines, tree.levels[:depth], device))
        start = end
    return levels


def _level_rows(
    level: Level, start: int, end: int, lines: list[NDArray[np.int64]], above: list[Level], device: torch.device
) -> Rows:
    lengths = level.lengths
    shape = len(lengths), int(lengths.max())
    real = np.arange(shape[1]) < lengths[:, None]
    places = sources = holes = None
    if not real.all():
        places, holes = np.flatnonzero(real), np.flatnonzero(~real)
        sources = np.zeros(real.size, dtype=np.int64)
        sources[places] = np.arange(len(places))
    visible = None
    if above:
        columns = [np.arange(a.lengths.max()) < a.lengths[line][:, None] for a, line in zip(above, lines, strict=True)]
        seen = np.concatenate(columns, axis=1)  # [R, keys above]
        if seen.all():
            seen = seen[:1]
        own = np.tri(shape[1], dtype=bool)
        visible = np.concatenate(
            [
                np.broadcast_to(seen[:, None], (len(seen), shape[1], seen.shape[1])),
                np.broadcast_to(own, (len(seen), *own.shape)),
            ],
            axis=2,
        )[:, None]

    def tensor(array: NDArray[Any] | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device, non_blocking=True)

    indices = [torch.from_numpy(line).to(device, non_blocking=True) for line in lines]
    return Rows(start, end, shape, tensor(places), tensor(sources), tensor(holes), indices, tensor(visible))


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
            rows.mask(query.dtype),
            options.get("scaling"),
        )
        parts.append(rows.unpad(out.transpose(1, 2)))
    return torch.cat(parts)[None], None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """torch's attention, plainly causal without a mask; all are [R, heads, tokens, size]."""
    grouped = query.shape[1] != key.shape[1]
    # On a GPU no kernel but the slow one takes grouped heads with a mask, or in float32.
    if grouped and query.is_cuda and (mask is not None or not torch.is_autocast_enabled("cuda")):
        times = query.shape[1] // key.shape[1]
        key, value, grouped = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), False
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


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
            log.warning("sequences are padded, and what they share is computed for each: %s", reason)
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


def model_size(model: Any) -> Size:
    """The numbers of a model by which the costs of layouts are compared."""
    config, base = model.config, model.base_model
    embedding = base.get_input_embeddings().weight.numel()
    layers = config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(weight.numel() for weight in base.parameters()) - embedding
    return Size(layers, weights // layers, config.num_attention_heads * head)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
