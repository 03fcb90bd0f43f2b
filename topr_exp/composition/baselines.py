"""The baseline c and the effective proportion of positives p̃, which determine each other (TOPR, Eq. 12)."""

from topr_exp.types import TOPRError


def effective_positive(positive_share: float, baseline: float) -> float:
    """Compute the effective proportion of positives p~ of a set with the share p under the baseline c in [-1, 1].

    p~ = p(1-c) / (1 + (1-2p)c)   (TOPR, Eq. 12)

    Raises TOPRError where the baseline takes the weight of every example (p = 0 with c = -1, p = 1 with c = 1).
    """
    positive_weight = positive_share * (1 - baseline)
    negative_weight = (1 - positive_share) * (1 + baseline)
    if positive_weight + negative_weight == 0:
        kind = "incorrect" if baseline < 0 else "correct"
        raise TOPRError(
            f"baseline={baseline:g} gives every example the weight 0: all completions of the training set are {kind}"
        )
    return positive_weight / (positive_weight + negative_weight)


def baseline_for(positive_share: float, effective_positive: float) -> float:
    """Solve for the baseline c that gives a set with the share p of positives the effective proportion p~ in [0, 1].

    c = (p - p~) / (p + p~ - 2 p p~), clamped to [-1, 1] against rounding   (TOPR, Eq. 12 solved for c)

    Raises TOPRError for shares outside of [0, 1], and for p of 0 or 1, where p~ = p whatever c is, so that there is
    nothing to solve.
    """
    for name, share in (("positive_share", positive_share), ("effective_positive", effective_positive)):
        if not 0 <= share <= 1:
            raise TOPRError(f"{name} must be in [0, 1]; got {share:g}")
    if positive_share in (0, 1):
        kind = "correct" if positive_share else "incorrect"
        raise TOPRError(
            f"effective_positive={effective_positive:g} cannot be reached: all completions of the training set are "
            f"{kind}; it needs both kinds (set baseline instead, or compose another set)"
        )
    denominator = positive_share * (1 - effective_positive) + effective_positive * (1 - positive_share)
    return min(1.0, max(-1.0, (positive_share - effective_positive) / denominator))
