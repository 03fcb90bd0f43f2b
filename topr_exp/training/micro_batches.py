"""Division of a global batch into micro-batches, and of each among the processes of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.runtime import distributed
from topr_exp.training.examples import Examples
from topr_exp.training.packing import cheapest_cost, padded_cost
from topr_exp.training.tree_attention import model_size, use_tree_attention

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
