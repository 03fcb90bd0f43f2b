"""Check that a training set can teach the loss anything: else a run would change nothing and end well."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.composition.training_set import TrainingSet
from topr_exp.types import Batch, TOPRError


def refuse_nothing_to_learn(loss: Any, training_set: TrainingSet) -> None:
    """Raise TOPRError when no example of the set has a gradient under this loss, whatever the policy says of it.

    (Positives only where nothing is correct; a loss relative to its group where all groups are of one kind.)
    """
    if training_set.unit == "pairs":
        return  # there is none without a correct and an incorrect completion
    batch = synthetic_batch(training_set, representatives(training_set))
    if (signals := getattr(loss, "signals", None)) is not None:
        batch.signals.update(signals(batch))
    total = loss(batch).loss.sum()
    if total.requires_grad:
        total.backward()
    gradients = [values.grad for values in (batch.logp, batch.vocab_kl) if values is not None]
    if not any(gradient is not None and bool(gradient.any()) for gradient in gradients):
        share = 100 * training_set.description.positive_share
        raise TOPRError(
            f"algo={loss.name} has nothing to learn from: {share:.1f} % of the {training_set.description.n_train} "
            "completions of the training set are correct, and none of them has a gradient"
        )


def representatives(training_set: TrainingSet) -> NDArray[np.int64]:
    """Rows that stand for all: one of each kind of example that a loss can tell apart, or of each kind of group."""
    rows, source = training_set.examples[:, 0], training_set
    if source.unit == "groups":
        problem = source.candidates.problem
        kinds = np.stack([source.groups.size, source.groups.mean, source.groups.std])
        _, first = np.unique(kinds[:, rows], axis=1, return_index=True)
        return rows[np.isin(problem[rows], problem[rows[first]])]
    statistics = source.groups
    kinds = np.stack([source.reward, source.candidates.positive, statistics.mean, statistics.std, statistics.size])
    return rows[np.unique(kinds[:, rows], axis=1, return_index=True)[1]]


def synthetic_batch(training_set: TrainingSet, rows: NDArray[np.int64]) -> Batch:
    """A batch of these completions, as if each had one token, which π gives what μ did and π_ref a little less."""

    def column(values: NDArray[np.generic], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.as_tensor(values[rows], dtype=dtype)

    source, groups, candidates = training_set, training_set.groups, training_set.candidates
    logp = torch.linspace(-2.0, -1.0, len(rows), dtype=torch.float32)[:, None]
    sample = np.concatenate([np.arange(count) for count in np.unique(candidates.problem, return_counts=True)[1]])
    order = np.argsort(np.argsort(candidates.problem, kind="stable"), kind="stable")
    return Batch(
        logp=logp.clone().requires_grad_(),
        mu_logp=logp,
        mask=torch.ones_like(logp, dtype=torch.bool),
        reward=column(source.reward),
        positive=column(candidates.positive, torch.bool),
        baseline=source.baseline,
        group=column(candidates.problem, torch.int64),
        sample=column(sample[order], torch.int64),
        group_mean=column(groups.mean),
        group_std=column(groups.std),
        group_size=column(groups.size),
        group_rewards=torch.as_tensor(groups.rewards[groups.group[rows]], dtype=torch.float32),
        ref_logp=logp - 0.1,
        vocab_kl=torch.full_like(logp, 0.1).requires_grad_(),
    )
