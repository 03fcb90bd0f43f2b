"""The tapered family (TOPR, Section 3): one loss, whose four limits give TOPR, TIS, IS, naive REINFORCE and SFT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from topr_exp.algorithms import base
from topr_exp.algorithms.base import Advantage
from topr_exp.types import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

    from topr_exp.types import Batch

CLIP_TOLERANCE = 1e-3  # rounding moves Δ off 0 by less; without it half of all would count as clipped at step 0


class Ratio(Enum):
    """Which ratio is clipped: of the sequence (the paper), of each token, or the geometric mean over tokens."""

    sequence = "sequence"
    token = "token"
    geometric = "geometric"


@dataclass(frozen=True)
class Tapered:
    """REINFORCE with a clipped importance weight, its limits chosen by the sign of R.

    loss = − stopgrad(w) · R · logπ(y|x) / T,   w = clip(r, a±, b±),   r = π(y|x)/μ(y|x),   R = R0 − c

    TOPR (arXiv 2503.14286), Equation 7 and Table 1: topr 1 1 0 1, sft 1 1 0 0, naive 1 1 1 1, is 0 ∞ 0 ∞, tis 0 1 0 1
    for a_pos b_pos a_neg b_neg. The sign of R picks the limits, as in Equations 1 and 7: of rewards 1 and 0
    and c < 0 it is positive for all. `advantage` other than `reward` puts the group's advantage A in R's place, here
    and in the choice of limits. `ratio=token` is −(1/T) Σ_t stopgrad(clip(r_t)) R
    logπ_t, what other frameworks call TOPR; `ratio=geometric` clips r^(1/T). `length_normalize=false` leaves 1/T out;
    the expected gradient is then that of −J in Equation 11.

    Gradient: through logp only, w is a constant.
    """

    name: str
    a_pos: float
    b_pos: float
    a_neg: float
    b_neg: float
    ratio: Ratio
    length_normalize: bool
    advantage: Advantage = Advantage.reward

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.advantage is Advantage.reward else frozenset({"group_rewards"})

    @property
    def uses_baseline(self) -> bool:
        """Where one sign has no weight, as in sft, a baseline only scales the loss; in a group it cancels."""
        return self.b_pos > 0 and self.b_neg > 0 and self.advantage is Advantage.reward

    @property
    def needs_mu(self) -> bool:
        """False where both weights are constants, as in sft and naive."""
        return (self.a_pos, self.a_neg) != (self.b_pos, self.b_neg)

    @property
    def by_sign(self) -> bool:
        """The sign of R = R0 − c chooses the limits: a wrong answer with R of 0 or more is never made rarer."""
        return self.b_neg > 0 and self.advantage is Advantage.reward

    def __post_init__(self) -> None:
        for sign in ("pos", "neg"):
            a, b = getattr(self, f"a_{sign}"), getattr(self, f"b_{sign}")
            base.check_range(f"a_{sign}", a, "at least 0 and finite", 0 <= a < math.inf)
            base.check_range(f"b_{sign}", b, f"at least a_{sign} = {a}", b >= a)

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        advantage = base.advantage_of(batch, self.advantage, self.name)
        delta = self._clipped_variable(batch).detach()
        low, high = self._log_limits(base.positive_side(advantage, batch), delta)
        weight = delta.clamp(low, high).exp()
        if self.ratio is Ratio.token:
            total = base.masked(_times(weight, advantage[:, None]) * batch.logp, batch).sum(1)
        else:
            total = _times(weight, advantage) * base.log_prob(batch)

        def mean(values: Tensor) -> Tensor:
            return base.share_of_tokens(values, batch) if values.ndim == 2 else values

        metrics = {
            "weight": mean(weight),
            "clipped_low": mean((delta < low - CLIP_TOLERANCE).to(weight.dtype)),
            "clipped_high": mean((delta > high + CLIP_TOLERANCE).to(weight.dtype)),
        }
        if self.ratio is Ratio.sequence:
            metrics["objective"] = _times(taper(delta, low, high), advantage)
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)

    def _clipped_variable(self, batch: Batch) -> Tensor:
        """The log of the ratio that is clipped: [B], or [B, T] for the token ratio."""
        if self.ratio is Ratio.token:
            return base.token_log_ratio(batch)
        delta = base.log_ratio(batch)
        return delta / base.lengths(batch) if self.ratio is Ratio.geometric else delta

    def _log_limits(self, positive: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """log a and log b of each sample, in a shape that broadcasts against `delta`."""

        def choose(pos: float, neg: float) -> Tensor:
            limit = delta.new_full(positive.shape, _log(neg)).masked_fill(positive, _log(pos))
            return limit if delta.ndim == 1 else limit[:, None]

        return choose(self.a_pos, self.a_neg), choose(self.b_pos, self.b_neg)


def taper(delta: Tensor, log_a: Tensor, log_b: Tensor) -> Tensor:
    """The taper ρ(e^Δ, a, b): the ratio itself inside [a, b], beyond a limit its tangent in log space.

    ρ(x, a, b) = a (1 + log(x/a)) for x < a, b (1 + log(x/b)) for x > b, else x; 0 · (1 + log ·) := 0.
    TOPR (arXiv 2503.14286), below Equation 11. Its gradient with respect to Δ is clip(e^Δ, a, b).
    """
    limit = delta.clamp(log_a, log_b)
    weight = limit.exp()
    return weight * (1 + (delta - limit).masked_fill(weight == 0, 0.0))


def _log(limit: float) -> float:
    return math.log(limit) if limit > 0 else -math.inf


def _times(weight: Tensor, factor: Tensor) -> Tensor:
    """The product with 0 · ∞ := 0: a zero reward or a zero weight takes a sample out, whatever its ratio."""
    return (weight * factor).masked_fill((weight == 0) | (factor == 0), 0.0)
