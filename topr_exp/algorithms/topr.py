"""TOPR and its family: REINFORCE with an importance ratio that is limited by the sign of the reward.

Le Roux et al. (arXiv 2503.14286), Equation 7, for a completion y of T tokens with R = R0 − c and r = π(y|x) / μ(y|x):

    loss = − stopgrad(w) · R · log π(y|x) / T,   w = clip(r, a+, b+) where R > 0, clip(r, a−, b−) where R < 0

    limits (Table 1)  a+  b+  a−  b−
    topr              1   1   0   1    positives at full weight, negatives by min(r, 1)
    sft               1   1   0   0    positives alone
    naive             1   1   1   1    no importance weight
    is                0   ∞   0   ∞    the ratio itself
    tis               0   1   0   1    min(r, 1) for both

PPO's clipping (rule=ppo), masks and corrections are the grammar of `policy_gradient`, which extends this class.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms.base import (
    Advantage,
    NotNegative,
    Paper,
    PenalizedLoss,
    advantage_of,
    by_sign,
    lengths,
    log_or_minus_inf,
    log_prob,
    masked,
    mean_over_tokens,
    sum_over_tokens,
)
from topr_exp.schema import Rule
from topr_exp.types import Batch, LossOutput, Tensor

ARXIV = "2503.14286"
CLIP_TOLERANCE = 1e-3  # rounding moves Δ off 0 by less; without it half of all would count as clipped at step 0

# The ratio that weighs: e^Δ of the sequence (the paper), e^δ_t of a token, e^(Δ/T), e^Σ_{u ≤ t} δ_u of a prefix, and
# MinPRO's e^(δ_t + min_{u < t} δ_u).
Ratio = Literal["sequence", "token", "geometric", "prefix", "min_prefix"]


@dataclass(frozen=True)
class Tapered(PenalizedLoss):
    """REINFORCE with a clipped importance weight, its limits chosen by the sign of R.

    `ratio=token` is −(1/T) Σ_t stopgrad(clip(r_t)) R logπ_t, which other frameworks call TOPR; `ratio=geometric` clips
    r^(1/T). Without 1/T the expected gradient is that of −J in Equation 11. With rewards of 1 and 0 and c < 0, R is
    positive for all. An `advantage` other than `reward` takes R's place.

    Metrics: weight w, clipped_low, clipped_high (shares beyond a limit), objective R ρ(r, a, b) (ratio=sequence).
    """

    a_pos: NotNegative  # least weight of a positive
    b_pos: float  # largest weight of a positive
    a_neg: NotNegative  # least weight of a negative
    b_neg: float  # largest weight of a negative
    ratio: Ratio  # of the completion, each token, geometric mean, each prefix, or the token times the minimum before
    length_normalize: bool  # divide a completion's loss by its number of tokens
    advantage: Advantage = "reward"  # weight of a completion: reward minus baseline, or relative to its group

    papers: ClassVar = {
        "topr": Paper("TOPR", ARXIV, "Equation 8"),
        "tis": Paper("Truncated importance sampling", ARXIV, "Section 2.3"),
        "is": Paper("Off-policy REINFORCE", ARXIV, "Equation 5"),
        "naive": Paper("Naive REINFORCE", ARXIV, "Equation 2"),
        "sft": Paper("Training on positives", ARXIV, "Table 1"),
    }

    def check(self) -> Iterator[Rule]:
        yield from super().check()
        yield "b_pos", self.b_pos >= self.a_pos, f"at least a_pos = {self.a_pos}"
        yield "b_neg", self.b_neg >= self.a_neg, f"at least a_neg = {self.a_neg}"
        yield "b_neg", self.b_pos > 0 or self.b_neg > 0, "above 0 where b_pos is 0: else no completion has a weight"

    @property
    def needs(self) -> frozenset[str]:
        if self.advantage == "reward":
            return super().needs
        return super().needs | {"group_rewards"}

    @property
    def uses_baseline(self) -> bool:
        """False where one sign has no weight, as in sft, and c only scales the loss; in a group it cancels."""
        return self.b_pos > 0 and self.b_neg > 0 and self.advantage == "reward"

    @property
    def reads_ratio(self) -> bool:
        """False where both weights are constants, as in sft and naive."""
        return self.a_pos != self.b_pos or self.a_neg != self.b_neg

    @property
    def needs_mu(self) -> bool:
        return self.reads_ratio or self.unbiased_kl

    @property
    def needs_unequal_rewards(self) -> bool:
        return self.advantage != "reward"

    def has_weight(self, reward: float) -> bool:
        limit = self.b_pos if reward > 0 else self.b_neg
        return reward != 0 and limit > 0

    @property
    def lowers_negative_rewards_alone(self) -> bool:
        return self.b_neg > 0 and self.advantage == "reward"

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, self.advantage, self.name)  # R
        ratio = self.limited_ratio(batch, advantage)
        weight = ratio.log_weight.exp()  # w = clip(r, a, b)
        loss = -weighted_log_prob(weight, advantage, batch)
        metrics = ratio.metrics(weight, batch)
        if self.ratio == "sequence":
            metrics["objective"] = product(ratio.taper, advantage)
        return self.output(loss, batch, metrics)

    def limited_ratio(self, batch: Batch, advantage: Tensor) -> "LimitedRatio":
        """The ratio with the limits of each completion, by the sign of its advantage."""
        log_ratio = self.log_weighing_ratio(batch)
        # A = 0 gives no gradient: there the verdict chooses the limits, which only the metrics show.
        is_positive = (advantage > 0) | ((advantage == 0) & batch.positive)
        if log_ratio.ndim == 2:
            is_positive = is_positive[:, None]
        log_a = log_limits(self.a_pos, self.a_neg, is_positive, batch)
        log_b = log_limits(self.b_pos, self.b_neg, is_positive, batch)
        return LimitedRatio(log_ratio, log_a, log_b)

    def log_weighing_ratio(self, batch: Batch) -> Tensor:
        """log r without gradient: [B], or [B, T] for the ratios of tokens and prefixes."""
        token_log_ratio = masked(batch.logp - self.log_denominator(batch), batch).detach()
        if self.ratio == "token":
            return token_log_ratio
        if self.ratio == "prefix":
            return masked(token_log_ratio.cumsum(1), batch)
        if self.ratio == "min_prefix":
            return masked(token_log_ratio + earlier_minimum(token_log_ratio, batch), batch)
        if self.ratio == "geometric":
            return token_log_ratio.sum(1) / lengths(batch)
        return token_log_ratio.sum(1)

    def log_denominator(self, batch: Batch) -> Tensor:
        """log μ of each token, [B, T]."""
        return batch.mu_logp


@dataclass(frozen=True)
class LimitedRatio:
    """The ratio that weighs and its limits, in log space, where nothing overflows: [B], or [B, T] by token."""

    log_ratio: Tensor
    log_a: Tensor  # of the lower limit, in a shape that broadcasts
    log_b: Tensor  # of the upper limit

    @property
    def log_weight(self) -> Tensor:
        return self.log_ratio.clamp(self.log_a, self.log_b)

    @property
    def is_outside(self) -> Tensor:
        return (self.log_ratio < self.log_a) | (self.log_ratio > self.log_b)

    @property
    def taper(self) -> Tensor:
        """ρ(r, a, b): the ratio itself inside [a, b], beyond a limit its tangent in log space.

        ρ(x, a, b) = a (1 + log(x/a)) for x < a, b (1 + log(x/b)) for x > b, else x; 0 · (1 + log ·) := 0.
        TOPR, below Equation 11. Its gradient with respect to log r is clip(r, a, b).
        """
        log_weight = self.log_weight
        weight = log_weight.exp()
        log_excess = (self.log_ratio - log_weight).masked_fill(weight == 0, 0.0)
        return weight * (1 + log_excess)

    def metrics(self, weight: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Mean weight and shares of clipped ratios of each completion, [B]; weight: [B], [B, 1] or [B, T]."""
        is_low = self.log_ratio < self.log_a - CLIP_TOLERANCE
        is_high = self.log_ratio > self.log_b + CLIP_TOLERANCE
        return {
            "weight": completion_mean(weight, batch),
            "clipped_low": completion_mean(is_low.to(weight.dtype), batch),
            "clipped_high": completion_mean(is_high.to(weight.dtype), batch),
        }


