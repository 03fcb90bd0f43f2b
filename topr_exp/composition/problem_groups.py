"""Statistics of the completions of each problem: rewards and solve rates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.sampling.completions import Completions, Flags

Indices = NDArray[np.integer]
Rewards = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per completion: the statistics of all n rewards of its problem, taken before any subsampling."""

    mean: Rewards  # [M]
    std: Rewards  # [M], n - 1 in the denominator; 0 for n = 1
    size: Indices  # [M], n
    group: Indices  # [M] number of its problem, below G
    rewards: Rewards  # [M] in the order of their problems, those of one in the order of their indices
    starts: Indices  # [G] of each problem's `rewards`
    largest_size: int

    def rewards_of_problems(self, rows: Indices) -> Rewards:
        """Return all rewards of each row's problem, [B, largest n]; −∞ where it has fewer.

        Of all problems at once they would fill the memory where a log has one prompt thousands of times.
        """
        columns = np.arange(self.largest_size)
        is_reward = columns < self.size[rows, None]  # [B, largest n]
        positions = self.starts[self.group[rows], None] + columns
        padded = np.full(is_reward.shape, -np.inf, dtype=self.rewards.dtype)
        padded[is_reward] = self.rewards[positions[is_reward]]
        return padded


def group_statistics(problem_index: Indices, reward: Rewards) -> GroupStatistics:
    """Compute mean, standard deviation (n - 1) and number of the rewards of each completion's problem."""
    _, group, sizes = np.unique(problem_index, return_inverse=True, return_counts=True)
    means = np.bincount(group, reward) / sizes  # [G], as sizes and stds
    # About the mean, not E[r^2] - E[r]^2: equal rewards must give exactly 0.
    deviations = reward - means[group]
    square_sums = np.bincount(group, deviations**2)
    stds = np.sqrt(square_sums / np.maximum(sizes - 1, 1))
    return GroupStatistics(
        mean=means[group],
        std=stds[group],
        size=sizes[group],
        group=group,
        rewards=reward[np.argsort(group, kind="stable")],
        starts=np.cumsum(sizes) - sizes,
        largest_size=int(sizes.max(initial=0)),
    )


def is_solved_between(completions: Completions, low: float, high: float) -> Flags:
    """Mark the completions, [M], of problems whose share of correct ones lies in [low, high]."""
    is_correct = completions.is_correct.astype(np.float64)
    shares = group_statistics(completions.problem_index, is_correct).mean
    return (shares >= low) & (shares <= high)
