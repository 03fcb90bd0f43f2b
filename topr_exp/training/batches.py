"""The training set as tensors, one micro-batch at a time."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.composition.training_set import Examples, Rows, TrainingSet
from topr_exp.runtime import distributed
from topr_exp.sampling.completions import Completions
from topr_exp.training.hidden_states import Head, Inputs
from topr_exp.training.logprobs import TokenScores
from topr_exp.training.tree_attention import layout_for
from topr_exp.types import Batch, PairBatch


def model_inputs(training_set: TrainingSet, rows: Rows, device: torch.device, *, needs_head: bool = False) -> Inputs:
    """Build the input of the forward pass over some completions; needs_head: the loss reads `Batch.head_logp`."""
    drawable_columns = training_set.completions.drawable_tokens
    drawable_tokens = []  # by completion: the ids that could be drawn, and how many for each token; or nothing
    for row in rows.tolist():
        drawable_tokens.append([column[row] for column in drawable_columns])
    head = None
    if needs_head:
        head = head_of(training_set, rows)
    return Inputs(training_set.sequences(rows), device, drawable_tokens, head)


def head_of(training_set: TrainingSet, rows: Rows) -> Head:
    """Collect the tokens that the sampler noted at the places of some completions."""
    ids_of_rows = []
    for row in rows.tolist():
        ids = training_set.completions.top_tokens(row).ids
        if ids is None:
            return Head(None)
        ids_of_rows.append(ids)
    return Head(np.concatenate(ids_of_rows).astype(np.int64))


def loss_batch(training_set: TrainingSet, rows: Rows, mask: Tensor, scores: TokenScores) -> Batch | PairBatch:
    """Build the loss's input for `rows`, whose tokens have these scores; mask: [B, T].

    Of pairs, the first half of the rows are the chosen completions and the second half the rejected ones.
    """
    if training_set.description["unit"] != "pairs":
        return batch_of_rows(training_set, rows, mask, scores)
    middle = len(rows) // 2
    chosen = batch_of_rows(training_set, rows[:middle], mask[:middle], TokenScores(scores.logp[:middle]))
    rejected = batch_of_rows(training_set, rows[middle:], mask[middle:], TokenScores(scores.logp[middle:]))
    return PairBatch(chosen, rejected)


def batch_of_rows(training_set: TrainingSet, rows: Rows, mask: Tensor, scores: TokenScores) -> Batch:
    """Build the batch of single completions, one a row."""
    logp = scores.logp
    completions = training_set.completions
    groups = training_set.groups

    def numbers(values: NDArray[np.generic], dtype: torch.dtype = logp.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=logp.device)

    def padded(name: str) -> Tensor | None:
        """A column of numbers by token as [B, T], with zeros behind each completion; None without such a column."""
        if not completions.has(name):
            return None
        values = completions.lists(name)
        array = np.zeros(logp.shape, dtype=np.float32)
        for array_row, row in zip(array, rows.tolist(), strict=True):
            array_row[: len(values[row])] = values[row]
        return torch.from_numpy(array).to(logp.device)

    mu_logp = padded("mu_logp")
    head_mu_logp = None
    if scores.head_logp is not None:
        head_mu_logp = padded_head(completions, rows, scores.head_logp)
    return Batch(
        logp=logp,
        mu_logp=mu_logp if mu_logp is not None else logp.detach(),
        old_logp=padded("old_logp"),
        mask=mask,
        reward=numbers(training_set.reward[rows]),
        positive=numbers(completions.is_correct[rows], torch.bool),
        baseline=training_set.baseline,
        group=numbers(completions.problem_index[rows], torch.int64),
        sample=numbers(completions.sample_index[rows], torch.int64),
        group_mean=numbers(groups.mean[rows]),
        group_std=numbers(groups.std[rows]),
        group_size=numbers(groups.size[rows]),
        group_rewards=numbers(groups.rewards[groups.group[rows]]),
        ref_logp=padded("ref_logp"),
        vocab_kl=scores.vocab_kl,
        head_logp=scores.head_logp,
        head_mu_logp=head_mu_logp,
    )


def padded_head(completions: Completions, rows: Rows, head_logp: Tensor) -> Tensor:
    """Pad the sampler's log-probabilities of the head as `head_logp` [B, T, k], with zeros behind each completion."""
    array = np.zeros(head_logp.shape, dtype=np.float32)
    for array_row, row in zip(array, rows.tolist(), strict=True):
        head_mu_logp = completions.top_tokens(row).logp
        array_row[: len(head_mu_logp)] = head_mu_logp
    return torch.from_numpy(array).to(head_logp.device)


# ---- micro-batches


Positions = NDArray[np.int64]  # in the global batch


class MicroBatch(NamedTuple):
    """Examples of one forward and backward pass of a process."""

    positions: Positions
    is_counted: bool  # False: computed only because the other processes compute one, and left out of every sum


MicroBatches = list[MicroBatch]


def micro_batches(model: Any, training_set: TrainingSet, examples: Examples, size: int) -> MicroBatches:
    """Split an update's examples into this process's micro-batches of at most `size`.

    Lengths and prompts alone decide the split. Every process gets the same number of micro-batches, since each ends in
    a sum over the processes; a process that has no examples left repeats one, which does not count.
    """
    order = np.arange(len(examples))
    is_one_batch = distributed.world_size() == 1 and len(examples) <= size
    if not is_one_batch:
        order = cheapest_order(model, training_set, examples, size)
    batches = []
    for positions_by_rank in split_by_rank(order, size):
        positions = positions_by_rank[distributed.rank()]
        batches.append(MicroBatch(positions, True) if len(positions) else MicroBatch(order[:1], False))
    return batches


def split_by_rank(order: Positions, size: int) -> list[list[Positions]]:
    """For each step of an update, the positions that each process computes, by rank."""
    processes = distributed.world_size()
    step_size = size * processes
    starts = range(0, len(order), step_size)
    return [np.array_split(order[start : start + step_size], processes) for start in starts]


def cheapest_order(model: Any, training_set: TrainingSet, examples: Examples, size: int) -> Positions:
    """Order examples by length, or by problem, which then share the prompt's computation, whichever costs less.

    The second costs less unless lengths differ much: an estimate from lengths and the model's shape decides.
    """
    lengths = np.array([training_set.length(example) for example in examples])
    problems, group = np.unique(training_set.problem_of(examples), return_inverse=True)
    by_length = np.argsort(lengths, kind="stable")
    if len(problems) == len(examples):
        return by_length
    longest = np.zeros(len(problems), dtype=lengths.dtype)
    np.maximum.at(longest, group, lengths)
    by_problem = np.lexsort((lengths, group, longest[group]))

    def operations(order: Positions) -> float:
        """Of an update: in each of its steps all processes wait for the slowest."""
        total = 0.0
        for positions_by_rank in split_by_rank(order, size):
            costs = []
            for positions in positions_by_rank:
                if len(positions):
                    sequences = training_set.sequences(training_set.rows(examples[positions]))
                    costs.append(layout_for(model, sequences).cost)
            total += max(costs)
        return total

    return min(by_length, by_problem, key=operations)
