"""Masks of policy gradients: rules that drop tokens, by how far one policy is from another on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from topr_exp.algorithms import base
from topr_exp.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

LEAST_OTHER = 1e-12  # −log of the largest probability that a binary divergence takes for below 1

# Statistic of a token that a mask looks at: of π against the denominator d, or (old_) of π_old against μ. ratio: π/d;
# difference: π − d, binary total variation; divergence: KL(Bernoulli(d) ‖ Bernoulli(π)), the binary KL.
Statistic = Literal["ratio", "difference", "divergence", "old_ratio", "old_difference", "old_divergence"]

# Span of a statistic: each token, or of a response the mean, the sum or the largest; of ratios in log space.
Level = Literal["token", "mean", "sum", "largest"]

# Responses that a mask drops: all beyond the band, or (signed) those that A drives further out: where A > 0 and the
# statistic is above, or A < 0 and it is below; for sizes by the sign of the token's δ_t.
Sides = Literal["both", "signed"]


@dataclass(frozen=True)
class Mask(base.Typed):
    """A rule that drops tokens: those whose statistic lies outside [low, high] (null: no bound) have no gradient.

    Divergences, and differences of a whole response (the mean or the largest |π − d|), are sizes: `high` alone.
    """

    statistic: Statistic
    level: Level = "token"
    low: float | None = None
    high: float | None = None
    sides: Sides = "both"

    def check(self) -> None:
        base.check_range("high", "null", "set, or low: a mask needs a band", (self.low, self.high) != (None, None))
        if self.of_ratio:
            base.check_range("low", self.low or 0.0, "null or 0 or more: a ratio", (self.low or 0.0) >= 0)
            base.check_range("high", self.high, "null or above 0: a ratio", self.high is None or self.high > 0)
        else:
            base.check_range("level", self.level, "token, mean or largest: no ratio", self.level != "sum")
        if self.is_size:
            base.check_range("low", self.low, "null for a size, which has no lower bound", self.low is None)
            base.check_range("high", self.high, "0 or more: a size", self.high is not None and self.high >= 0)
        elif not self.of_ratio:
            base.check_range("low", self.low or 0.0, "at most 1: a difference", (self.low or 0.0) <= 1)
            base.check_range("high", self.high or 0.0, "at least -1: a difference", (self.high or 0.0) >= -1)
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        base.check_range("high", high, f"above low = {low}", low < high)

    @property
    def of_ratio(self) -> bool:
        return self.statistic in ("ratio", "old_ratio")

    @property
    def of_old(self) -> bool:
        return self.statistic.startswith("old_")

    @property
    def is_size(self) -> bool:
        differs = self.statistic in ("difference", "old_difference")
        return not self.of_ratio and not (differs and self.level == "token")

    def dropped(self, now: Tensor, before: Tensor, advantage: Tensor, batch: Batch) -> Tensor:
        """[B, 1] or [B, T] bool, True where there is to be no gradient; now, before: the two policies' log p [B, T]."""
        change, sign = base.masked(now - before, batch), advantage[:, None]
        low = self.low if self.low is not None else -math.inf
        high = self.high if self.high is not None else math.inf
        if self.of_ratio:
            largest, least = over_response(change, self.level, batch)
            above, below = largest > log_limit(high), least < log_limit(low)
        elif not self.is_size:
            difference = base.masked(now.exp() - before.exp(), batch)
            above, below = difference > high, difference < low
        else:
            binary = _binary_divergence if self.statistic.endswith("divergence") else _binary_difference
            size, _ = over_response(base.masked(binary(now, before), batch), self.level, batch)
            if self.sides == "both":
                return size > high
            above, below = (size > high) & (change > 0), (size > high) & (change < 0)
        return above | below if self.sides == "both" else ((sign > 0) & above) | ((sign < 0) & below)


def over_response(values: Tensor, level: Level, batch: Batch) -> tuple[Tensor, Tensor]:
    """Largest and least of `values` [B, T] at a level, which differ for `largest` alone; [B, T] or [B, 1]."""
    if level == "largest":
        largest, least = values.where(batch.mask, -math.inf), values.where(batch.mask, math.inf)
        return largest.amax(1, keepdim=True), least.amin(1, keepdim=True)
    if level != "token":
        values = values.sum(1, keepdim=True)
        values = values / base.lengths(batch)[:, None] if level == "mean" else values
    return values, values


def _binary_difference(now: Tensor, before: Tensor) -> Tensor:
    return (now.exp() - before.exp()).abs()


def _binary_divergence(now: Tensor, before: Tensor) -> Tensor:
    """KL of Bernoulli(e^before) to Bernoulli(e^now), in float64 of log-probabilities, whose difference is small."""
    now, before = now.double().clamp(max=-LEAST_OTHER), before.double().clamp(max=-LEAST_OTHER)
    rest, rest_before = (-now.expm1()).log(), (-before.expm1()).log()
    return before.exp() * (before - now) + rest_before.exp() * (rest_before - rest)


def log_limit(limit: float) -> float:
    return math.log(limit) if limit > 0 else -math.inf
