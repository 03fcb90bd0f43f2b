"""Distance of the sampler's log-probabilities from log μ: the error of using one for the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 700.0  # log of what a float holds
QUANTILES = (0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0)


def mismatch(mu: Sequence[NDArray[np.float32]], sampler: Sequence[NDArray[np.float32]]) -> dict[str, Any]:
    """Quantiles of log μ − log q a token, and of the product of μ/q over a completion, as JSON-ready values.

    mu, sampler: by completion, log μ(y_t | x, y_<t) as training scored it and log q(y_t | x, y_<t) of the
    distribution that the token was drawn from (after temperature, top-k and top-p). The product is the factor by which
    the importance ratio π/q of a completion differs from π/μ: all 1 where nothing was cut off, below 1 where it was.
    """
    values = [m.astype(np.float64) - s for m, s in zip(mu, sampler, strict=True)]
    tokens = np.concatenate([np.zeros(0), *values])
    if not len(tokens):
        return {"tokens": 0}
    sums = np.array([value.sum() for value in values])
    return {
        "tokens": len(tokens),
        "per_token": quantiles(tokens),
        "per_token_mean_absolute": float(np.abs(tokens).mean()),
        "sequence_ratio": {key: math.exp(min(value, LARGEST)) for key, value in quantiles(sums).items()},
    }


def quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Quantiles by name: min, 1%, ..., max."""
    names = {0.0: "min", 1.0: "max"}
    found = np.quantile(values, QUANTILES)
    return {names.get(q, f"{100 * q:g}%"): float(value) for q, value in zip(QUANTILES, found, strict=True)}


def describe_mismatch(found: dict[str, Any]) -> str:
    """The same in a line."""
    if not found["tokens"]:
        return "log μ − log q: no tokens"
    token, ratio = found["per_token"], found["sequence_ratio"]
    return (
        f"μ against the sampler's q: log μ − log q a token {token['50%']:.2g} ({token['1%']:.2g} to "
        f"{token['99%']:.2g}), μ/q a completion {ratio['50%']:.4g} ({ratio['1%']:.4g} to {ratio['99%']:.4g}); "
        "medians (1 % to 99 %)"
    )
