"""Statistics of the completions of each problem: rewards and solve rates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.sampling.completions import Completions, index_in_group


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per completion: the statistics of all n rewards of its problem, taken before any subsampling."""

    mean: NDArray[np.float64]  # [M]
    std: NDArray[np.float64]  # [M], n - 1 in the denominator; 0 for n = 1
    size: NDArray[np.int64]  # [M], n
    rewards: NDArray[np.floating]  # [G, n] by problem, in the order of their indices; −∞ where it has fewer
    group: NDArray[np.int64]  # [M] its problem's row in `rewards`


def group_statistics(problem_index: NDArray[np.integer], reward: NDArray[np.floating]) -> GroupStatistics:
    """Compute mean, standard deviation (n - 1) and number of the rewards of each completion's problem."""
    _, group, size = np.unique(problem_index, return_inverse=True, return_counts=True)
    mean = np.bincount(group, weights=reward, minlength=len(size)) / size  # [G], as size and std
    # About the mean, not E[r^2] - E[r]^2: equal rewards must give exactly 0.
    squares = np.bincount(group, weights=(reward - mean[group]) ** 2, minlength=len(size))
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    rewards = np.full((len(size), size.max(initial=0)), -np.inf, dtype=reward.dtype)
    rewards[group, index_in_group(group)] = reward
    return GroupStatistics(mean=mean[group], std=std[group], size=size[group], rewards=rewards, group=group)


def is_solved_between(completions: Completions, low: float, high: float) -> NDArray[np.bool_]:
    """[M] True where the share of correct completions of the problem lies in [low, high]."""
    _, group, size = np.unique(completions.problem_index, return_inverse=True, return_counts=True)
    share = (np.bincount(group, weights=completions.is_correct) / size)[group]
    return np.asarray((share >= low) & (share <= high))
