"""Masks: rules that drop tokens by how far one policy has moved from another on them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from topr_exp.algorithms.base import TypedSection, lengths, log_or_minus_inf, masked
from topr_exp.schema import Rule
from topr_exp.types import Batch, Tensor

HIGHEST_LOG_PROB = -1e-12  # limit in a binary divergence, since log(1 − 1) would be −∞

# Statistic of a token, of π against the loss's denominator d, or (old_) of π_old against μ. ratio: π/d; difference:
# π − d, binary total variation; divergence: KL(Bernoulli(d) ‖ Bernoulli(π)), the binary KL.
Statistic = Literal["ratio", "difference", "divergence", "old_ratio", "old_difference", "old_divergence"]

# Span of a statistic: each token, or the mean, sum or largest over a completion; ratios are summed in log space.
Level = Literal["token", "mean", "sum", "largest"]

# What a mask drops: all tokens beyond the band, or (signed) only those that A pushes further out: above it where
# A > 0, below it where A < 0. A size has no sign, so the sign of the token's log-ratio says on which side it is.
Sides = Literal["both", "signed"]


@dataclass(frozen=True)
class Mask(TypedSection):
    """A rule that drops tokens: those whose statistic lies outside [low, high] (null: no bound) have no gradient.

    Divergences, and differences of a whole completion (the mean or the largest |π − d|), are sizes: `high` alone.
    """

    statistic: Statistic
    level: Level = "token"
    low: float | None = None
    high: float | None = None
    sides: Sides = "both"

    def check(self) -> Iterator[Rule]:
        low, high = self.band
        has_band = self.low is not None or self.high is not None
        yield "high", has_band, "set, or low: a mask needs a band"
        if self.is_ratio:
            yield "low", self.low is None or low >= 0, "null or 0 or more: a ratio"
            yield "high", self.high is None or high > 0, "null or above 0: a ratio"
        else:
            yield "level", self.level != "sum", "token, mean or largest: no ratio"
        if self.is_size:
            yield "low", self.low is None, "null for a size, which has no lower bound"
            yield "high", self.high is not None and high >= 0, "0 or more: a size"
        elif not self.is_ratio:
            yield "low", self.low is None or low <= 1, "at most 1: a difference"
            yield "high", self.high is None or high >= -1, "at least -1: a difference"
        yield "high", low < high, f"above low = {low}"

    @property
    def band(self) -> tuple[float, float]:
        """low and high, infinite where there is no bound."""
        low = self.low if self.low is not None else -math.inf
        high = self.high if self.high is not None else math.inf
        return low, high

    @property
    def is_ratio(self) -> bool:
        return self.statistic in ("ratio", "old_ratio")

    @property
    def is_of_old_policy(self) -> bool:
        """True for π_old against μ, False for π against the loss's denominator."""
        return self.statistic.startswith("old_")

    @property
    def is_size(self) -> bool:
        """True for a statistic without a sign."""
        is_signed_difference = self.statistic in ("difference", "old_difference") and self.level == "token"
        return not self.is_ratio and not is_signed_difference

    def is_dropped(self, log_p: Tensor, log_q: Tensor, advantage: Tensor, batch: Batch) -> Tensor:
        """[B, 1] or [B, T] bool, True where there is to be no gradient.

        log_p: [B, T] of the policy that the statistic is of; log_q: [B, T] of the policy that it is against.
        """
        low, high = self.band
        log_ratio = masked(log_p - log_q, batch)
        if self.is_ratio:
            largest, smallest = extremes(log_ratio, self.level, batch)
            is_above = largest > log_or_minus_inf(high)
            is_below = smallest < log_or_minus_inf(low)
        elif self.is_size:
            is_far = self._size(log_p, log_q, batch) > high
            if self.sides == "both":
                return is_far
            is_above = is_far & (log_ratio > 0)
            is_below = is_far & (log_ratio < 0)
        else:
            difference = masked(log_p.exp() - log_q.exp(), batch)
            is_above = difference > high
            is_below = difference < low
        if self.sides == "both":
            return is_above | is_below
        token_advantage = advantage[:, None]
        return ((token_advantage > 0) & is_above) | ((token_advantage < 0) & is_below)

    def _size(self, log_p: Tensor, log_q: Tensor, batch: Batch) -> Tensor:
        """The statistic without a sign at this mask's level, [B, T] or [B, 1]."""
        if self.statistic in ("divergence", "old_divergence"):
            size = binary_divergence(log_p, log_q)
        else:
            size = (log_p.exp() - log_q.exp()).abs()
        largest, _ = extremes(masked(size, batch), self.level, batch)
        return largest


def extremes(values: Tensor, level: Level, batch: Batch) -> tuple[Tensor, Tensor]:
    """Largest and smallest of `values` [B, T] at a level, which differ for `largest` alone; [B, T] or [B, 1]."""
    if level == "largest":
        largest = values.where(batch.mask, -math.inf).amax(1, keepdim=True)
        smallest = values.where(batch.mask, math.inf).amin(1, keepdim=True)
        return largest, smallest
    aggregate = over_completion(values, level, batch)
    return aggregate, aggregate


def over_completion(values: Tensor, level: Literal["token", "mean", "sum"], batch: Batch) -> Tensor:
    """`values` [B, T] as they are, or their mean or sum over each completion, [B, 1]."""
    if level == "token":
        return values
    total = values.sum(1, keepdim=True)
    if level == "mean":
        return total / lengths(batch)[:, None]
    return total


def binary_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Bernoulli(q) ‖ Bernoulli(p)), in float64 of log-probabilities, whose difference is small."""
    log_p = log_p.double().clamp(max=HIGHEST_LOG_PROB)
    log_q = log_q.double().clamp(max=HIGHEST_LOG_PROB)
    log_not_p = (-log_p.expm1()).log()
    log_not_q = (-log_q.expm1()).log()
    sampled_term = log_q.exp() * (log_q - log_p)
    other_term = log_not_q.exp() * (log_not_q - log_not_p)
    return sampled_term + other_term
