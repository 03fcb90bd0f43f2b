"""The weight of an answer in a loss, by how far the policy has moved on it: Δ = log π − log μ of the whole answer."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from topr_exp.training.contract import checked_output
from topr_exp.types import Batch, PairBatch


def weights(loss: Any, is_right: bool, length: int, deltas: Sequence[float]) -> list[float]:
    """The weight of an answer of `length` tokens at each Δ.

    1 is full weight, the larger of the pulls on a right and a wrong answer at Δ = 0; 0 is none, and below 0 the loss
    pulls in the wrong direction.
    """
    full_pull = max(abs(pull(loss, verdict, length, 0.0)) for verdict in (True, False))
    sign = 1 if is_right else -1
    # + 0.0 makes a negative zero a zero, which prints without a sign.
    return [sign * pull(loss, is_right, length, delta) / full_pull + 0.0 for delta in deltas]


def pull(loss: Any, is_right: bool, length: int, delta: float) -> float:
    """−∂loss/∂log π of an answer at Δ, summed over its tokens."""
    logp, batch = answer_batch(loss, is_right, length, delta)
    (gradient,) = torch.autograd.grad(checked_output(loss, batch).loss.sum(), logp)
    return -float(gradient[0].sum())


def answer_batch(loss: Any, is_right: bool, length: int, delta: float) -> tuple[Tensor, Batch | PairBatch]:
    """log π [2, length], for gradients, and its batch: an answer at Δ, then one of the other verdict at Δ = 0.

    π_old and the reference are μ.
    """
    mu = torch.full((2, length), -1.0, dtype=torch.float64)
    shift = torch.tensor([[delta / length], [0.0]], dtype=torch.float64)
    logp = (mu + shift).requires_grad_()
    positive = torch.tensor([is_right, not is_right])
    wrong_reward = 0.0 if loss.rewards == "zero_one" else -1.0
    reward = torch.where(positive, 1.0, wrong_reward).double()
    batch = Batch(
        logp=logp,
        mu_logp=mu,
        mask=torch.ones(2, length, dtype=torch.bool),
        reward=reward,
        positive=positive,
        group=torch.zeros(2, dtype=torch.int64),
        sample=torch.arange(2),
        group_mean=reward.mean().expand(2),
        group_std=reward.std().expand(2),
        group_size=torch.full((2,), 2),
        group_rewards=reward.expand(2, 2),
        old_logp=mu,
        ref_logp=mu,
        vocab_kl=torch.zeros_like(mu),
    )
    if "pairs" in loss.needs:
        return logp, PairBatch(chosen=rows_of(batch, positive), rejected=rows_of(batch, ~positive))
    if loss.signal_names:
        with torch.no_grad():
            batch = dataclasses.replace(batch, signals=loss.signals(batch))
    return logp, batch


def rows_of(batch: Batch, is_row: Tensor) -> Batch:
    """The rows of a batch where `is_row` [B] is True, with the fields that a pair has."""
    return Batch(
        logp=batch.logp[is_row],
        mu_logp=batch.mu_logp[is_row],
        mask=batch.mask[is_row],
        reward=batch.reward[is_row],
        positive=batch.positive[is_row],
    )
