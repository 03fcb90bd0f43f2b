"""The weight of a completion in a loss, by how far the policy has moved on it: Δ = log π − log μ of the whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from topr_exp.algorithms.base import Loss
from topr_exp.training.loss_checks import checked_output
from topr_exp.types import Batch, PairBatch


@dataclass(frozen=True)
class MovedCompletion:
    """A completion of `length` tokens at Δ."""

    is_correct: bool
    length: int
    delta: float


def weights(loss: Loss, *, is_correct: bool, length: int, deltas: Sequence[float]) -> list[float]:
    """The weight of a completion of `length` tokens at each Δ.

    1 is full weight, the larger of the pulls on a correct and an incorrect completion at Δ = 0; 0 is none, and below 0
    the loss pulls in the wrong direction. NaN for a loss that pulls on neither at Δ = 0.
    """
    pull_on_correct = pull(loss, MovedCompletion(True, length, delta=0.0))
    pull_on_incorrect = pull(loss, MovedCompletion(False, length, delta=0.0))
    full_pull = max(abs(pull_on_correct), abs(pull_on_incorrect))
    if full_pull == 0:
        return [math.nan] * len(deltas)
    direction = 1 if is_correct else -1
    completion_weights = []
    for delta in deltas:
        completion = MovedCompletion(is_correct, length, delta)
        weight = direction * pull(loss, completion) / full_pull
        completion_weights.append(weight + 0.0)  # makes a negative zero a zero, which prints without a sign
    return completion_weights


def pull(loss: Loss, completion: MovedCompletion) -> float:
    """−∂loss/∂log π of a completion, summed over its tokens."""
    logp, batch = batch_with(loss, completion)
    losses = checked_output(loss, batch).loss
    (gradient,) = torch.autograd.grad(losses.sum(), logp)  # [2, length]
    return -float(gradient[0].sum())


def batch_with(loss: Loss, completion: MovedCompletion) -> tuple[Tensor, Batch | PairBatch]:
    """log π [2, length], for gradients, and its batch: a completion, then one of the other verdict at Δ = 0.

    π_old and the reference are μ. The sampler's head is one other token, which both policies find as likely.
    """
    mu = torch.full((2, completion.length), -1.0, dtype=torch.float64)
    token_delta = completion.delta / completion.length
    deltas = torch.tensor([[token_delta], [0.0]], dtype=torch.float64)
    logp = (mu + deltas).requires_grad_()
    positive = torch.tensor([completion.is_correct, not completion.is_correct])
    wrong_reward = 0.0 if loss.rewards == "zero_one" else -1.0
    reward = torch.where(positive, 1.0, wrong_reward).double()

    def batch_of(rows: Tensor | slice) -> Batch:
        """The batch of some rows, with the fields that a pair has."""
        return Batch(
            logp=logp[rows],
            mu_logp=mu[rows],
            mask=torch.ones_like(mu[rows], dtype=torch.bool),
            reward=reward[rows],
            positive=positive[rows],
        )

    if "pairs" in loss.needs:
        return logp, PairBatch(chosen=batch_of(positive), rejected=batch_of(~positive))
    batch = replace(
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
        head_logp=mu[..., None],
        head_mu_logp=mu[..., None],
    )
    if loss.signal_names:
        with torch.no_grad():
            batch = replace(batch, signals=loss.signals(batch))
    return logp, batch
