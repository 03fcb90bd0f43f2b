"""The training set as tensors, one micro-batch at a time; and a check that a loss can learn anything from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.composition.training_set import TrainingSet
from topr_exp.runtime import distributed
from topr_exp.sampling.imported import index_in_group
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.training.packing import cheapest_cost, padded_cost
from topr_exp.training.tree_attention import model_size, use_tree_attention
from topr_exp.types import Batch, PairBatch, TOPRError

Ids = NDArray[np.integer]


@dataclass(frozen=True)
class Examples:
    """A training set with the tokens and the log μ of its completions, both read from memory-mapped shards."""

    training_set: TrainingSet
    rollouts: Rollouts
    mu_logp: Sequence[NDArray[np.float32]]  # by candidate
    ref_logp: Sequence[NDArray[np.float32]] | None  # by candidate, where the loss needs π_ref

    def __len__(self) -> int:
        return len(self.training_set.examples)

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The candidates of some examples: [B], or for pairs [2B], the correct ones first."""
        return self.training_set.examples[examples].T.reshape(-1)

    def sequences(self, rows: NDArray[np.int64]) -> list[tuple[Ids, Ids]]:
        """(prompt ids, completion ids) of some candidates."""
        return [(self.rollouts.prompt_of(row), self.rollouts.tokens[row]) for row in rows.tolist()]

    def problems(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The problem of each of some examples."""
        return self.training_set.candidates.problem[self.training_set.examples[examples, 0]]

    def mean_reward(self, examples: NDArray[np.int64]) -> dict[str, float]:
        """The mean reward of some examples under its name in the metrics; nothing where two values are all there is."""
        if self.training_set.candidates.reward is None:
            return {}
        return {"mean_reward": float(self.training_set.reward[self.rows(examples)].mean(dtype=np.float64))}

    def length(self, example: int) -> int:
        """Tokens of an example's longest sequence."""
        return max(len(prompt) + len(tokens) for prompt, tokens in self.sequences(self.training_set.examples[example]))

    def batch(self, rows: NDArray[np.int64], logp: Tensor, mask: Tensor, vocab_kl: Tensor | None) -> Batch | PairBatch:
        """Build the loss's input for `rows`, whose tokens' log-probabilities are `logp` [B, T]."""
        if self.training_set.unit != "pairs":
            return self._batch(rows, logp, mask, vocab_kl)
        half = len(rows) // 2
        chosen, rejected = slice(None, half), slice(half, None)
        return PairBatch(
            self._batch(rows[chosen], logp[chosen], mask[chosen], None),
            self._batch(rows[rejected], logp[rejected], mask[rejected], None),
        )

    def _batch(self, rows: NDArray[np.int64], logp: Tensor, mask: Tensor, vocab_kl: Tensor | None) -> Batch:
        def padded(values: Sequence[NDArray[np.float32]]) -> Tensor:
            out = np.zeros(logp.shape, dtype=np.float32)
            for line, row in zip(out, rows.tolist(), strict=True):
                line[: len(values[row])] = values[row]
            return torch.from_numpy(out).to(logp.device)

        return make_batch(
            self.training_set,
            rows,
            self.rollouts.sample,
            logp,
            mask=mask,
            mu_logp=padded(self.mu_logp),
            ref_logp=padded(self.ref_logp) if self.ref_logp is not None else None,
            vocab_kl=vocab_kl,
        )


def make_batch(
    source: TrainingSet, rows: NDArray[np.int64], sample: NDArray[np.integer], logp: Tensor, **tokens: Any
) -> Batch:
    """A batch of some candidates: `tokens` are its fields of shape [B, T], the others are those of the training set.

    sample: [M] which of its problem's completions each candidate is.
    """
    groups = source.groups

    def column(values: NDArray[np.generic], dtype: torch.dtype = logp.dtype) -> Tensor:
        return torch.as_tensor(values[rows], dtype=dtype, device=logp.device)

    return Batch(
        logp=logp,
        reward=column(source.reward),
        positive=column(source.candidates.positive, torch.bool),
        baseline=source.baseline,
        group=column(source.candidates.problem, torch.int64),
        sample=column(sample, torch.int64),
        group_mean=column(groups.mean),
        group_std=column(groups.std),
        group_size=column(groups.size),
        group_rewards=torch.as_tensor(groups.rewards[groups.group[rows]], dtype=logp.dtype, device=logp.device),
        **tokens,
    )


Positions = NDArray[np.int64]  # in the global batch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of one process."""

    positions: Positions
    counts: bool  # False: computed only because the other processes compute one, left out of every sum


def micro_batches(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> list[MicroBatch]:
    """This process's micro-batches of the chosen examples, at most `size` examples in each.

    Lengths and prompts alone decide the split. Every process gets the same number of micro-batches, since each ends in
    a sum over the processes; a process that has no examples left repeats one, which does not count.
    """
    order = np.arange(len(chosen))
    if size * distributed.world_size() < len(chosen) or distributed.world_size() > 1:
        order = cheapest_order(model, examples, chosen, size)
    parts = []
    for block in parts_by_rank(order, size):
        mine = block[distributed.rank()]
        parts.append(MicroBatch(mine, True) if len(mine) else MicroBatch(order[:1], False))
    return parts


def parts_by_rank(order: Positions, size: int) -> list[list[Positions]]:
    """For each step of an update, the examples that each process computes in it, by rank."""
    size *= distributed.world_size()
    return [
        np.array_split(order[start : start + size], distributed.world_size()) for start in range(0, len(order), size)
    ]


def cheapest_order(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> Positions:
    """Either examples of similar length side by side, or those of a problem, which then share the prompt's computation.

    The second costs less unless completions differ much in length. An estimate from lengths and the model's shape
    decides, so that every process and every resumed run decides alike.
    """
    lengths = np.array([examples.length(example) for example in chosen])
    problems, group = np.unique(examples.problems(chosen), return_inverse=True)
    by_length = np.argsort(lengths, kind="stable")
    if len(problems) == len(chosen):
        return by_length
    longest = np.zeros(len(problems), dtype=lengths.dtype)
    np.maximum.at(longest, group, lengths)
    by_problem = np.lexsort((lengths, group, longest[group]))
    estimate, shape = (cheapest_cost if use_tree_attention(model) else padded_cost), model_size(model)

    def operations(order: Positions) -> float:
        """Of an update: in each of its steps all processes wait for the slowest."""
        rows = [[examples.rows(chosen[part]) for part in block if len(part)] for block in parts_by_rank(order, size)]
        return sum(max(estimate(examples.sequences(some), shape) for some in block) for block in rows)

    return min(by_length, by_problem, key=operations)


def refuse_nothing_to_learn(loss: Any, training_set: TrainingSet) -> None:
    """Raise TOPRError when no example of the set has a gradient under this loss, whatever the policy says of it.

    (Positives only where nothing is correct; a loss relative to its group where all groups are of one kind.) Asked of
    a synthetic batch: the gradient of the first update alone may be 0 although later ones are not.
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


def representatives(source: TrainingSet) -> NDArray[np.int64]:
    """Rows that stand for all: one of each kind of example that a loss can tell apart, or of each kind of group."""
    rows, groups, problem = source.examples[:, 0], source.groups, source.candidates.problem
    kinds: list[NDArray[Any]] = [groups.size, groups.mean, groups.std]
    if source.unit != "groups":
        kinds += [source.reward, source.candidates.positive]
    first = rows[np.unique(np.stack(kinds)[:, rows], axis=1, return_index=True)[1]]
    return rows[np.isin(problem[rows], problem[first])] if source.unit == "groups" else first


def synthetic_batch(source: TrainingSet, rows: NDArray[np.int64]) -> Batch:
    """A batch of these completions, as if each had one token, which π gives what μ did and π_ref a little less."""
    logp = torch.linspace(-2.0, -1.0, len(rows), dtype=torch.float32)[:, None]
    return make_batch(
        source,
        rows,
        index_in_group(source.candidates.problem.astype(np.int32)),
        logp.clone().requires_grad_(),
        mu_logp=logp,
        mask=torch.ones_like(logp, dtype=torch.bool),
        ref_logp=logp - 0.1,
        vocab_kl=torch.full_like(logp, 0.1).requires_grad_(),
    )
