"""The training set as tensors, one micro-batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.composition.training_set import Examples, Rows, TrainingSet
from topr_exp.runtime import distributed
from topr_exp.sampling.sampler import split_every
from topr_exp.training.logprobs import TokenScores
from topr_exp.training.padding import pad_tokens
from topr_exp.training.tree_attention import layout_for, shape_of
from topr_exp.types import Batch, PairBatch

Positions = NDArray[np.int64]  # in the global batch


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of an update."""

    training_set: TrainingSet
    examples: Examples
    mu_is_policy: bool  # log μ is by the weights before this update, so that Δ must vanish
    round_metrics: dict[str, float] = field(default_factory=dict)  # for the record of the update
    ends_first_pass: bool = False  # over a set that stays: what had no gradient so far never will

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def rows(self) -> Rows:
        return self.training_set.rows(self.examples)

    def rows_at(self, positions: Positions) -> Rows:
        """Return the rows of some of the examples."""
        return self.training_set.rows(self.examples[positions])

    @cached_property
    def token_count(self) -> int:
        """Completion tokens."""
        sequences = self.training_set.completions.sequences(self.rows)
        return sum(len(completion) for _, completion in sequences)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[B] tokens of each example's longest sequence."""
        return np.array([self.training_set.length(example) for example in self.examples])


def loss_batch(training_set: TrainingSet, rows: Rows, mask: Tensor, scores: TokenScores) -> Batch | PairBatch:
    """Build the loss's input for `rows`, whose tokens have these scores; mask: [B, T].

    Of pairs, the first half of the rows are the chosen completions and the second half the rejected ones.
    """
    if training_set.description["unit"] != "pairs":
        return batch_of_rows(training_set, rows, mask, scores)
    pair_count = len(rows) // 2
    chosen_scores = TokenScores(scores.logp[:pair_count])
    rejected_scores = TokenScores(scores.logp[pair_count:])
    chosen = batch_of_rows(training_set, rows[:pair_count], mask[:pair_count], chosen_scores)
    rejected = batch_of_rows(training_set, rows[pair_count:], mask[pair_count:], rejected_scores)
    return PairBatch(chosen, rejected)


def batch_of_rows(training_set: TrainingSet, rows: Rows, mask: Tensor, scores: TokenScores) -> Batch:
    """Build the batch of single completions, one for each of the B rows."""
    logp = scores.logp
    completions = training_set.completions
    groups = training_set.groups

    def numbers(values: NDArray[np.generic], dtype: torch.dtype = logp.dtype) -> Tensor:
        return torch.from_numpy(values).to(logp.device, dtype, non_blocking=True)

    def padded(values_of_rows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Pad each row's values, [tokens] or [tokens, k], to [B, T] or [B, T, k]."""
        values = torch.from_numpy(np.concatenate(values_of_rows))
        return pad_tokens(values.to(logp.device, non_blocking=True), mask)

    def token_column(name: str) -> Tensor | None:
        """Pad a column of numbers by token to [B, T]; None without such a column."""
        if not completions.has(name):
            return None
        column = completions.lists(name)
        return padded([column[row] for row in rows.tolist()])

    mu_logp = token_column("mu_logp")
    head_mu_logp = None
    if scores.head_logp is not None:
        head_mu_logp = padded([completions.top_tokens(row).logp for row in rows.tolist()])
    return Batch(
        logp=logp,
        mu_logp=mu_logp if mu_logp is not None else logp.detach(),
        old_logp=token_column("old_logp"),
        mask=mask,
        reward=numbers(training_set.reward[rows]),
        positive=numbers(completions.is_correct[rows], torch.bool),
        baseline=training_set.baseline,
        group=numbers(completions.problem_index[rows], torch.int64),
        sample=numbers(completions.sample_index[rows], torch.int64),
        group_mean=numbers(groups.mean[rows]),
        group_std=numbers(groups.std[rows]),
        group_size=numbers(groups.size[rows]),
        group_rewards=numbers(groups.rewards_of_problems(rows)),
        ref_logp=token_column("ref_logp"),
        vocab_kl=scores.vocab_kl,
        head_logp=scores.head_logp,
        head_mu_logp=head_mu_logp,
    )


# ---- micro-batches


class MicroBatch(NamedTuple):
    """Examples of one forward and backward pass of a process."""

    positions: Positions
    is_counted: bool  # False: computed only because the other processes compute one, and left out of every sum


MicroBatches = list[MicroBatch]


def micro_batches(model: Any, global_batch: GlobalBatch, size: int) -> MicroBatches:
    """Split an update's examples into this process's micro-batches of at most `size`.

    Lengths and prompts alone decide the split. Every process gets the same number of micro-batches, since each ends in
    a sum over the processes; a process that has no examples left repeats one, which does not count.
    """
    order = np.arange(len(global_batch))
    is_one_batch = distributed.world_size() == 1 and len(global_batch) <= size
    if not is_one_batch:
        order = cheapest_order(model, global_batch, size)
    batches = []
    for positions_by_rank in split_into_steps(order, size):
        positions = positions_by_rank[distributed.rank()]
        is_counted = len(positions) > 0
        if not is_counted:
            positions = order[:1]
        batches.append(MicroBatch(positions, is_counted))
    return batches


def split_into_steps(order: Positions, size: int) -> list[list[Positions]]:
    """Split an update into steps, one micro-batch a process; of each, list the positions that each rank computes."""
    processes = distributed.world_size()
    positions_by_step = split_every(order, size * processes)
    return [np.array_split(positions, processes) for positions in positions_by_step]


def cheapest_order(model: Any, global_batch: GlobalBatch, size: int) -> Positions:
    """Order examples by length, or by problem, which then share the prompt's computation, whichever costs less.

    The second costs less unless lengths differ much: an estimate from lengths and the model's shape decides.
    """
    training_set = global_batch.training_set
    lengths = global_batch.lengths
    by_length = np.argsort(lengths, kind="stable")
    problems, group = np.unique(training_set.problem_of(global_batch.examples), return_inverse=True)
    if len(problems) == len(global_batch):  # nothing to share
        return by_length
    longest_by_group = np.zeros(len(problems), dtype=lengths.dtype)
    np.maximum.at(longest_by_group, group, lengths)
    # Groups by their longest example, and the examples of a group by length; the last key counts first.
    by_problem = np.lexsort((lengths, group, longest_by_group[group]))

    shape = shape_of(model)

    def cost_of_micro_batch(positions: Positions) -> float:
        if not len(positions):
            return 0.0
        sequences = training_set.completions.sequences(global_batch.rows_at(positions))
        return layout_for(model, sequences, shape).cost

    def cost_of_update(order: Positions) -> float:
        """Estimate an update's operations: in each of its steps all processes wait for the slowest."""
        total = 0.0
        for positions_by_rank in split_into_steps(order, size):
            total += max(map(cost_of_micro_batch, positions_by_rank))
        return total

    return min(by_length, by_problem, key=cost_of_update)
