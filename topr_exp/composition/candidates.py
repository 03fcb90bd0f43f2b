"""The completions that a training set is composed from, as columns, and what is computed over all of them."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.config.groups import ComposeConfig
from topr_exp.grading.verdicts import Verdicts
from topr_exp.sampling.imported import index_in_group
from topr_exp.sampling.rollouts import Completions, Rollouts
from topr_exp.types import Problem


@dataclass(frozen=True, slots=True)
class Candidates:
    """M sampled completions as columns, a problem's completions in the order in which they were sampled."""

    problem: NDArray[np.integer]  # [M] the problem's index
    positive: NDArray[np.bool_]  # [M] the verdict is correct
    truncated: NDArray[np.bool_] | None = None  # [M] cut off by the token limit
    duplicate: NDArray[np.bool_] | None = None  # [M] an earlier completion of the problem has the same tokens
    reward: NDArray[np.floating] | None = None  # [M] R0 where the grader gives numbers
    imported: NDArray[np.bool_] | None = None  # [M] made elsewhere, where others were sampled


def repeated(problem: NDArray[np.integer], tokens: Iterable[NDArray[np.integer]]) -> NDArray[np.bool_]:
    """[M] whether an earlier completion of the same problem has the same tokens."""
    import pandas as pd

    texts = [each.tobytes() for each in tokens]
    return pd.DataFrame({"problem": problem, "text": pd.Series(texts, dtype=object)}).duplicated().to_numpy()


def solved_between(candidates: Candidates, low: float, high: float) -> NDArray[np.bool_]:
    """[M] whether the share of correct ones among all completions of the problem lies in [low, high]."""
    _, group, size = np.unique(candidates.problem, return_inverse=True, return_counts=True)
    share = (np.bincount(group, weights=candidates.positive) / size)[group]
    return np.asarray((share >= low) & (share <= high))


def random_generator(seed: int, iteration: int, purpose: str) -> np.random.Generator:
    """A random generator for each (seed, iteration, purpose), the same on every machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, iteration, zlib.crc32(purpose.encode())])))


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per completion: the statistics of all n rewards of its problem, taken before any subsampling."""

    mean: NDArray[np.float64]  # [M]
    std: NDArray[np.float64]  # [M], n - 1 in the denominator; 0 for n = 1
    size: NDArray[np.int64]  # [M], n
    rewards: NDArray[np.floating]  # [G, n] of each problem, in the order of their indices; −∞ where it has fewer
    group: NDArray[np.int64]  # [M] its problem's row there


def group_statistics(problem: NDArray[np.integer], reward: NDArray[np.floating]) -> GroupStatistics:
    """Mean, standard deviation (n - 1) and number of the rewards of each completion's problem, and these themselves."""
    _, group, size = np.unique(problem, return_inverse=True, return_counts=True)
    mean = np.bincount(group, weights=reward, minlength=len(size)) / size
    # About the mean, not E[r^2] - E[r]^2: equal rewards must give exactly 0.
    squares = np.bincount(group, weights=(reward - mean[group]) ** 2, minlength=len(size))
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    rewards = np.full((len(size), size.max(initial=0)), -np.inf, dtype=reward.dtype)
    rewards[group, index_in_group(group)] = reward
    return GroupStatistics(mean[group], std[group], size[group], rewards, group)


@dataclass(frozen=True)
class CompletionPool:
    """Completions with their verdicts; `imported`: [rows] made elsewhere, None where all are from one place."""

    rollouts: Rollouts
    problems: Sequence[Problem]
    verdicts: Verdicts
    imported: NDArray[np.bool_] | None = None


def merge_sources(parts: Sequence[Completions], verdicts: Sequence[Verdicts]) -> CompletionPool:
    """The parts in their order, sampled completions first; those to one prompt are one group, wherever they are from.

    A problem is known by its prompt's tokens and its gold: other ones may have its question.
    """
    if len(parts) == 1:
        return CompletionPool(parts[0].rollouts, parts[0].questions.problems, verdicts[0])
    import pandas as pd
    import pyarrow as pa

    asked = [one for part in parts for one in zip(part.questions.prompts, part.questions.problems, strict=True)]
    names = [(np.asarray(prompt, np.int32).tobytes(), problem.answer) for prompt, problem in asked]
    place, _ = pd.factorize(pd.Series(names))
    prompts, problems = zip(*(asked[first] for first in np.unique(place, return_index=True)[1]), strict=True)
    places = np.split(place, np.cumsum([len(part.questions.prompts) for part in parts[:-1]]))
    problem_of = np.concatenate([own[part.rollouts.problem] for own, part in zip(places, parts, strict=True)])
    columns = pa.concat_tables([part.rollouts.columns.select(["tokens", "text", "finish"]) for part in parts])
    columns = columns.append_column("problem", pa.array(problem_of, pa.int32()))
    columns = columns.append_column("sample", pa.array(index_in_group(problem_of), pa.int32()))
    sampled = replace(parts[0].rollouts, name="", columns=columns, prompts=prompts, bounds=[0, len(columns)])
    origin = np.repeat(np.arange(len(parts)), [part.rollouts.rows for part in parts])
    graded = Verdicts("", pa.concat_tables([each.columns for each in verdicts]))
    return CompletionPool(sampled, problems, graded, origin > 0)


def build_candidates(pool: CompletionPool, config: ComposeConfig) -> Candidates:
    """The columns that a training set is composed from; repetitions are looked for only where they are dropped."""
    rollouts = pool.rollouts
    return Candidates(
        problem=rollouts.problem,
        positive=pool.verdicts.positive,
        truncated=rollouts.truncated,
        duplicate=repeated(rollouts.problem, rollouts.tokens) if config.duplicates == "drop" else None,
        reward=pool.verdicts.reward,
        imported=pool.imported,
    )


def concat_rows(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The rows of all parts, in the order of `merge_sources`."""
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
