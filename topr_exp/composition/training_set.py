"""The training set of an iteration: which completions (or pairs, or groups), in which order, with which baseline."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import Candidates, GroupStatistics, group_statistics, random_generator
from topr_exp.composition.selection import Selection, describe, select_examples, select_groups, usable_rows
from topr_exp.config.data import Reward
from topr_exp.config.groups import ComposeConfig, Unit
from topr_exp.types import TOPRError

INCORRECT_REWARD = {"pm1": -1.0, "zero_one": 0.0, "graded": None, "given": None}


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Rows of the candidates, with what depends on the whole set.

    examples: [N, 1] rows, or [N, 2] (correct, incorrect) for pairs.
    groups: statistics of all n rewards of each candidate's problem, before any selection.
    """

    examples: NDArray[np.int64]
    reward: NDArray[np.float32]  # [M] R0 of every candidate
    candidates: Candidates
    groups: GroupStatistics
    description: dict[str, Any]
    baseline: float  # c that training subtracts
    effective_positive: float | None  # p~ that c and the set's p give; None where c means nothing

    def order(self, seed: int, iteration: int, epoch: int, whole: bool = False) -> NDArray[np.int64]:
        """A permutation of the examples; whole problems stay together where groups are trained on, or asked for."""
        rng = random_generator(seed, iteration, f"order of epoch {epoch}")
        if self.description["unit"] != "groups" and not whole:
            return rng.permutation(len(self.examples))
        problem = self.candidates.problem[self.examples[:, 0]]
        index, group = np.unique(problem, return_inverse=True)
        return np.argsort(rng.permutation(len(index))[group], kind="stable")

    def signs(self) -> dict[str, tuple[float, float, float]]:
        """Shares of R = R0 − c above, at and below 0 among the correct examples and among the wrong ones."""
        rows = self.examples.ravel()
        sign, correct = np.sign(self.reward[rows] - self.baseline), self.candidates.positive[rows]
        kinds = {"correct": sign[correct], "wrong": sign[~correct]}
        return {
            kind: (float(np.mean(found > 0)), float(np.mean(found == 0)), float(np.mean(found < 0)))
            for kind, found in kinds.items()
            if len(found)
        }

    def reward_values(self) -> tuple[float, float] | None:
        """R0 of the correct and of the wrong examples, where it is one value each, the larger one of the correct."""
        rows = self.examples.ravel()
        correct = self.candidates.positive[rows]
        of_correct, of_wrong = np.unique(self.reward[rows][correct]), np.unique(self.reward[rows][~correct])
        if len(of_correct) != 1 or len(of_wrong) != 1 or of_correct[0] <= of_wrong[0]:
            return None
        return float(of_correct[0]), float(of_wrong[0])

    def weight_of_positives(self) -> float | None:
        """The share of Σ|R0 − c| that correct examples have: p̃ (Eq. 12), also for other pairs of rewards than 1 and −1.

        None where rewards take other values than two, where c is not between these, and where no example has a weight.
        """
        values, p = self.reward_values(), self.description["positive_share"]
        if p in (0, 1):
            return float(p)
        if values is None or not values[1] <= self.baseline <= values[0]:
            return None
        of_correct, of_wrong = values
        positive, negative = p * (of_correct - self.baseline), (1 - p) * (self.baseline - of_wrong)
        return positive / (positive + negative)

    def baseline_of(self, effective: float) -> float:
        """The c that gives correct examples this share of the weight: `baseline_for` of the set's two rewards."""
        values = self.reward_values()
        assert values is not None, "weight_of_positives is None for other rewards"
        middle, half = (values[0] + values[1]) / 2, (values[0] - values[1]) / 2
        return middle + half * baseline_for(self.description["positive_share"], effective)

    def summary(self) -> dict[str, Any]:
        """Summarize the set and its candidates, JSON-ready; with mean reward and imported share where there are."""
        found = dict(self.description)
        if self.candidates.truncated is not None:
            found["truncated_share"] = float(self.candidates.truncated.mean())
        if self.candidates.reward is not None:
            found["mean_reward"] = float(self.reward[self.examples].mean())
        if self.candidates.imported is not None:
            found["imported_share"] = float(self.candidates.imported[self.examples].mean())
        return found | {"baseline": self.baseline, "effective_positive": self.effective_positive}