def earlier_minimum(values: Tensor, batch: Batch) -> Tensor:
    """The minimum of `values` [B, T] over each completion's earlier tokens; 0 for its first token."""
    running_minimum = values.where(batch.mask, math.inf).cummin(1).values
    minimum = running_minimum.roll(1, dims=1)
    minimum[:, 0] = math.inf
    return minimum.masked_fill(minimum == math.inf, 0.0)


def weighted_log_prob(weight: Tensor, advantage: Tensor, batch: Batch) -> Tensor:
    """Σ_t w A log π(y_t) of each completion, [B]; weight: [B], or [B, 1] or [B, T] by token."""
    slope = product(weight, advantage)
    if weight.ndim == 1:
        return slope * log_prob(batch)
    return sum_over_tokens(slope * batch.logp, batch)


def product(weight: Tensor, factor: Tensor) -> Tensor:
    """Weights [B], [B, 1] or [B, T] times their completion's factor [B], with 0 · ∞ := 0.

    So a zero reward or a zero weight takes a sample out, whatever its ratio.
    """
    if weight.ndim == 2:
        factor = factor[:, None]
    is_zero = (weight == 0) | (factor == 0)
    return (weight * factor).masked_fill(is_zero, 0.0)


def log_limits(limit_pos: float, limit_neg: float, is_positive: Tensor, batch: Batch) -> Tensor:
    """log of the limit of each completion, in the shape of `is_positive`."""
    return by_sign(log_or_minus_inf(limit_pos), log_or_minus_inf(limit_neg), is_positive, batch)


def completion_mean(values: Tensor, batch: Batch) -> Tensor:
    """Mean over each completion's tokens, [B], of values [B], [B, 1] or [B, T]."""
    if values.ndim == 1:
        return values
    return mean_over_tokens(values.expand_as(batch.mask), batch)
