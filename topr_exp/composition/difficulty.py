"""Figure 9's statistic: how much of the training signal hard and easy problems get as p~ varies (TOPR, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.description import DIFFICULTY_BUCKETS, accuracy_bucket
from topr_exp.composition.selection import baseline_for


@dataclass(frozen=True, slots=True)
class DifficultyWeights:
    """Weight by difficulty bucket: the accuracy of the base model in [0, .1), [.1, .2), ... [.9, 1]."""

    positive_share: float  # p over all completions
    effective_positive: list[float]  # [E] the p~ asked for
    baseline: list[float]  # [E] the c that gives each p~
    n_problems: list[int]  # [10]
    share: NDArray[np.float64]  # [E, 10] the bucket's part of the total weight; a row sums to 1
    per_problem: NDArray[np.float64]  # [E, 10] mean weight of a bucket's problems over that of all; nan if it has none


def difficulty_weights(
    correct: NDArray[np.integer], samples: NDArray[np.integer] | int, effective_positive: Sequence[float]
) -> DifficultyWeights:
    """The weight of problems by difficulty, with 1 - c on each correct and 1 + c on each incorrect completion.

    share[b] = sum_{x in b} w(x) / sum_x w(x),   w(x) = (1-c) n+(x) + (1+c) n-(x)   (TOPR, Figure 9)

    The paper averages over a bucket's questions and captions the result as a proportion of the data set; `per_problem`
    is that average (1 = what every problem would get under equal weights), `share` the proportion, which also
    depends on how many problems a bucket holds.

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
    return DifficultyWeights(
        positive_share=positive_share,
        effective_positive=list(effective_positive),
        baseline=baseline,
        n_problems=count.astype(int).tolist(),
        share=total / weight.sum(axis=1, keepdims=True),
        per_problem=mean / weight.mean(axis=1, keepdims=True),
    )
