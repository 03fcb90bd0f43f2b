"""How a global batch is divided into micro-batches, and each of these among the processes of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp import world
from topr_exp.training.examples import Examples
from topr_exp.training.packing import cost, padded_cost
from topr_exp.training.tree_attention import prepare, size_of

Positions = NDArray[np.int64]  # in the global batch


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch of one process."""

    positions: Positions
    counts: bool  # False: computed because the other processes compute one, and left out of every sum


def micro_batches(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> list[Part]:
    """What this process computes of the chosen examples, at most `size` at a time, in parts that all work at together.

    Lengths and prompts decide the split, never the batch. Every process has as many parts, since each of them ends in
    a sum over the processes; where the examples don't suffice for a last one, it repeats one that does not count.
    """
    order = np.arange(len(chosen))
    if size * world.size() < len(chosen) or world.size() > 1:
        order = cheapest_order(model, examples, chosen, size)
    parts = []
    for block in blocks(order, size):
        mine = block[world.rank()]
        parts.append(Part(mine, True) if len(mine) else Part(order[:1], False))
    return parts


def blocks(order: Positions, size: int) -> list[list[Positions]]:
    """For each step of an update what every process computes in it, by rank."""
    size *= world.size()
    return [np.array_split(order[start : start + size], world.size()) for start in range(0, len(order), size)]


def cheapest_order(model: Any, examples: Examples, chosen: NDArray[np.int64], size: int) -> Positions:
    """Examples of similar length side by side, or those of a problem, which share their prompt if computed together.

    The second costs less unless completions differ much in length; an estimate decides, from lengths and the model's
    shape, so that every process and every resumed run decides alike.
    """
    lengths = np.array([examples.length(example) for example in chosen])
    problems, group = np.unique(examples.problems(chosen), return_inverse=True)
    by_length = np.argsort(lengths, kind="stable")
    if len(problems) == len(chosen):
        return by_length
    longest = np.zeros(len(problems), dtype=lengths.dtype)
    np.maximum.at(longest, group, lengths)
    by_problem = np.lexsort((lengths, group, longest[group]))
    estimate, shape = (cost if prepare(model) else padded_cost), size_of(model)

    def operations(order: Positions) -> float:
        """Of an update, as long as it takes: in each step all processes wait for the slowest."""
        rows = [[examples.rows(chosen[part]) for part in block if len(part)] for block in blocks(order, size)]
        return sum(max(estimate(examples.sequences(some), shape) for some in block) for block in rows)

    return min(by_length, by_problem, key=operations)
