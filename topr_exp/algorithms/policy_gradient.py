"""One grammar of policy gradients over three policies: weights, masks, a correction (method: docs/algorithms.md).

π is in training; μ drew the responses; π_old has the weights of μ, scored by training's own forward pass. Where only
one of the last two is known they are one. The tapered family (TOPR, Section 3) is its part without π_old and masks.
"""

import math
from dataclasses import dataclass
from typing import Literal

from topr_exp.algorithms import base
from topr_exp.types import Batch, LossOutput, Tensor

# ---- masks: rules that drop tokens, by how far one policy is from another on them

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


# ---- the loss

CLIP_TOLERANCE = 1e-3  # rounding moves Δ off 0 by less; without it half of all would count as clipped at step 0

# The weighing ratio: e^Δ of the sequence (the paper), e^δ_t of a token, e^Σ_{u ≤ t} δ_u (prefix), e^(Δ/T) (geometric).
Ratio = Literal["sequence", "token", "geometric", "prefix"]
Rule = Literal["clip", "ppo"]  # what becomes of a ratio beyond the limits: clipped to them, or PPO's: no gradient
Denominator = Literal["sampler", "old"]  # the policy under π in the ratio: the sampler's μ, or π_old


@dataclass(frozen=True)
class PolicyGradient(base.Named):
    """REINFORCE with weights, masks and a correction, over three policies.

    loss = − Σ_t M_t · stopgrad(c_t w_t) · A · logπ(y_t),   δ_t = logπ(y_t) − log d(y_t),   ε_t = log π_old − log μ

    w = clip(ratio, a±, b±), the limits by the sign of A, d the `denominator`. With `rule=ppo` a token (or response)
    whose ratio is beyond them has no gradient, as in PPO, and the value is that of PPO's objective: its limits are
    0 1+ε 1−ε ∞ for a_pos b_pos a_neg b_neg. M: the product of the masks (`Mask`). c = min(e^ε, `correction`), by
    `correction_level` of each token, or the mean or sum of ε over the response; null: 1. `length_normalize` divides by
    T. All factors are multiplied in log space, so that what is dropped or clipped is never exponentiated.

    `renormalize`: π and π_old are renormalised over the tokens that the sampler's top_k and top_p left, as its μ is.

    At π = π_old = μ it is REINFORCE with its advantage. Limits 0 ∞ 0 ∞ with a sequence's or prefix's ratio and no mask
    are importance sampling. Metrics: weight M c w, clipped_low, clipped_high; objective (Tapered); masked; correction.
    """

    a_pos: base.NotNegative
    b_pos: float
    a_neg: base.NotNegative
    b_neg: float
    ratio: Ratio
    length_normalize: bool
    advantage: base.Advantage = "reward"
    rule: Rule = "clip"
    denominator: Denominator = "sampler"
    correction: base.PositiveOrNull = None
    correction_level: Literal["token", "mean", "sum"] = "token"
    mask: list[Mask] | None = None
    renormalize: bool = False

    @property
    def needs(self) -> frozenset[str]:
        three = self.denominator == "old" or self.correction is not None
        three |= any(each.of_old for each in self.mask or ())
        asked = {"group_rewards": self.advantage != "reward", "old_logp": three, "kept": self.renormalize}
        return frozenset(name for name, needed in asked.items() if needed)

    @property
    def uses_baseline(self) -> bool:
        """Where one sign has no weight, as in sft, a baseline only scales the loss; in a group it cancels."""
        return self.b_pos > 0 and self.b_neg > 0 and self.advantage == "reward"

    @property
    def needs_mu(self) -> bool:
        """False where both weights are constants, as in sft and naive, and nothing is masked or corrected."""
        constant = (self.a_pos, self.a_neg) == (self.b_pos, self.b_neg) and self.rule == "clip"
        return not constant or self.mask is not None or self.correction is not None

    @property
    def by_sign(self) -> bool:
        """The sign of R = R0 − c chooses the limits: a wrong answer with R of 0 or more is never made rarer."""
        return self.b_neg > 0 and self.advantage == "reward"

    def check(self) -> None:
        for sign in ("pos", "neg"):
            a, b = getattr(self, f"a_{sign}"), getattr(self, f"b_{sign}")
            base.check_range(f"b_{sign}", b, f"at least a_{sign} = {a}", b >= a)
            if self.rule == "ppo":
                base.check_range(f"a_{sign}", a, "at most 1 for rule=ppo", a <= 1)
                base.check_range(f"b_{sign}", b, "1 or more for rule=ppo", b >= 1)
        idle = self.correction is None and self.correction_level != "token"
        base.check_range(
            "correction_level", self.correction_level, "token where correction is null: nothing reads it", not idle
        )
        base.check_range("mask", "[]", "null or a list of one mask or more", self.mask != [])

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch, *({"old_logp"} & self.needs))
        advantage = base.advantage_of(batch, self.advantage, self.name)
        delta = self._log_ratio(batch)
        positive = (advantage > 0) | ((advantage == 0) & batch.positive)  # at 0, without a gradient, the verdict
        low, high = self._log_limits(positive, delta)
        log_weight, metrics = delta.clamp(low, high), {}
        if self.correction is not None:
            gap = base.masked(base.needed(batch, "old_logp") - batch.mu_logp, batch)
            log_correction = over_response(gap, self.correction_level, batch)[0].clamp(max=log_limit(self.correction))
            log_weight = _column(log_weight) + log_correction
            metrics["correction"] = _mean(log_correction.exp(), batch)
        if self.mask is not None:
            dropped = batch.mask.new_zeros(batch.mask.shape)
            for mask in self.mask:
                now = base.needed(batch, "old_logp") if mask.of_old else batch.logp.detach()
                before = batch.mu_logp if mask.of_old else self._denominator(batch)
                dropped = dropped | mask.dropped(now, before, advantage, batch)
            log_weight = _column(log_weight).masked_fill(dropped, -math.inf)
            metrics["masked"] = base.share_of_tokens(dropped, batch)
        weight = log_weight.exp()
        by_token = weight.ndim == 2
        pull = value = _times(weight, advantage[:, None] if by_token else advantage)
        logp = batch.logp if by_token else base.log_prob(batch)
        if self.rule == "ppo":
            outside = (delta < low) | (delta > high)
            pull = pull.masked_fill(_column(outside) if by_token else outside, 0.0)
            total = value + pull * (logp - logp.detach())
        else:
            total = pull * logp
        total = base.masked(total.expand_as(batch.logp), batch).sum(1) if by_token else total
        metrics = {
            "weight": _mean(weight, batch),
            "clipped_low": _mean((delta < low - CLIP_TOLERANCE).to(weight.dtype), batch),
            "clipped_high": _mean((delta > high + CLIP_TOLERANCE).to(weight.dtype), batch),
            **metrics,
        }
        if self.ratio == "sequence" and self.rule == "clip" and not by_token:
            metrics["objective"] = _times(taper(delta, low, high), advantage)
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)

    def _denominator(self, batch: Batch) -> Tensor:
        return batch.mu_logp if self.denominator == "sampler" or batch.old_logp is None else batch.old_logp

    def _log_ratio(self, batch: Batch) -> Tensor:
        """The log of the ratio that weighs: [B], or [B, T] for the ratios of tokens and prefixes."""
        tokens = base.masked(batch.logp - self._denominator(batch), batch).detach()
        if self.ratio == "token":
            return tokens
        if self.ratio == "prefix":
            return base.masked(tokens.cumsum(1), batch)
        return tokens.sum(1) / base.lengths(batch) if self.ratio == "geometric" else tokens.sum(1)

    def _log_limits(self, positive: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """log a and log b of each sample, in a shape that broadcasts against `delta`."""

        def choose(pos: float, neg: float) -> Tensor:
            limit = delta.new_full(positive.shape, log_limit(neg)).masked_fill(positive, log_limit(pos))
            return limit if delta.ndim == 1 else limit[:, None]

        return choose(self.a_pos, self.a_neg), choose(self.b_pos, self.b_neg)


@dataclass(frozen=True)
class Tapered(PolicyGradient):
    """REINFORCE with a clipped importance weight, its limits chosen by the sign of R.

    loss = − stopgrad(w) · R · logπ(y|x) / T,   w = clip(r, a±, b±),   r = π(y|x)/μ(y|x),   R = R0 − c

    TOPR (arXiv 2503.14286), Equation 7 and Table 1: topr 1 1 0 1, sft 1 1 0 0, naive 1 1 1 1, is 0 ∞ 0 ∞, tis 0 1 0 1
    for a_pos b_pos a_neg b_neg. The sign of R picks the limits (Equations 1 and 7): of rewards 1 and 0 and c < 0 it is
    positive for all. `advantage` other than `reward` puts the group's A in R's place. `ratio=token` is −(1/T) Σ_t
    stopgrad(clip(r_t)) R logπ_t, what other frameworks call TOPR; `ratio=geometric` clips r^(1/T). Without 1/T
    (`length_normalize=false`) the expected gradient is that of −J in Equation 11. Masks, correction: `PolicyGradient`.
    """


def taper(delta: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    """The taper ρ(e^Δ, a, b): the ratio itself inside [a, b], beyond a limit its tangent in log space.

    ρ(x, a, b) = a (1 + log(x/a)) for x < a, b (1 + log(x/b)) for x > b, else x; 0 · (1 + log ·) := 0.
    TOPR (arXiv 2503.14286), below Equation 11. Its gradient with respect to Δ is clip(e^Δ, a, b).
    """
    limit = delta.clamp(log_a, log_b)
    weight = limit.exp()
    return weight * (1 + (delta - limit).masked_fill(weight == 0, 0.0))


def _column(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values[:, None]


def _mean(values: Tensor, batch: Batch) -> Tensor:
    """Mean over each response's tokens, [B], of values [B], [B, 1] or [B, T]."""
    return base.share_of_tokens(values.expand_as(batch.mask), batch) if values.ndim == 2 else values


def _times(weight: Tensor, factor: Tensor) -> Tensor:
    """The product with 0 · ∞ := 0: a zero reward or a zero weight takes a sample out, whatever its ratio."""
    return (weight * factor).masked_fill((weight == 0) | (factor == 0), 0.0)