def build_training_set(
    candidates: Candidates,
    rewards: Reward,
    config: ComposeConfig,
    unit: Unit,
    *,
    seed: int,
    iteration: int,
    baseline: float | None,
    effective: float | None,
    round_number: int | None = None,
) -> TrainingSet:
    """Select the examples and turn `baseline` or `effective` (p~) into the constant c by the set's own p (Eq. 12).

    rewards: what gives R0; graded and given ones come with the candidates. round_number: a round's few completions may
    be of one kind, whose weight c may take; p~ is not reported. TOPRError: the candidates can't give what is asked.
    """
    wrong = INCORRECT_REWARD[rewards]
    select = {"pairs": select_pairs, "groups": select_groups, "examples": select_examples}[unit]
    of = "" if round_number is None else f" of round {round_number}"
    selection = select(candidates, config, seed, iteration, of)
    p = selection.description["positive_share"]
    c = baseline_for(p, effective) if effective is not None else baseline or 0.0
    eq_12 = unit == "examples" and wrong == -1.0 and not of  # it is of single completions and these rewards
    reached = effective_positive(p, c) if eq_12 else None
    if wrong is None:
        assert candidates.reward is not None, "graded rewards come with the candidates"
        reward = candidates.reward.astype(np.float32)
    else:
        reward = np.where(candidates.positive, 1.0, wrong).astype(np.float32)
    groups = group_statistics(candidates.problem, reward)
    return TrainingSet(selection.examples, reward, candidates, groups, selection.description, c, reached)


def effective_positive(positive_share: float, baseline: float) -> float:
    """The effective proportion of positives p~ of a set with the share p, trained with the baseline c in [-1, 1].

    p~ = p(1-c) / (1 + (1-2p)c)   (TOPR, Eq. 12)

    Raises TOPRError where the baseline takes the weight of every example (p = 0 with c = -1, p = 1 with c = 1).
    """
    positive = positive_share * (1 - baseline)
    negative = (1 - positive_share) * (1 + baseline)
    if positive + negative == 0:
        kind = "incorrect" if baseline < 0 else "correct"
        raise TOPRError(
            f"baseline={baseline:g} gives every example the weight 0: all completions of the training set are {kind}"
        )
    return positive / (positive + negative)


def baseline_for(positive_share: float, effective_positive: float) -> float:
    """The baseline c that gives a set with the share p of positives the effective proportion p~ in [0, 1].

    c = (p - p~) / (p + p~ - 2 p p~), clamped to [-1, 1] against rounding   (TOPR, Eq. 12 solved for c)

    Raises TOPRError for p of 0 or 1, where p~ = p whatever c is, so that there is nothing to solve.
    """
    if positive_share in (0, 1):
        kind = "correct" if positive_share else "incorrect"
        raise TOPRError(
            f"effective_positive={effective_positive:g} cannot be reached: all completions of the training set are "
            f"{kind}; it needs both kinds (set baseline instead, or compose another set)"
        )
    denominator = positive_share * (1 - effective_positive) + effective_positive * (1 - positive_share)
    return min(1.0, max(-1.0, (positive_share - effective_positive) / denominator))


def select_pairs(candidates: Candidates, config: ComposeConfig, seed: int, iteration: int, of: str = "") -> Selection:
    """min(pairs_per_problem, n+ n-) distinct pairs of each problem without replacement, then N of them all.

    Sorted by problem; each set of that many of a problem's n+ n- pairs is equally likely. TOPRError without any pair.
    """
    rows = usable_rows(candidates, config)
    problem, positive = candidates.problem[rows], candidates.positive[rows]
    index, group = np.unique(problem, return_inverse=True)
    # Rows by group, so that the j-th correct one of group g is correct[start[g] + j].
    correct = rows[positive][np.argsort(group[positive], kind="stable")]
    wrong = rows[~positive][np.argsort(group[~positive], kind="stable")]
    n_correct = np.bincount(group[positive], minlength=len(index))
    n_wrong = np.bincount(group[~positive], minlength=len(index))
    rng = random_generator(seed, iteration, f"compose pairs{of}")
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
    return describe(candidates, np.stack([chosen, rejected], axis=1), config, "pairs", available)


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
