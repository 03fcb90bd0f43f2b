"""One grammar of policy gradients over three policies: weights, masks, a correction (method: docs/algorithms.md).

π is in training; μ drew the responses; π_old has the weights of μ, scored by training's own forward pass. Where only
one of the last two is known they are one. The tapered family (TOPR, Section 3) is its part without π_old and masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from topr_exp.algorithms import base
from topr_exp.algorithms.base import Advantage
from topr_exp.algorithms.masks import Mask, log_limit, over_response
from topr_exp.types import Batch, LossOutput

if TYPE_CHECKING:
    from torch import Tensor

CLIP_TOLERANCE = 1e-3  # rounding moves Δ off 0 by less; without it half of all would count as clipped at step 0

# The ratio that weighs: of the sequence (the paper), e^Δ; of each token, e^δ_t; of the tokens so far (prefix),
# exp Σ_{u ≤ t} δ_u; or their geometric mean, exp(Δ/T).
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
    advantage: Advantage = "reward"
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
    for a_pos b_pos a_neg b_neg. The sign of R picks the limits, as in Equations 1 and 7: of rewards 1 and 0
    and c < 0 it is positive for all. `advantage` other than `reward` puts the group's advantage A in R's place, here
    and in the choice of limits. `ratio=token` is −(1/T) Σ_t stopgrad(clip(r_t)) R logπ_t, what other frameworks call
    TOPR; `ratio=geometric` clips r^(1/T). `length_normalize=false` leaves 1/T out; the expected gradient is then that
    of −J in Equation 11. Masks and a correction are `PolicyGradient`'s.
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
