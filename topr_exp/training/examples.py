"""The training set as tensors, one micro-batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.composition.training_set import TrainingSet
from topr_exp.runtime import distributed
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.tree_attention import layout_for
from topr_exp.types import Batch, PairBatch

Ids = NDArray[np.integer]


@dataclass(frozen=True)
class Examples:
    """A training set with the tokens and the log μ of its completions, both read from memory-mapped shards."""

    training_set: TrainingSet
    rollouts: Rollouts
    mu_logp: Sequence[NDArray[np.float32]] | None  # by candidate; None: there is no μ, and the loss reads none
    ref_logp: Sequence[NDArray[np.float32]] | None  # by candidate, where the loss needs π_ref
    old_logp: Sequence[NDArray[np.float32]] | None = None  # by candidate, where the loss needs π_old
    age: NDArray[np.int64] | None = None  # by problem: updates since its completions were drawn, where they may be old

    def __len__(self) -> int:
        return len(self.training_set.examples)

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The candidates of some examples: [B], or for pairs [2B], the correct ones first."""
        return self.training_set.examples[examples].T.reshape(-1)

    def sequences(self, rows: NDArray[np.int64]) -> list[tuple[Ids, Ids]]:
        """(prompt ids, completion ids) of some candidates."""
        return [(self.rollouts.prompt_of(row), self.rollouts.tokens[row]) for row in rows.tolist()]

    def inputs(self, rows: NDArray[np.int64], device: torch.device) -> Inputs:
        """Input of the forward pass over some candidates."""
        kept = [[column[row] for column in self.rollouts.kept] for row in rows.tolist()]
        return Inputs(self.sequences(rows), device, kept)

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
        if self.training_set.description["unit"] != "pairs":
            return self.make_batch(rows, logp, mask, vocab_kl)
        half = len(rows) // 2
        chosen, rejected = slice(None, half), slice(half, None)
        return PairBatch(*(self.make_batch(rows[i], logp[i], mask[i], None) for i in (chosen, rejected)))

    def make_batch(self, rows: NDArray[np.int64], logp: Tensor, mask: Tensor, vocab_kl: Tensor | None) -> Batch:
        """The batch of some candidates, one a row."""
        source, groups = self.training_set, self.training_set.groups

        def column(values: NDArray[np.generic], dtype: torch.dtype = logp.dtype) -> Tensor:
            return torch.as_tensor(values[rows], dtype=dtype, device=logp.device)

        def padded(values: Sequence[NDArray[np.float32]]) -> Tensor:
            out = np.zeros(logp.shape, dtype=np.float32)
            for line, row in zip(out, rows.tolist(), strict=True):
                line[: len(values[row])] = values[row]
            return torch.from_numpy(out).to(logp.device)

        return Batch(
            logp=logp,
            mu_logp=padded(self.mu_logp) if self.mu_logp is not None else logp.detach(),
            old_logp=padded(self.old_logp) if self.old_logp is not None else None,
            mask=mask,
            reward=column(source.reward),
            positive=column(source.candidates.positive, torch.bool),
            baseline=source.baseline,
            group=column(source.candidates.problem, torch.int64),
            sample=column(self.rollouts.sample, torch.int64),
            group_mean=column(groups.mean),
            group_std=column(groups.std),
            group_size=column(groups.size),
            group_rewards=torch.as_tensor(groups.rewards[groups.group[rows]], dtype=logp.dtype, device=logp.device),
            ref_logp=padded(self.ref_logp) if self.ref_logp is not None else None,
            vocab_kl=vocab_kl,
        )


Positions = NDArray[np.int64]  # in the global batch


# The micro-batches of one process; False: computed only because the others compute one, left out of every sum.
MicroBatches = list[tuple[Positions, bool]]


def micro_batches(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> MicroBatches:
    """This process's micro-batches of the chosen examples, at most `size` examples in each.

    Lengths and prompts alone decide the split. Every process gets the same number of micro-batches, since each ends in
    a sum over the processes; a process that has no examples left repeats one, which does not count.
    """
    order = np.arange(len(chosen))
    if size * distributed.world_size() < len(chosen) or distributed.world_size() > 1:
        order = cheapest_order(model, examples, chosen, size)
    mine = [block[distributed.rank()] for block in parts_by_rank(order, size)]
    return [(part, True) if len(part) else (order[:1], False) for part in mine]


def parts_by_rank(order: Positions, size: int) -> list[list[Positions]]:
    """For each step of an update, the examples that each process computes in it, by rank."""
    size *= distributed.world_size()
    return [
        np.array_split(order[start : start + size], distributed.world_size()) for start in range(0, len(order), size)
    ]


def cheapest_order(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> Positions:
    """Either examples of similar length side by side, or those of a problem, which then share the prompt's computation.

    The second costs less unless lengths differ much: an estimate from lengths and the model's shape decides.
    """
    lengths = np.array([examples.length(example) for example in chosen])
    problems, group = np.unique(examples.problems(chosen), return_inverse=True)
    by_length = np.argsort(lengths, kind="stable")
    if len(problems) == len(chosen):
        return by_length
    longest = np.zeros(len(problems), dtype=lengths.dtype)
    np.maximum.at(longest, group, lengths)
    by_problem = np.lexsort((lengths, group, longest[group]))

    def operations(order: Positions) -> float:
        """Of an update: in each of its steps all processes wait for the slowest."""
        rows = [[examples.rows(chosen[part]) for part in block if len(part)] for block in parts_by_rank(order, size)]
        return sum(max(layout_for(model, examples.sequences(some))[0] for some in block) for block in rows)

    return min(by_length, by_problem, key=operations)
