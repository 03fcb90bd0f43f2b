"""The training set of an iteration: which completions (or pairs, or groups), in which order, with which baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import Candidates, GroupStatistics, generator, group_statistics
from topr_exp.composition.config import ComposeConfig, Unit
from topr_exp.composition.description import Description
from topr_exp.composition.pairs import select_pairs
from topr_exp.composition.proportion import baseline_for, effective_positive
from topr_exp.composition.selection import select_examples, select_groups


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Rows of the candidates, with what depends on the whole set.

    examples: [N, 1] rows, or [N, 2] (correct, incorrect) for pairs.
    groups: statistics of all n rewards of each candidate's problem, before any selection.
    """

    examples: NDArray[np.int64]
    unit: Unit
    reward: NDArray[np.float32]  # [M] R0 of every candidate
    candidates: Candidates
    groups: GroupStatistics
    description: Description
    baseline: float  # c that training subtracts
    effective_positive: float | None  # p~ that c and the set's p give; None where c means nothing

    def order(self, seed: int, iteration: int, epoch: int) -> NDArray[np.int64]:
        """A permutation of the examples; whole problems stay together where groups are trained on."""
        rng = generator(seed, iteration, f"order of epoch {epoch}")
        if self.unit != "groups":
            return rng.permutation(len(self.examples))
        problem = self.candidates.problem[self.examples[:, 0]]
        index, group = np.unique(problem, return_inverse=True)
        return np.argsort(rng.permutation(len(index))[group], kind="stable")

    def summary(self) -> dict[str, Any]:
        """What is recorded of the set, JSON-ready."""
        return {
            **self.description.as_dict(),
            "baseline": self.baseline,
            "effective_positive": self.effective_positive,
        }


def unit_of(needs: frozenset[str]) -> Unit:
    """What an algorithm with these needs trains on."""
    return "pairs" if "pairs" in needs else "groups" if "groups" in needs else "examples"


def compose(
    candidates: Candidates,
    reward: NDArray[np.float32],
    config: ComposeConfig,
    unit: Unit,
    *,
    seed: int,
    iteration: int,
    baseline: float | None,
    effective: float | None,
) -> TrainingSet:
    """Select the examples and turn `baseline` or `effective` (p~) into the constant c by the set's own p (Eq. 12).

    Raises TOPRError, naming what is available, when the candidates cannot give what was asked.
    """
    if unit == "pairs":
        pairs = select_pairs(candidates, config, seed, iteration)
        examples, description = np.stack([pairs.chosen, pairs.rejected], axis=1), pairs.description
    else:
        selection = (select_groups if unit == "groups" else select_examples)(candidates, config, seed, iteration)
        examples, description = selection.rows[:, None], selection.description
    p = description.positive_share
    c = baseline_for(p, effective) if effective is not None else baseline or 0.0
    reached = effective_positive(p, c) if unit == "examples" else None
    return TrainingSet(
        examples, unit, reward, candidates, group_statistics(candidates.problem, reward), description, c, reached
    )
