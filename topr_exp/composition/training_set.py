"""The training set of an iteration or round: selected completions (or pairs, or groups), their rewards and baseline."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.baselines import baseline_for, effective_positive
from topr_exp.composition.draws import Rows, random_generator
from topr_exp.composition.problem_groups import GroupStatistics, Rewards, group_statistics
from topr_exp.composition.selection import Selection
from topr_exp.config.data import Reward
from topr_exp.sampling.completions import Completions

INCORRECT_REWARD = {"pm1": -1.0, "zero_one": 0.0, "graded": None, "given": None}  # None: each completion has its own

Examples = NDArray[np.int64]  # [B] indices into `TrainingSet.examples`


class SignShares(NamedTuple):
    """Shares of R = R0 − c above, at and below 0."""

    above: float
    zero: float
    below: float


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Rows of all completions of an iteration or round, with the values that depend on the whole set.

    examples: [N, 1] rows, or [N, 2] (correct, incorrect) for pairs.
    groups: statistics of all n rewards of each completion's problem, before any selection.
    """

    completions: Completions  # all M
    examples: Rows
    reward: Rewards  # [M] R0, float32
    groups: GroupStatistics
    description: dict[str, Any]
    baseline: float  # c that training subtracts
    effective_positive: float | None  # p~ that c and the set's p give; None where c means nothing
    ages: NDArray[np.int64] | None = None  # by problem: updates since its completions were drawn, if they may be old

    def __len__(self) -> int:
        return len(self.examples)

    # ---- examples of an update

    def order(self, seed: int, iteration: int, epoch: int, *, whole_groups: bool = False) -> Examples:
        """Permute the examples; whole problems stay together where groups are trained on, or with `whole_groups`."""
        rng = random_generator(seed, iteration, f"order of epoch {epoch}")
        if self.description["unit"] != "groups" and not whole_groups:
            return rng.permutation(len(self.examples))
        all_examples = np.arange(len(self))
        problems, group = np.unique(self.problem_of(all_examples), return_inverse=True)
        rank_of_group = rng.permutation(len(problems))
        rank_of_example = rank_of_group[group]
        return np.argsort(rank_of_example, kind="stable")

    def rows(self, examples: Examples) -> Rows:
        """Return the completions of some examples: [B], or for pairs [2B], the correct ones first."""
        rows_by_example = self.examples[examples]  # [B, 1 or 2]
        return rows_by_example.T.reshape(-1)

    def problem_of(self, examples: Examples) -> NDArray[np.integer]:
        """Return the problem of each example, [B]."""
        first_rows = self.examples[examples, 0]
        return self.completions.problem_index[first_rows]

    def length(self, example: int) -> int:
        """Count the tokens of an example's longest sequence."""
        sequences = self.completions.sequences(self.examples[example])
        return max(len(prompt) + len(tokens) for prompt, tokens in sequences)

    def mean_reward(self, examples: Examples) -> dict[str, float]:
        """Average the rewards of some examples, as a metric by name; {} for rewards of two values."""
        if self.completions.reward is None:
            return {}
        rewards = self.reward[self.rows(examples)]
        return {"mean_reward": float(rewards.mean(dtype=np.float64))}

    # ---- the sign and the weight of rewards

    def sign_shares(self) -> dict[str, SignShares]:
        """Count the signs of R = R0 − c, as shares of the positives and of the negatives, if there are any."""
        rewards_of_positives, rewards_of_negatives = self.rewards_by_verdict()
        shares = {}
        for kind, rewards in (("positives", rewards_of_positives), ("negatives", rewards_of_negatives)):
            if len(rewards):
                centered_rewards = rewards - self.baseline
                shares[kind] = SignShares(
                    above=float(np.mean(centered_rewards > 0)),
                    zero=float(np.mean(centered_rewards == 0)),
                    below=float(np.mean(centered_rewards < 0)),
                )
        return shares

    def rewards_by_verdict(self) -> tuple[Rewards, Rewards]:
        """Return R0 of the positives (correct examples), and of the negatives (all others)."""
        rows = self.examples.ravel()
        rewards = self.reward[rows]
        is_correct = self.completions.is_correct[rows]
        return rewards[is_correct], rewards[~is_correct]

    def reward_values(self) -> tuple[float, float] | None:
        """Return R0 of positives and of negatives; None unless each has one value, the positives the larger."""
        rewards_of_positives, rewards_of_negatives = self.rewards_by_verdict()
        values_of_positives = np.unique(rewards_of_positives).tolist()
        values_of_negatives = np.unique(rewards_of_negatives).tolist()
        if len(values_of_positives) != 1 or len(values_of_negatives) != 1:
            return None
        reward_of_positives = values_of_positives[0]
        reward_of_negatives = values_of_negatives[0]
        if reward_of_positives > reward_of_negatives:
            return reward_of_positives, reward_of_negatives
        return None

    def weight_of_positives(self) -> float | None:
        """Compute the share of Σ|R0 − c| on correct examples: p̃ (Eq. 12), also for rewards other than 1 and −1.

        None where rewards take other values than two, where c is not between these, and where no example has a weight.
        """
        p = self.description["positive_share"]
        if p in (0, 1):
            return float(p)
        values = self.reward_values()
        if values is None:
            return None
        reward_of_positives, reward_of_negatives = values
        if not reward_of_negatives <= self.baseline <= reward_of_positives:
            return None
        positive_weight = p * (reward_of_positives - self.baseline)
        negative_weight = (1 - p) * (self.baseline - reward_of_negatives)
        return positive_weight / (positive_weight + negative_weight)

    def baseline_of(self, effective: float) -> float:
        """Solve for the c that gives correct examples this share of the weight, by the set's two rewards."""
        values = self.reward_values()
        assert values is not None, "weight_of_positives is None for other rewards"
        reward_of_positives, reward_of_negatives = values
        middle = (reward_of_positives + reward_of_negatives) / 2
        half_distance = (reward_of_positives - reward_of_negatives) / 2
        baseline_of_signs = baseline_for(self.description["positive_share"], effective)  # for rewards of 1 and −1
        return middle + half_distance * baseline_of_signs

    def summary(self) -> dict[str, Any]:
        """Summarize the set and its completions, JSON-ready; with mean reward and imported share where there are."""
        completions = self.completions
        summary = dict(self.description)
        summary["truncated_share"] = float(completions.is_truncated.mean())
        if completions.reward is not None:
            rewards = self.reward[self.examples]
            summary["mean_reward"] = float(rewards.mean())
        if completions.is_imported is not None:
            is_imported = completions.is_imported[self.examples]
            summary["imported_share"] = float(is_imported.mean())
        summary["baseline"] = self.baseline
        summary["effective_positive"] = self.effective_positive
        return summary


