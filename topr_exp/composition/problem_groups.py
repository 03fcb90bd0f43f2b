"""Statistics of the completions of each problem: rewards and solve rates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.sampling.completions import Completions, Flags, index_in_group

Indices = NDArray[np.integer]
Rewards = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per completion: the statistics of all n rewards of its problem, taken before any subsampling."""

    mean: Rewards  # [M]
    std: Rewards  # [M], n - 1 in the denominator; 0 for n = 1
    size: Indices  # [M], n
    rewards: Rewards  # [G, n] by problem, in the order of their indices; −∞ where it has fewer
    group: Indices  # [M] its problem's row in `rewards`


def group_statistics(problem_index: Indices, reward: Rewards) -> GroupStatistics:
    """Compute mean, standard deviation (n - 1) and number of the rewards of each completion's problem."""
    _, group, sizes = np.unique(problem_index, return_inverse=True, return_counts=True)
    means = np.bincount(group, reward) / sizes  # [G], as sizes and stds
    # About the mean, not E[r^2] - E[r]^2: equal rewards must give exactly 0.
    deviations = reward - means[group]
    square_sums = np.bincount(group, deviations**2)
    stds = np.sqrt(square_sums / np.maximum(sizes - 1, 1))
    largest_size = sizes.max(initial=0)
    rewards = np.full((len(sizes), largest_size), -np.inf, dtype=reward.dtype)
    rewards[group, index_in_group(group)] = reward
    return GroupStatistics(
        mean=means[group],
        std=stds[group],
        size=sizes[group],
        rewards=rewards,
        group=group,
    )


def is_solved_between(completions: Completions, low: float, high: float) -> Flags:
    """Mark the completions, [M], of problems whose share of correct ones lies in [low, high]."""
    is_correct = completions.is_correct.astype(np.float64)
    shares = group_statistics(completions.problem_index, is_correct).mean
    return (shares >= low) & (shares <= high)
