"""The grammar of policy gradients over three policies: weights, masks and a correction (method: docs/losses.md).

π is in training; μ drew the completions; π_old has the weights of μ, scored by training's own forward pass. Where only
one of the last two is known they are one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms.base import (
    Paper,
    PositiveOrNull,
    advantage_of,
    log_or_minus_inf,
    log_prob,
    masked,
    mean_over_tokens,
    needed,
    sum_over_tokens,
)
from topr_exp.algorithms.centering import LogWeight, expected_score
from topr_exp.algorithms.masks import Mask, over_completion
from topr_exp.algorithms.topr import LimitedRatio, Tapered, completion_mean, product, weighted_log_prob
from topr_exp.schema import Rule
from topr_exp.types import Batch, LossOutput, Tensor

DPPO = "2602.04879"


@dataclass(frozen=True)
class PolicyGradient(Tapered):
    """REINFORCE with weights, masks and a correction, over three policies.

    loss = − Σ_t M_t · stopgrad(c_t w_t) · A · logπ(y_t),   δ_t = logπ(y_t) − log d(y_t),   ε_t = log π_old − log μ

    d: the `denominator`, μ or π_old.
    w: clip(ratio, a±, b±), the limits by the sign of A. With `rule=ppo` a token (or completion) whose ratio is beyond
    them has no gradient, and the value is that of PPO's objective, whose a_pos b_pos a_neg b_neg are 0 1+ε 1−ε ∞.
    M: the product of the masks (`Mask`).
    c: min(e^ε, `correction`), by `correction_level` of each token, or the mean or sum of ε over the completion; null:
    1. It goes with a ratio to π_old or a constant weight: π/μ has that factor already.

    All factors are multiplied in log space, so that what is dropped or clipped is never exponentiated. At π = π_old = μ
    it is REINFORCE with its advantage. Limits 0 ∞ 0 ∞ with a sequence's or prefix's ratio and no mask are importance
    sampling. `length_normalize` divides by T.

    Metrics: weight M c w, clipped_low, clipped_high; objective; masked; correction.
    """

    rule: Literal["clip", "ppo"] = "clip"  # a ratio beyond its limits is clipped to them, or has no gradient (PPO)
    denominator: Literal["sampler", "old"] = "sampler"  # the policy under π in the ratio: the sampler's μ, or π_old
    correction: PositiveOrNull = None  # cap C of min(π_old/μ, C), beside denominator=old; null: none; needs mu=sampler
    correction_level: Literal["token", "mean", "sum"] = "token"  # span of π_old/μ
    mask: list[Mask] | None = None  # tokens or completions that are dropped: statistic, level, low, high, sides
    center_scores: bool = False  # subtract what the sampler's error alone would do; needs sampler.top_logprobs
    renormalize: bool = False  # π is renormalised over what top_k and top_p let the sampler draw; needs mu=sampler

    papers: ClassVar = {
        "policy_gradient": Paper("Importance sampling, by its parts", DPPO, "Equation 11"),
        "decoupled_ppo": Paper("Decoupled PPO", "2110.00641"),
        "icepop": Paper("IcePop", "2510.18855"),
        "dppo_tv": Paper("DPPO, binary total variation", DPPO, "Equations 11 to 13"),
        "dppo_kl": Paper("DPPO, binary KL", DPPO, "Equations 11, 12 and 14"),
        "ipo": Paper("IPO (prime-rl)"),
        "mis": Paper("Masked importance sampling (veRL)"),
        "trust_region_mask": Paper("Trust region masking", "2512.23075"),
        "vaco": Paper("VACO's filter", "2603.01365"),
        "luspo": Paper("LUSPO", "2602.05261"),
    }

    def check(self) -> Iterator[Rule]:
        yield from super().check()
        if self.rule == "ppo":
            for sign in ("pos", "neg"):
                yield f"a_{sign}", getattr(self, f"a_{sign}") <= 1, "at most 1 for rule=ppo"
                yield f"b_{sign}", getattr(self, f"b_{sign}") >= 1, "1 or more for rule=ppo"
        level_is_read = self.correction is not None or self.correction_level == "token"
        yield "correction_level", level_is_read, "token where correction is null: nothing reads it"
        yield "mask", self.mask != [], "null or a list of one mask or more"
        is_weight_alone = self.correction is None and self.mask is None and not self.renormalize
        is_centered_alone = is_weight_alone and self.denominator == "sampler"
        allowed = "false with a mask, a correction, renormalize or denominator=old, which its head has no numbers for"
        yield "center_scores", is_centered_alone or not self.center_scores, allowed
        is_corrected_twice = self.reads_ratio and self.correction is not None and self.denominator == "sampler"
        allowed = "old where correction is set: π/μ has the factor π_old/μ already"
        yield "denominator", not is_corrected_twice, allowed

    @property
    def needs(self) -> frozenset[str]:
        needs = super().needs
        if self._compares_three_policies:
            needs |= {"old_logp"}
        if self.renormalize:
            needs |= {"kept"}
        if self.center_scores:
            needs |= {"head"}
        return needs

    @property
    def reads_ratio(self) -> bool:
        return super().reads_ratio or self.rule == "ppo"

    @property
    def needs_mu(self) -> bool:
        has_factors = self.mask is not None or self.correction is not None
        return super().needs_mu or has_factors or self.center_scores

    @property
    def drops_tokens(self) -> bool:
        return self.mask is not None

    @property
    def _compares_three_policies(self) -> bool:
        masks_old_policy = any(mask.is_of_old_policy for mask in self.mask or ())
        return self.denominator == "old" or self.correction is not None or masks_old_policy

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, self.advantage, self.name)
        ratio = self.limited_ratio(batch, advantage)
        log_weight, factor_metrics = self._with_factors(ratio.log_weight, advantage, batch)
        weight = log_weight.exp()  # M c w
        if self.rule == "ppo":
            total = ppo_objective(ratio, product(weight, advantage), batch)
        else:
            total = weighted_log_prob(weight, advantage, batch)
        if self.center_scores:
            total = total - self._expected_total(ratio, weight, advantage, batch)
        metrics = ratio.metrics(weight, batch) | factor_metrics
        if self.ratio == "sequence" and self.rule == "clip" and not factor_metrics:
            metrics["objective"] = product(ratio.taper, advantage)
        return self.output(-total, batch, metrics)

    def _with_factors(self, log_weight: Tensor, advantage: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """log M c w of log w, and the metrics of c and M."""
        metrics: dict[str, Tensor] = {}
        if self.correction is not None:
            log_correction = self._log_correction(batch, self.correction)
            log_weight = as_column(log_weight) + log_correction
            metrics["correction"] = completion_mean(log_correction.exp(), batch)
        if self.mask is not None:
            is_dropped = self._is_dropped(self.mask, advantage, batch)
            log_weight = as_column(log_weight).masked_fill(is_dropped, -math.inf)
            metrics["masked"] = mean_over_tokens(is_dropped, batch)
        return log_weight, metrics

    def log_denominator(self, batch: Batch) -> Tensor:
        if self.denominator == "sampler":
            return batch.mu_logp
        return needed(batch, "old_logp")

    def _expected_total(self, ratio: LimitedRatio, weight: Tensor, advantage: Tensor, batch: Batch) -> Tensor:
        """A Σ_t E_q[w s] of each completion, [B], as a term with that gradient.

        With the ratio of a token or a prefix each token of the head has its own weight, and a constant A has no drift.
        A weight of the whole completion multiplies E_q[s], which is exact where its limits are equal.
        """
        if ratio.log_ratio.ndim == 1:
            if self.rule == "ppo":
                weight = weight.masked_fill(ratio.is_outside, 0.0)
            scores = expected_score(batch, log_one)  # E_q[s], [B, T]
            return product(weight, advantage) * sum_over_tokens(scores, batch)
        weighted_scores = expected_score(batch, self._log_weight_in_head(ratio, batch))  # E_q[w s], [B, T]
        return advantage * sum_over_tokens(weighted_scores, batch)

    def _log_weight_in_head(self, ratio: LimitedRatio, batch: Batch) -> LogWeight:
        """Return log w of a token as a function of its own log-ratio, after the tokens before it as they were drawn."""
        # Of the tokens before t; 0 for a ratio of the token alone.
        prefix_log_ratio = ratio.log_ratio - masked(batch.logp.detach() - batch.mu_logp, batch)

        def log_weight(token_log_ratio: Tensor) -> Tensor:
            log_ratio = prefix_log_ratio[..., None] + token_log_ratio
            limited = LimitedRatio(log_ratio, ratio.log_a[..., None], ratio.log_b[..., None])
            if self.rule == "ppo":
                return log_ratio.masked_fill(limited.is_outside, -math.inf)
            return limited.log_weight

        return log_weight

    def _log_correction(self, batch: Batch, cap: float) -> Tensor:
        """log min(π_old/μ, cap), [B, T], or [B, 1] of the completion."""
        log_gap = masked(needed(batch, "old_logp") - batch.mu_logp, batch)
        return over_completion(log_gap, self.correction_level, batch).clamp(max=log_or_minus_inf(cap))

    def _is_dropped(self, masks: list[Mask], advantage: Tensor, batch: Batch) -> Tensor:
        """[B, T] bool, True where any mask drops the token."""
        is_dropped = batch.mask.new_zeros(batch.mask.shape)
        for mask in masks:
            if mask.is_of_old_policy:
                log_p = needed(batch, "old_logp")
                log_q = batch.mu_logp
            else:
                log_p = batch.logp.detach()
                log_q = self.log_denominator(batch)
            is_dropped = is_dropped | mask.is_dropped(log_p, log_q, advantage, batch)
        return is_dropped


def ppo_objective(ratio: LimitedRatio, value: Tensor, batch: Batch) -> Tensor:
    """PPO's objective of each completion, [B]: `value`, with a gradient where the ratio is inside its limits.

    value: M c w A, [B], or [B, 1] or [B, T] by token.
    """
    if value.ndim == 1:
        slope = value.masked_fill(ratio.is_outside, 0.0)
        logp = log_prob(batch)
        return value + slope * (logp - logp.detach())
    slope = value.masked_fill(as_column(ratio.is_outside), 0.0)
    gradient_term = slope * (batch.logp - batch.logp.detach())  # 0, with the gradient
    return sum_over_tokens(value + gradient_term, batch)


def log_one(log_ratio: Tensor) -> Tensor:
    """The log of weight 1 for each ratio."""
    return log_ratio.new_zeros(log_ratio.shape)


def as_column(values: Tensor) -> Tensor:
    """[B] as [B, 1]; [B, T] as it is."""
    if values.ndim == 2:
        return values
    return values[:, None]
