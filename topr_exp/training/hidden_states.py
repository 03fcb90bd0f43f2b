"""Forward pass over prompts with completions: the hidden states that predict the completions' tokens."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.models.loading import context_of, refuse_scaled_logits
from topr_exp.sampling.completions import Completions
from topr_exp.training.packing import Int64s, Sequences, Tree
from topr_exp.training.tree_attention import layout_for, padded_levels, row_width


class DrawableTokens(NamedTuple):
    """The tokens that the sampler could draw at each of N places."""

    ids: Int64s  # of all places, one place after the other
    counts: Int64s  # [N] how many of the ids are of a place


@dataclass(frozen=True)
class Inputs:
    """B sequences (prompt, then completion) to score; masks follow from lengths, not from tokens.

    N: tokens of all completions, one completion after the other.
    """

    sequences: Sequences
    device: torch.device
    drawable: DrawableTokens | None = None  # at the place of each completion token; None: the whole vocabulary
    scores_head: bool = False  # also score the head: the tokens that the sampler noted at each place
    head_ids: Int64s | None = None  # [N, k]; None: the whole vocabulary

    def __post_init__(self) -> None:
        assert self.prompt_lengths.all()
        assert self.lengths.all()

    @cached_property
    def lengths(self) -> Int64s:
        """[B] tokens of each completion."""
        lengths = [len(completion) for _, completion in self.sequences]
        return np.array(lengths, dtype=np.int64)

    @cached_property
    def prompt_lengths(self) -> Int64s:
        """[B] tokens of each prompt."""
        lengths = [len(prompt) for prompt, _ in self.sequences]
        return np.array(lengths, dtype=np.int64)

    @property
    def prompt_token_count(self) -> int:
        """Tokens of the prompts of all sequences."""
        return int(self.prompt_lengths.sum())

    @property
    def token_count(self) -> int:
        """Tokens of all sequences."""
        return self.prompt_token_count + int(self.lengths.sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int((self.prompt_lengths + self.lengths).max())

    @cached_property
    def mask(self) -> Tensor:
        """[B, T] bool, True at completion tokens; padding stands on the right."""
        positions = np.arange(self.lengths.max())
        return self.tensor(positions < self.lengths[:, None])

    @cached_property
    def targets(self) -> Tensor:
        """[N] the tokens of all completions."""
        tokens = np.concatenate([completion for _, completion in self.sequences])
        return self.tensor(tokens.astype(np.int64))

    def mask_undrawable(self, logits: Tensor, start: int) -> Tensor:
        """Set logits [n, V] of the tokens from `start` on to −∞ for tokens that could not be drawn."""
        assert self.drawable is not None
        row_count = len(logits)
        counts = self.drawable.counts[start : start + row_count]
        ids_start = self.drawable.counts[:start].sum()
        ids_end = ids_start + counts.sum()
        ids = self.drawable.ids[ids_start:ids_end]
        row_of_id = np.arange(row_count).repeat(counts)
        mask = torch.full_like(logits, -torch.inf)  # added: 0 where a token could be drawn
        mask[self.tensor(row_of_id), self.tensor(ids)] = 0
        return logits + mask

    def gather_head(self, logp: Tensor, start: int) -> Tensor:
        """Gather the head [n, k] of log-probabilities [n, V] of the tokens from `start` on."""
        if self.head_ids is None:
            return logp
        ids = self.head_ids[start : start + len(logp)]
        return logp.gather(-1, self.tensor(ids))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def inputs_of(
    completions: Completions, rows: Collection[int], device: torch.device, *, scores_head: bool = False
) -> Inputs:
    """Take some rows of the completions as inputs; scores_head: as in `Inputs`."""
    return Inputs(
        completions.sequences(rows),
        device,
        drawable=drawable_tokens(completions, rows),
        scores_head=scores_head,
        head_ids=noted_ids(completions, rows) if scores_head else None,
    )


def drawable_tokens(completions: Completions, rows: Collection[int]) -> DrawableTokens | None:
    """Collect the tokens that could be drawn at all places of some rows; None if the sampler did not note them."""
    if completions.drawable_tokens is None:
        return None
    id_column, count_column = completions.drawable_tokens
    ids = np.concatenate([id_column[row] for row in rows])
    counts = np.concatenate([count_column[row] for row in rows])
    return DrawableTokens(ids.astype(np.int64), counts.astype(np.int64))


def noted_ids(completions: Completions, rows: Collection[int]) -> Int64s | None:
    """Collect the tokens that the sampler noted at all places of some rows, [N, k]; None: the whole vocabulary."""
    ids_of_rows = []
    for row in rows:
        ids = completions.top_tokens(row).ids
        if ids is None:
            return None
        ids_of_rows.append(ids)
    return np.concatenate(ids_of_rows).astype(np.int64)


@dataclass(frozen=True)
class ModelInput:
    """Tokens as a model takes them."""

    ids: Int64s  # [rows, width]
    predictors: Int64s  # [N] index, in the flattened ids, of the token that predicts each completion token
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of the forward pass


def predicting_states(model: Any, inputs: Inputs) -> Tensor:
    """Compute the last hidden states from which the completions' tokens are predicted, [N, H], in their order.

    Sequences are laid out as a tree where that is exact and costs less than padding; the choice changes values by
    rounding only. Refuses models that scale or cap the output layer's logits.
    """
    refuse_scaled_logits(model)
    return states_in_layout(model, inputs, layout_for(model, inputs.sequences).tree)


def states_in_layout(model: Any, inputs: Inputs, tree: Tree | None) -> Tensor:
    """Compute the predicting states [N, H] from sequences in the layout of a tree; None: padded."""
    if tree is None:
        model_input = padded_input(inputs, context_of(model))
    else:
        model_input = packed_input(tree, inputs, model.dtype)
    ids = inputs.tensor(model_input.ids)
    output = model.base_model(input_ids=ids, use_cache=False, **model_input.options)
    hidden = output.last_hidden_state.flatten(0, 1)
    return hidden.index_select(0, inputs.tensor(model_input.predictors))


def padded_input(inputs: Inputs, context: int) -> ModelInput:
    """Pad the sequences on the right; context: the most tokens that the model takes.

    Causal attention never looks back from a sequence to the padding behind it, so no mask is needed.
    """
    width = row_width(inputs.longest, inputs.device)
    if width > context:  # where a table of positions may end
        width = inputs.longest
    ids = np.zeros((len(inputs.sequences), width), dtype=np.int64)
    for row, (prompt, completion) in zip(ids, inputs.sequences, strict=True):
        tokens = np.concatenate([prompt, completion])
        row[: len(tokens)] = tokens
    row_starts = width * np.arange(len(ids))  # in the flattened ids
    completion_starts = row_starts + inputs.prompt_lengths
    prompt_ends = completion_starts - 1
    predictors = predictor_indices(prompt_ends, completion_starts, inputs.lengths)
    return ModelInput(ids, predictors)


def packed_input(tree: Tree, inputs: Inputs, dtype: torch.dtype) -> ModelInput:
    """Put a tree's tokens into one row, with the tree for the attention function.

    dtype: of attention, unless autocast sets it.
    """
    if torch.is_autocast_enabled(inputs.device.type):
        dtype = torch.get_autocast_dtype(inputs.device.type)
    options = {
        "position_ids": inputs.tensor(tree.positions[None]),
        # A mask of four dimensions is passed on unread; without one, transformers would build its own.
        "attention_mask": inputs.tensor(np.ones((1, 1, 1, 1), dtype=bool)),
        "tree": padded_levels(tree, inputs.device, dtype),
    }
    ids = tree.ids.astype(np.int64)
    predictors = predictor_indices(tree.prompt_ends, tree.completion_starts, inputs.lengths)
    return ModelInput(ids[None], predictors, options)


def predictor_indices(prompt_ends: Int64s, completion_starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the index of the token before each completion token, [N]: the prompt's end for a completion's first.

    prompt_ends, completion_starts: [B] indices of tokens; lengths: [B] of completions.
    """
    first_targets = np.cumsum(lengths) - lengths  # [B] of each completion, among the N tokens of all
    # A completion's token t is target first_target + t; the token at completion_start + t - 1 predicts it.
    offsets = completion_starts - 1 - first_targets
    targets = np.arange(lengths.sum())  # [N]
    indices = offsets.repeat(lengths) + targets
    indices[first_targets] = prompt_ends
    return indices
