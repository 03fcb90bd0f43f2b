"""Log-probabilities of completions by the training forward pass: the one place where π, μ and π_ref are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from topr_exp.types import TOPRError

CHUNK = 1 << 24  # logits at a time: 64 MiB in float32, whatever the batch, length and vocabulary


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


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What the output layer says of every completion token, [B, T] float32 each, 0 at padding."""

    logp: Tensor  # log π(y_t | x, y_<t), with gradient
    entropy: Tensor | None  # of π(. | x, y_<t), in nats, detached
    vocab_kl: Tensor | None  # KL(π(. | x, y_<t) ‖ π_ref(. | x, y_<t)), with gradient


def collate(sequences: Sequence[tuple[NDArray[Any], NDArray[Any]]], device: torch.device) -> Inputs:
    """Pad (prompt ids, completion ids) on the right; masks come from the lengths, so the padding id is irrelevant."""
    assert all(len(prompt) and len(completion) for prompt, completion in sequences)
    ids = np.zeros((len(sequences), max(len(p) + len(c) for p, c in sequences)), dtype=np.int64)
    for row, (prompt, completion) in zip(ids, sequences, strict=True):
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(completion)] = completion
    lengths = np.array([(len(p), len(c)) for p, c in sequences], dtype=np.int64)
    tensors = (torch.from_numpy(array) for array in (ids, lengths[:, 0].copy(), lengths[:, 1].copy()))
    return Inputs(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def score_tokens(model: Any, inputs: Inputs, *, entropy: bool = False, reference: Any = None) -> TokenScores:
    """Score every completion token; `reference` is the model whose whole distribution the KL is taken to.

    The output layer is applied to the positions that predict completion tokens only, in chunks whose logits are
    computed again in the backward pass, so that [B, T, vocabulary] is never held. Padding stands on the right, where
    causal attention never looks back from, so no attention mask is needed and none is built.
    """
    mask = inputs.mask
    rows, steps = mask.nonzero(as_tuple=True)
    positions = inputs.prompt_lengths[rows] + steps
    hidden = hidden_states(model, inputs)[rows, positions - 1]
    targets = inputs.ids[rows, positions]
    head = model.get_output_embeddings()
    if reference is not None:
        reference_head = reference.get_output_embeddings()
        with torch.no_grad():
            reference_hidden = hidden_states(reference, inputs)[rows, positions - 1]

    def chunk(start: int, end: int, hidden: Tensor) -> tuple[Tensor, ...]:
        logits = head(hidden[start:end]).float()
        out = [-torch.nn.functional.cross_entropy(logits, targets[start:end], reduction="none")]
        if entropy:
            with torch.no_grad():
                out.append(distribution_entropy(logits))
        if reference is not None:
            with torch.no_grad():
                reference_logp = reference_head(reference_hidden[start:end]).float().log_softmax(-1)
            out.append(distribution_kl(logits.log_softmax(-1), reference_logp))
        return tuple(out)

    size = max(1, CHUNK // head.weight.shape[0])
    bounds = [(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
    if len(bounds) == 1 or not torch.is_grad_enabled():
        parts = [chunk(start, end, hidden) for start, end in bounds]
    else:
        parts = [checkpoint(chunk, start, end, hidden, use_reentrant=False) for start, end in bounds]
    flat = [torch.cat(column) for column in zip(*parts, strict=True)]
    filled = [torch.zeros(mask.shape, dtype=v.dtype, device=v.device).index_put((rows, steps), v) for v in flat]
    return TokenScores(filled[0], filled[1] if entropy else None, filled[-1] if reference is not None else None)


def hidden_states(model: Any, inputs: Inputs) -> Tensor:
    """The last hidden states, [B, L, H]; refuses models whose logits are more than a linear map of them."""
    for setting in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, setting, None) not in (None, 1.0):
            raise TOPRError(f"model.path: {type(model).__name__} changes its logits by {setting}; not supported")
    hidden: Tensor = model.base_model(input_ids=inputs.ids, use_cache=False).last_hidden_state
    return hidden


def distribution_entropy(logits: Tensor) -> Tensor:
    """−Σ_v p_v log p_v of each row, in nats; logits: [rows, vocabulary]."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def distribution_kl(logp: Tensor, reference: Tensor) -> Tensor:
    """Σ_v p_v (log p_v − log q_v) of each row; both are log-probabilities [rows, vocabulary]."""
    return (logp.exp() * (logp - reference)).sum(-1)
