"""Log-probabilities of completions by the training forward pass: the one place where π, μ and π_ref are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topr_exp.types import TOPRError


@dataclass(frozen=True, slots=True)
class Inputs:
    """B sequences (prompt, then completion) padded on the right to L tokens."""

    ids: Tensor  # [B, L] int64
    prompt_lengths: Tensor  # [B] int64
    completion_lengths: Tensor  # [B] int64

    @property
    def mask(self) -> Tensor:
        """[B, T] bool, True at completion tokens."""
        width = int(self.completion_lengths.max())
        return torch.arange(width, device=self.ids.device) < self.completion_lengths[:, None]


def collate(sequences: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> Inputs:
    """Pad (prompt ids, completion ids) on the right; masks come from the lengths, so the padding id is irrelevant."""
    assert all(len(prompt) and len(completion) for prompt, completion in sequences)
    ids = np.zeros((len(sequences), max(len(p) + len(c) for p, c in sequences)), dtype=np.int64)
    for row, (prompt, completion) in zip(ids, sequences, strict=True):
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(completion)] = completion
    lengths = np.array([(len(p), len(c)) for p, c in sequences], dtype=np.int64)
    tensors = (torch.from_numpy(array) for array in (ids, lengths[:, 0].copy(), lengths[:, 1].copy()))
    return Inputs(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def token_logprobs(model: Any, inputs: Inputs) -> Tensor:
    """log π(y_t | x, y_<t) of every completion token: [B, T] float32, 0 at padding, with gradient.

    The output layer is applied to the positions that predict completion tokens only. Padding stands on the right,
    where causal attention never looks back from, so no attention mask is needed and none is built.
    """
    if getattr(model.config, "final_logit_softcapping", None) or getattr(model.config, "logit_scale", None):
        raise TOPRError(f"model.path: {type(model).__name__} rescales its logits after the output layer; not supported")
    hidden = model.base_model(input_ids=inputs.ids, use_cache=False).last_hidden_state
    mask = inputs.mask
    rows, steps = mask.nonzero(as_tuple=True)
    positions = inputs.prompt_lengths[rows] + steps
    logits = model.get_output_embeddings()(hidden[rows, positions - 1]).float()
    chosen = -torch.nn.functional.cross_entropy(logits, inputs.ids[rows, positions], reduction="none")
    return torch.zeros(mask.shape, dtype=chosen.dtype, device=chosen.device).index_put((rows, steps), chosen)
