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
    pulls_at_start = [pull(loss, verdict, length, delta=0.0) for verdict in (True, False)]
    full_pull = max(map(abs, pulls_at_start))
    sign = 1 if is_right else -1
    # + 0.0 makes a negative zero a zero, which prints without a sign.
    return [sign * pull(loss, is_right, length, delta) / full_pull + 0.0 for delta in deltas]


def pull(loss: Any, is_right: bool, length: int, delta: float) -> float:
    """−∂loss/∂log π of an answer at Δ, summed over its tokens."""
    logp, batch = answer_batch(loss, is_right, length, delta)
    losses = checked_output(loss, batch).loss
    (gradient,) = torch.autograd.grad(losses.sum(), logp)
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

    def batch_of(rows: Tensor | slice) -> Batch:
        """The batch of some rows, with the fields that a pair has."""
        mask = torch.ones_like(mu, dtype=torch.bool)
        return Batch(
            logp=logp[rows], mu_logp=mu[rows], mask=mask[rows], reward=reward[rows], positive=positive[rows],
        )  # fmt: skip

    if "pairs" in loss.needs:
        return logp, PairBatch(chosen=batch_of(positive), rejected=batch_of(~positive))
    batch = dataclasses.replace(
        batch_of(slice(None)),
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
    if loss.signal_names:
        with torch.no_grad():
            batch = dataclasses.replace(batch, signals=loss.signals(batch))
    return logp, batch
