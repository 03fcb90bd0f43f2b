"""The baseline against the proportion of positives (TOPR, Equation 12), and what it gives hard and easy problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.description import DIFFICULTY_BUCKETS, accuracy_bucket
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


def difficulty_weights(
    correct: NDArray[np.integer], samples: NDArray[np.integer] | int, effective_positive: Sequence[float]
) -> dict[str, Any]:
    """The weight of problems by difficulty, with 1 - c on each correct and 1 + c on each incorrect completion.

    share[b] = sum_{x in b} w(x) / sum_x w(x),   w(x) = (1-c) n+(x) + (1+c) n-(x)   (TOPR, Figure 9)

    By `positive_share`, p over all completions; `effective_positive`, the p~ asked for; `baseline`, the c that gives
    each of them; and by bucket of the base model's accuracy ([0, .1), [.1, .2), ... [.9, 1]) `problems`, their number;
    `share`, [E, 10], its part of the total weight; `per_problem`, [E, 10], the mean weight of its problems over that of
    all (nan if it has none). The paper's figure is the last and its caption says the other.

    correct: [P] correct completions of each problem by the base model.
    samples: [P] or one number, completions of each problem (the paper: 128).
    effective_positive: the p~ in [0, 1] to compute it for; c follows from p over all completions (Eq. 12).
    Raises TOPRError when all completions are of one kind.
    """
    n = np.broadcast_to(np.asarray(samples, dtype=np.int64), correct.shape)
    assert correct.ndim == 1, correct.shape
    assert len(correct), "no problems"
    assert (n > 0).all(), "every problem needs completions"
    assert ((correct >= 0) & (correct <= n)).all(), "more correct completions than completions"
    positive_share = float(correct.sum() / n.sum())
    baseline = [baseline_for(positive_share, p) for p in effective_positive]
    c = np.asarray(baseline)[:, None]
    weight = (1 - c) * correct + (1 + c) * (n - correct)  # [E, P]
    bucket = accuracy_bucket(correct.astype(np.int64), n)
    member = np.eye(DIFFICULTY_BUCKETS)[bucket]  # [P, 10]
    total = weight @ member
    count = member.sum(axis=0)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return {
        "positive_share": positive_share,
        "effective_positive": list(effective_positive),
        "baseline": baseline,
        "problems": count.astype(int).tolist(),
        "share": total / weight.sum(axis=1, keepdims=True),
        "per_problem": mean / weight.mean(axis=1, keepdims=True),
    }
