"""The baseline against the proportion of positives (TOPR, Equation 12)."""

from __future__ import annotations

from topr_exp.types import TOPRError


def effective_positive(positive_share: float, baseline: float) -> float:
    """The effective proportion of positives p~ of a set with the share p, trained with the baseline c.

    p~ = p(1-c) / (1 + (1-2p)c)   (TOPR, Eq. 12)

    positive_share: p in [0, 1], the share of positives in the composed set.
    baseline: c in [-1, 1]; 0 gives p, -1 gives 1, +1 gives 0.
    Raises TOPRError where the baseline takes the weight of every example (p = 0 with c = -1, p = 1 with c = 1).
    """
    assert 0 <= positive_share <= 1, positive_share
    assert -1 <= baseline <= 1, baseline
    positive = positive_share * (1 - baseline)
    negative = (1 - positive_share) * (1 + baseline)
    if positive + negative == 0:
        kind = "incorrect" if baseline < 0 else "correct"
        raise TOPRError(
            f"baseline={baseline:g} gives every example the weight 0: all completions of the training set are {kind}"
        )
    return positive / (positive + negative)


def baseline_for(positive_share: float, effective_positive: float) -> float:
    """The baseline c that gives a set with the share p of positives the effective proportion p~.

    c = (p - p~) / (p + p~ - 2 p p~), clamped to [-1, 1] against rounding   (TOPR, Eq. 12 solved for c)

    positive_share: p in [0, 1], the share of positives in the composed set.
    effective_positive: p~ in [0, 1]; 1 gives -1, p gives 0, 0 gives +1.
    Raises TOPRError for p of 0 or 1, where p~ = p whatever c is, so that there is nothing to solve.
    """
    assert 0 <= positive_share <= 1, positive_share
    assert 0 <= effective_positive <= 1, effective_positive
    if positive_share in (0, 1):
        kind = "correct" if positive_share else "incorrect"
        raise TOPRError(
            f"effective_positive={effective_positive:g} cannot be reached: all completions of the training set are "
            f"{kind}; it needs both kinds (set baseline instead, or compose another set)"
        )
    denominator = positive_share * (1 - effective_positive) + effective_positive * (1 - positive_share)
    return min(1.0, max(-1.0, (positive_share - effective_positive) / denominator))
