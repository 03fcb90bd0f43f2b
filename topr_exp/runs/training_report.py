"""Lines for the user on composed training sets: signs of R = R0 − c, the weight p̃ of positives, cut-off completions.

Advice follows where these mislead the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topr_exp.runtime.terminal import say, warn
from topr_exp.sampling.cut_off import warn_of_sampled

if TYPE_CHECKING:
    from topr_exp.algorithms.base import Loss
    from topr_exp.composition.training_set import SignShares, TrainingSet

USUAL_WEIGHTS = (0.05, 0.5)  # of p̃; others get advice
ADVISED_WEIGHT = 0.15


@dataclass(kw_only=True)
class TrainingReport:
    """Reports the rewards of each training set (in rounds: of the first), and warns once of cut-off completions."""

    algo: Loss  # of the run
    in_rounds: bool
    weight_key: str  # the setting that p̃ can be changed with, effective_positive or baseline
    token_limit: int | None  # sampler.max_new_tokens; None where nothing is sampled: a log is reported when it is read
    drops_truncated: bool  # compose.drop_truncated
    has_reported_signs: bool = False
    has_warned_of_cut_off: bool = False

    def describe(self, training_set: TrainingSet) -> None:
        """Print the lines on a training set that are due."""
        if not (self.in_rounds and self.has_reported_signs):
            report_reward_signs(training_set, self.algo, self.weight_key)
            self.has_reported_signs = True
        if self.token_limit is not None and not self.has_warned_of_cut_off:
            self.has_warned_of_cut_off = self.warn_of_cut_off(training_set, self.token_limit)
        note = training_set.description["note"]
        if note and not self.in_rounds:
            warn(note)

    def warn_of_cut_off(self, training_set: TrainingSet, token_limit: int) -> bool:
        """Warn where many sampled completions were cut off; returns whether it did."""
        completions = training_set.completions
        is_truncated = completions.is_truncated
        if completions.is_imported is not None:
            is_truncated = is_truncated[~completions.is_imported]
        dropped = None if self.in_rounds else self.drops_truncated  # rounds can't leave them out
        return warn_of_sampled(is_truncated, token_limit, dropped=dropped)


def report_reward_signs(training_set: TrainingSet, algo: Loss, weight_key: str) -> None:
    """Print the shares of R > 0, = 0, < 0, and p̃, where they mean something; warn where they mislead the loss."""
    if training_set.description["unit"] != "examples" or "group_rewards" in algo.needs:
        return
    shares = training_set.sign_shares()
    say(format_signs(shares))
    weight = training_set.weight_of_positives() if algo.uses_baseline else None
    if weight is not None:
        positive = 100 * training_set.description["positive_share"]
        label = f"{'p̃':<12}"  # shown 11 wide: p̃ is two characters
        say(f"{label} {weight:.3g}: {positive:.3g} % positive, c = {training_set.baseline:g}")
    advice = ""
    if algo.lowers_negative_rewards_alone:
        advice = advise_sign(shares, algo.name)
    if not advice and weight is not None:
        advice = advise_weight(training_set, weight, weight_key)
    if advice:
        warn(advice)


def format_signs(shares: Mapping[str, SignShares]) -> str:
    """Format the header's row of the shares by verdict, as `TrainingSet.sign_shares` returns them."""
    parts = []
    for verdict, signs in shares.items():
        share_by_sign = {"> 0": signs.above, "= 0": signs.zero, "< 0": signs.below}
        texts = [f"{sign} {100 * share:.3g} %" for sign, share in share_by_sign.items() if share]
        parts.append(f"{verdict}: {', '.join(texts)}")
    return f"{'R':<11} {'; '.join(parts)}"


def advise_sign(shares: Mapping[str, SignShares], algo_name: str) -> str:
    """Say what to set where a loss with limits by sign sees negatives with R ≥ 0; "" for none."""
    if "negatives" not in shares:
        return ""
    signs = shares["negatives"]
    effects = []
    if signs.above:
        effects.append(f"{algo_name} makes {100 * signs.above:.3g} % of the negatives likelier")
    if signs.zero:
        effects.append(f"{algo_name} learns nothing from {100 * signs.zero:.3g} % of the negatives")
    if not effects:
        return ""
    remedy = "their R is not below 0; set baseline above their reward, which data.reward=pm1 makes -1"
    return f"{' and '.join(effects)}: {remedy}"


def advise_weight(training_set: TrainingSet, weight: float, weight_key: str) -> str:
    """Say what to set where p̃ is far from the paper's best; "" for others.

    "" too for a set of one kind, whose p̃ no c changes, and where negatives have no weight at all.
    """
    low, high = USUAL_WEIGHTS
    is_of_one_kind = training_set.description["positive_share"] in (0, 1)
    if is_of_one_kind or low <= weight <= high or weight == 1:
        return ""
    value = ADVISED_WEIGHT
    if weight_key == "baseline":
        value = training_set.baseline_of(ADVISED_WEIGHT)
    effect = "negatives teach little"
    if weight < low:
        effect = "negatives can outweigh them and ruin the model"
    return (
        f"{100 * weight:.3g} % of the weight in training is on correct completions (p̃ = {weight:.3g}): {effect}; "
        "the paper's best are p̃ of 0.1 to 0.2 (TOPR, Figure 6): "
        f"{weight_key}={value:.3g} gives {ADVISED_WEIGHT:g}"
    )
