"""Signs of the rewards of a training set, and advice where they mislead a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.terminal import say, warn

if TYPE_CHECKING:
    from topr_exp.composition.training_set import Signs, TrainingSet


def report_reward_signs(found: TrainingSet, algo: Any, key: str = "effective_positive") -> None:
    """Print of which sign R is, and p̃, where these mean something; warn where wrong answers weigh nothing or too much.

    key: the setting that p̃ can be changed with, effective_positive or baseline.
    """
    if found.description["unit"] != "examples" or "group_rewards" in algo.needs:
        return
    shares = found.signs()
    say(signs(shares))
    effective = found.weight_of_positives() if algo.uses_baseline else None
    if effective is not None:
        share = 100 * found.description["positive_share"]
        say(f"{'p̃':<12} {effective:.3g}: {share:.3g} % positive, c = {found.baseline:g}")  # p̃ is two characters
    advice = never_rarer(shares, algo.name) if algo.limits_by_reward_sign else ""
    if not advice and effective is not None:
        advice = weight_advice(found, effective, key)
    if advice:
        warn(advice)


USUAL_WEIGHT = (0.05, 0.5)  # p̃ outside of it gets a line
ADVISED_WEIGHT = 0.15


def weight_advice(found: TrainingSet, effective: float, key: str) -> str:
    """Say where p̃ is far from what the paper found to be good, and what to set; "" elsewhere.

    "" too where the set is of one kind, so that no c changes p̃, and where wrong answers have no weight at all.
    """
    low, high = USUAL_WEIGHT
    of_one_kind = found.description["positive_share"] in (0, 1)
    if of_one_kind or low <= effective <= high or effective == 1:
        return ""
    value = ADVISED_WEIGHT if key == "effective_positive" else found.baseline_of(ADVISED_WEIGHT)
    weight = f"{100 * effective:.3g} % of the weight in training is on correct answers (p̃ = {effective:.3g})"
    ways = "wrong answers can outweigh them and ruin the model" if effective < low else "wrong answers teach little"
    paper = "the paper's best are p̃ of 0.1 to 0.2 (TOPR, Figure 6)"
    return f"{weight}: {ways}; {paper}: {key}={value:.3g} gives {ADVISED_WEIGHT:g}"


def signs(shares: Mapping[str, Signs]) -> str:
    """A row for the header: the shares of R = R0 − c above, at and below 0, by verdict; see `TrainingSet.signs`."""
    words = ("> 0", "= 0", "< 0")
    told = {
        kind: ", ".join(f"{word} {100 * share:.3g} %" for word, share in zip(words, found, strict=True) if share)
        for kind, found in shares.items()
    }
    return f"{'R':<11} {'; '.join(f'{kind}: {text}' for kind, text in told.items())}"


def never_rarer(shares: Mapping[str, Signs], algo: str) -> str:
    """Say what it means, and what to set, where wrong answers have R ≥ 0 and limits go by the sign; else ""."""
    above, zero, _ = shares.get("wrong", (0.0, 0.0, 0.0))
    if not above + zero:
        return ""
    pushed = f"{algo} makes {100 * above:.3g} % of the wrong answers likelier" if above else ""
    ignored = f"{algo} learns nothing from {100 * zero:.3g} % of the wrong answers" if zero else ""
    why = "their R is not below 0; set data.reward=pm1, or baseline above the reward of wrong answers"
    return f"{' and '.join(filter(None, (pushed, ignored)))}: {why}"
