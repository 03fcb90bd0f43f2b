"""Weights of problems by difficulty (TOPR, Figure 9), which is the accuracy of the model that sampled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp import baseline_for, read_completions

EFFECTIVE_POSITIVE = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8)  # p̃
BUCKETS = 10  # of accuracy, a tenth each; the last holds 1, too
DIGITS = 6  # of what is recorded


def difficulty_of_run(run: Path, effective_positive: Sequence[float]) -> dict[str, Any]:
    """`difficulty_weights` of the completions that a run's first iteration was composed from, for JSON."""
    completions = read_completions(run)
    _, group, samples = np.unique(completions.problem, return_inverse=True, return_counts=True)
    is_correct = completions.verdict == "correct"
    correct = np.bincount(group, weights=is_correct).astype(int)
    numbers = difficulty_weights(correct, samples, effective_positive)
    for name in ("share", "per_problem"):
        rounded = np.round(numbers[name], DIGITS).astype(object)
        rounded[np.isnan(numbers[name])] = None  # JSON has no NaN
        numbers[name] = rounded.tolist()
    return numbers


def difficulty_weights(
    correct: NDArray[np.integer], samples: NDArray[np.integer] | int, effective_positive: Sequence[float]
) -> dict[str, Any]:
    """The weight of problems by difficulty, with 1 - c on each correct and 1 + c on each incorrect completion.

    share[b] = sum_{x in b} w(x) / sum_x w(x),   w(x) = (1-c) n+(x) + (1+c) n-(x)   (TOPR, Figure 9)

    By bucket of the base model's accuracy ([0, .1), [.1, .2), ... [.9, 1]): `problems`, their number; `share`, [E, 10],
    its part of the total weight; `per_problem`, [E, 10], the mean weight of its problems over that of all (nan if it
    has none). The paper's figure shows `per_problem`, its caption says `share`. `baseline`: the c of each p~ (Eq. 12).

    correct, samples: [P] completions of each problem by the base model.
    """
    n = np.broadcast_to(np.asarray(samples, dtype=np.int64), correct.shape)
    positive_share = float(correct.sum() / n.sum())
    baseline = [baseline_for(positive_share, p) for p in effective_positive]
    c = np.asarray(baseline)[:, None]
    weight = (1 - c) * correct + (1 + c) * (n - correct)  # [E, P]
    bucket = np.minimum(correct.astype(np.int64) * BUCKETS // n, BUCKETS - 1)  # [P]
    is_member = np.eye(BUCKETS)[bucket]  # [P, 10]
    bucket_weight = weight @ is_member  # [E, 10]
    problem_count = is_member.sum(axis=0)  # [10]
    mean_weight = np.full_like(bucket_weight, np.nan)
    np.divide(bucket_weight, problem_count, out=mean_weight, where=problem_count > 0)
    return {
        "positive_share": positive_share,
        "effective_positive": list(effective_positive),
        "baseline": baseline,
        "problems": problem_count.astype(int).tolist(),
        "share": bucket_weight / weight.sum(axis=1, keepdims=True),
        "per_problem": mean_weight / weight.mean(axis=1, keepdims=True),
    }