def build_training_set(
    completions: Completions,
    selection: Selection,
    reward_source: Reward,
    *,
    baseline: float | None = None,
    effective: float | None = None,
    in_rounds: bool = False,
) -> TrainingSet:
    """Give selected examples their rewards and the constant c: `baseline`, or c that gives p~ = `effective` (Eq. 12).

    in_rounds: a round may be all-correct or all-incorrect, so c may take the weight of every example, and p~ is not
    reported. TOPRError where no c gives this p~, or c leaves no example a weight.
    """
    p = selection.description["positive_share"]
    c = baseline or 0.0
    if effective is not None:
        c = baseline_for(p, effective)
    p_effective = None
    if selection.description["unit"] == "examples" and reward_source == "pm1" and not in_rounds:
        p_effective = effective_positive(p, c)
    reward = reward_of(completions, reward_source)
    return TrainingSet(
        completions,
        examples=selection.examples,
        reward=reward,
        groups=group_statistics(completions.problem_index, reward),
        description=selection.description,
        baseline=c,
        effective_positive=p_effective,
    )


def reward_of(completions: Completions, reward_source: Reward) -> Rewards:
    """Return R0, [M]: 1 for correct completions and a constant for others, or the numbers of a grader or log."""
    incorrect_reward = INCORRECT_REWARD[reward_source]
    if incorrect_reward is None:
        assert completions.reward is not None, "graded rewards come with the completions"
        return completions.reward.astype(np.float32)
    rewards = np.where(completions.is_correct, 1.0, incorrect_reward)
    return rewards.astype(np.float32)
