"""Mismatch of the distribution that completions are drawn from and the policy: put in on purpose, and measured."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.config.model import SamplerConfig
from topr_exp.models.weight_headers import is_in_block
from topr_exp.schema import plain

LARGEST_NUMBER = {"float8_e4m3": 448.0, "int8": 127.0, "int4": 7.0}  # that a kind holds
AGREEMENT = 1e-3  # nats a token up to which two log-probabilities differ by rounding in float32
MAX_LOG_RATIO = 700.0  # more overflows a float64 in exp
QUANTILES = {"min": 0.0, "1%": 0.01, "5%": 0.05, "50%": 0.5, "95%": 0.95, "99%": 0.99, "max": 1.0}

# ---- put in: `sampler.mismatch.weights`


@contextlib.contextmanager
def rounded_weights(model: Any, kind: str) -> Iterator[None]:
    """While the block runs, a model computes with rounded weights, the very tensors of before come back after it.

    bfloat16: all of them. Else, as engines quantize, the blocks' matrices, not an adapter's.
    """
    weights = []
    for name, weight in model.named_parameters():
        is_quantized = weight.ndim > 1 and is_in_block(name) and ".lora_" not in name
        if kind != "none" and (kind == "bfloat16" or is_quantized):
            weights.append(weight)
    exact_weights = [weight.data for weight in weights]
    try:
        for weight in weights:
            weight.data = round_matrix(weight.data, kind)
        yield
    finally:
        for weight, exact_weight in zip(weights, exact_weights, strict=True):
            weight.data = exact_weight


def round_matrix(weight: Tensor, kind: str) -> Tensor:
    """Round a matrix to a kind of number, in its own dtype; all but bfloat16 with a scale for each row."""
    if kind == "bfloat16":
        return weight.bfloat16().to(weight.dtype)
    values = weight.float()
    row_maxima = values.abs().amax(-1, keepdim=True)
    never_zero = row_maxima.clamp_min(torch.finfo(torch.float32).tiny)
    scale = never_zero / LARGEST_NUMBER[kind]
    scaled = values / scale
    if kind == "float8_e4m3":
        numbers = scaled.to(torch.float8_e4m3fn).float()
    else:
        numbers = scaled.round()
    return (numbers * scale).to(weight.dtype)


# ---- measured: the error of using the sampler's log-probabilities for log μ


def measure_mismatch(
    scored_logp: Sequence[NDArray[np.float32]],
    sampler_logp: Sequence[NDArray[np.float32]],
    sampler: SamplerConfig | None = None,
) -> dict[str, Any]:
    """Measure quantiles of log μ − log q a token, and of the product of μ/q over a completion; JSON-ready.

    scored_logp, sampler_logp: by completion, log μ(y_t | x, y_<t) as training scored it and log q(y_t | x, y_<t) of the
    distribution drawn from (after temperature, top-k and top-p). The product is the factor by which π/q of a completion
    differs from π/μ: all 1 where nothing was cut off, below 1 where it was. sampler: one with a deliberate mismatch,
    which is added with KL(q ‖ μ) a token and a completion: unbiased means of μ/q − 1 − log μ/q, or of −log μ/q where
    not all tokens can be drawn.
    """
    token_counts = list(map(len, scored_logp))
    ends = np.cumsum(token_counts)
    log_ratios = np.empty(sum(token_counts))  # log μ/q of all tokens: 8 GB of 10^9, so there is one copy
    log_products = np.empty(len(scored_logp))  # [completions]
    for row, (log_mu, log_q) in enumerate(zip(scored_logp, sampler_logp, strict=True)):
        ratios = log_ratios[ends[row] - len(log_mu) : ends[row]]
        ratios[:] = log_mu.astype(np.float64) - log_q
        log_products[row] = ratios.sum()
    products = {}
    for name, log_product in quantiles(log_products).items():
        products[name] = math.exp(min(log_product, MAX_LOG_RATIO))
    figures: dict[str, Any] = {
        "tokens": len(log_ratios),
        "per_token": quantiles(log_ratios),
        "per_token_mean_absolute": float(np.abs(log_ratios).mean()),
        "sequence_ratio": products,
    }
    if sampler is not None:
        figures |= measure_put_in(log_ratios, len(scored_logp), sampler)
    return figures


def measure_put_in(log_ratios: NDArray[np.float64], completion_count: int, sampler: SamplerConfig) -> dict[str, Any]:
    """Measure KL(q ‖ μ) of a sampler with a deliberate mismatch; log_ratios: log μ/q of all tokens."""
    if sampler.has_truncation:
        kl_terms = -log_ratios
    else:
        kl_terms = np.expm1(log_ratios.clip(max=MAX_LOG_RATIO)) - log_ratios
    return {
        "put_in": plain(sampler.mismatch),
        "kl_token": float(kl_terms.mean()),
        "kl_answer": float(kl_terms.sum() / completion_count),
    }


def quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Compute quantiles by name: min, 1%, ..., max."""
    numbers = np.quantile(values, [*QUANTILES.values()])
    return dict(zip(QUANTILES, numbers.tolist(), strict=True))


def describe_mismatch(mismatch: dict[str, Any]) -> str:
    """Say in a line whether the sampler's log-probabilities are training's but for rounding."""
    token = mismatch["per_token"]
    ratio = mismatch["sequence_ratio"]
    largest = max(abs(token["min"]), abs(token["max"]))
    if "put_in" in mismatch:
        kl = f"KL {mismatch['kl_token']:.2g} a token, {mismatch['kl_answer']:.2g} a completion"
        return f"sampler and trainer differ as sampler.mismatch asks: {kl}, at most {largest:.2g} at a token"
    if largest <= AGREEMENT:
        return f"sampler and trainer agree: largest difference {largest:.0e} a token"
    return (
        f"sampler and trainer differ by up to {largest:.2g} a token, so that μ is training's; with the sampler's q for "
        f"it a completion's ratio would be off by μ/q = {ratio['50%']:.4g} ({ratio['1%']:.4g} to {ratio['99%']:.4g}: "
        "median, 1 % to 99 %)"
    )
