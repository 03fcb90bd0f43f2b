"""Preference pairs for DPO: a correct and an incorrect completion of the same problem (TOPR, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import Candidates, random_generator
from topr_exp.composition.description import Description, describe
from topr_exp.composition.selection import Rows, usable_rows
from topr_exp.config.compose import ComposeConfig, ComposeName
from topr_exp.types import TOPRError


@dataclass(frozen=True, slots=True)
class PairSelection:
    """N pairs as rows of the candidates, sorted by problem, and what they are."""

    chosen: Rows  # [N] correct completions
    rejected: Rows  # [N] incorrect completions of the same problems
    description: Description


def select_pairs(candidates: Candidates, config: ComposeConfig, seed: int, iteration: int) -> PairSelection:
    """min(pairs_per_problem, n+ n-) distinct pairs of each problem without replacement, then N of them all.

    Each set of that many of a problem's n+ n- pairs is equally likely.
    Raises TOPRError when no problem has both a correct and an incorrect completion.
    """
    assert config.name is ComposeName.uniform, "ComposeConfig.check_unit refuses the others"
    rows = usable_rows(candidates, config)
    problem, positive = candidates.problem[rows], candidates.positive[rows]
    index, group = np.unique(problem, return_inverse=True)
    # Rows by group, so that the j-th correct one of group g is correct[start[g] + j].
    correct = rows[positive][np.argsort(group[positive], kind="stable")]
    wrong = rows[~positive][np.argsort(group[~positive], kind="stable")]
    n_correct = np.bincount(group[positive], minlength=len(index))
    n_wrong = np.bincount(group[~positive], minlength=len(index))
    rng = random_generator(seed, iteration, "compose pairs")
    owner, code = sample_distinct(rng, n_correct * n_wrong, config.pairs_per_problem)
    available = len(owner)
    if not available:
        raise TOPRError(
            f"no problem has both a correct and an incorrect completion ({len(index)} problems, {len(rows)} "
            f"completions, {int(positive.sum())} correct): there are no pairs to train on"
        )
    if config.n_examples is not None and config.n_examples < available:
        some = np.sort(rng.choice(available, size=config.n_examples, replace=False, shuffle=False))
        owner, code = owner[some], code[some]
    chosen = correct[(np.cumsum(n_correct) - n_correct)[owner] + code // n_wrong[owner]]
    rejected = wrong[(np.cumsum(n_wrong) - n_wrong)[owner] + code % n_wrong[owner]]
    both = np.concatenate([chosen, rejected])
    return PairSelection(chosen, rejected, describe(candidates, both, config, "pairs", len(chosen), available))


def sample_distinct(
    rng: np.random.Generator, sizes: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """min(most, size) distinct integers below each size: the sizes' indices [N] and the integers [N].

    Floyd's algorithm, one step for all sizes at once: in step i of m, draw from 0..size-m+i and take size-m+i itself
    where the draw is taken already. Every subset comes out with the same probability.
    """
    sizes = sizes.astype(np.int64)
    count = np.minimum(sizes, most)
    codes = np.full((len(sizes), int(count.max(initial=0))), -1, dtype=np.int64)
    for i in range(codes.shape[1]):
        active = np.flatnonzero(count > i)
        last = sizes[active] - count[active] + i
        draw = rng.integers(0, last + 1)
        taken = (codes[active, :i] == draw[:, None]).any(axis=1)
        codes[active, i] = np.where(taken, last, draw)
    owner = np.repeat(np.arange(len(sizes)), count)
    return owner, codes[codes >= 0]
