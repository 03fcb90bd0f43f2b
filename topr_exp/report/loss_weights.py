"""The weight of an answer in a loss, by how far the policy has moved on it: Δ = log π − log μ of the whole answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from topr_exp.algorithms.base import Loss
from topr_exp.training.loss_checks import checked_output
from topr_exp.types import Batch, PairBatch


@dataclass(frozen=True)
class Answer:
    """An answer of `length` tokens at Δ."""

    is_right: bool
    length: int
    delta: float


def weights(loss: Loss, *, is_right: bool, length: int, deltas: Sequence[float]) -> list[float]:
    """The weight of an answer of `length` tokens at each Δ.

    1 is full weight, the larger of the pulls on a right and a wrong answer at Δ = 0; 0 is none, and below 0 the loss
    pulls in the wrong direction. NaN for a loss that pulls on neither at Δ = 0.
    """
    pull_on_right = pull(loss, Answer(True, length, delta=0.0))
    pull_on_wrong = pull(loss, Answer(False, length, delta=0.0))
    full_pull = max(abs(pull_on_right), abs(pull_on_wrong))
    if full_pull == 0:
        return [math.nan] * len(deltas)
    direction = 1 if is_right else -1
    answer_weights = []
    for delta in deltas:
        answer = Answer(is_right, length, delta)
        weight = direction * pull(loss, answer) / full_pull
        answer_weights.append(weight + 0.0)  # makes a negative zero a zero, which prints without a sign
    return answer_weights


def pull(loss: Loss, answer: Answer) -> float:
    """−∂loss/∂log π of an answer, summed over its tokens."""
    logp, batch = answer_batch(loss, answer)
    losses = checked_output(loss, batch).loss
    (gradient,) = torch.autograd.grad(losses.sum(), logp)  # [2, length]
    return -float(gradient[0].sum())


def answer_batch(loss: Loss, answer: Answer) -> tuple[Tensor, Batch | PairBatch]:
    """log π [2, length], for gradients, and its batch: an answer, then one of the other verdict at Δ = 0.

    π_old and the reference are μ. The sampler's head is one other token, which both policies find as likely.
    """
    mu = torch.full((2, answer.length), -1.0, dtype=torch.float64)
    token_delta = answer.delta / answer.length
    deltas = torch.tensor([[token_delta], [0.0]], dtype=torch.float64)
    logp = (mu + deltas).requires_grad_()
    positive = torch.tensor([answer.is_right, not answer.is_right])
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
