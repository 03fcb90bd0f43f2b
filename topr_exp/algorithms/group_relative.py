"""Group-relative REINFORCE as off-policy algorithms: GRPO, OPMD, AsymRE and REC (arXiv 2509.24203).

Advantages are relative to r̄, the mean reward over all n responses to the prompt (before any subsampling); log-ratios
are against μ. None is divided by length by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from topr_exp.algorithms import base
from topr_exp.algorithms.base import Advantage, OfGroup
from topr_exp.types import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

    from topr_exp.types import Batch


@dataclass(frozen=True)
class GRPO(OfGroup):
    """GRPO: PPO's clipping with token ratios and the group's standard score as advantage.

    loss = − Σ_t min(r_t A, clip(r_t, 1 − ε_low, 1 + ε_high) A),   A = (r − r̄) / (std + 1e-4)

    Shao et al. (arXiv 2402.03300), without its KL term; std has n − 1 in the denominator. Dr. GRPO
    (arXiv 2503.20783) leaves out the division (`normalize_std=false`) and the paper's 1/|y| (`length_normalize=false`,
    which the YAML sets for every loss of this file). `off_policy_mask=0.5` leaves out responses with A < 0 whose mean
    of −δ_t is above 0.5 (DeepSeek-V3.2, arXiv 2512.02556).

    Metrics: advantage, clipped; with a mask also masked.
    """

    name: str
    eps_low: float
    eps_high: float
    normalize_std: bool
    length_normalize: bool
    off_policy_mask: float | None = None

    def check(self) -> None:
        base.check_clip_range(self.eps_low, self.eps_high)
        base.check_mask_threshold(self.off_policy_mask)

    def __call__(self, batch: Batch) -> LossOutput:
        kind = Advantage.group_std if self.normalize_std else Advantage.group
        advantage = base.advantage_of(batch, kind, self.name)
        objective, clipped = base.clipped_objective(
            base.token_log_ratio(batch), advantage[:, None], self.eps_low, self.eps_high
        )
        dropped = base.off_policy(advantage, batch, self.off_policy_mask)
        total = base.masked(objective, batch).sum(1).masked_fill(dropped, 0.0)
        metrics = {"advantage": advantage, "clipped": base.share_of_tokens(clipped, batch)}
        if self.off_policy_mask is not None:
            metrics["masked"] = dropped.to(total.dtype)
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)


@dataclass(frozen=True)
class OPMD(OfGroup):
    """Online policy mirror descent of Kimi k1.5: REINFORCE with a squared penalty on the log-ratio.

    loss = − (r − r̄) logπ(y|x) + (τ/2) Δ²,   Δ = log π(y|x)/μ(y|x)

    Kimi Team (arXiv 2501.12599), Section 2.3.2; as a regularised loss in arXiv 2509.24203.

    Metrics: advantage. Gradient: −(r − r̄ − τΔ) ∇logπ.
    """

    name: str
    tau: float
    length_normalize: bool

    def check(self) -> None:
        base.check_range("tau", self.tau, "at least 0 and finite", 0 <= self.tau < math.inf)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group, self.name)
        loss = self.tau / 2 * base.log_ratio(batch).square() - advantage * base.log_prob(batch)
        return LossOutput(base.reduce_tokens(loss, batch, self.length_normalize), {"advantage": advantage})


@dataclass(frozen=True)
class AsymRE(OfGroup):
    """Asymmetric REINFORCE: the group mean, shifted, as baseline.

    loss = − (r − (r̄ + δV)) logπ(y|x)

    Arnal et al. (arXiv 2506.20520); as a regularised loss in arXiv 2509.24203. δV < 0 leans on the positives; unlike
    the constant baseline c it is relative to each prompt's mean.
    """

    name: str
    delta_v: float
    length_normalize: bool

    needs_mu: ClassVar[bool] = False

    def check(self) -> None:
        base.check_range("delta_v", self.delta_v, "finite", math.isfinite(self.delta_v))

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group, self.name) - self.delta_v
        loss = base.reduce_tokens(-advantage * base.log_prob(batch), batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage})


@dataclass(frozen=True)
class REC(base.Typed):
    """Group-relative REINFORCE with one-sided clipping (REC) or with surplus negatives dropped (RED-Drop).

    loss = − Σ_t 1[(A ≥ 0 and r_t ≤ 1 + ε_high) or (A ≤ 0 and r_t ≥ 1 − ε_low)] A logπ(y_t|x, y_<t),   A = r − r̄

    arXiv 2509.24203, REC-OneSide without importance weight. `drop=true` keeps only as many negatives of a group as it
    has positives, those with the lowest sample index (responses to a prompt are exchangeable, so this is a random
    choice, and the same one whatever the order of the batch); r̄ is the mean of what is kept, dropped samples have
    loss 0 and stay in the count. With infinite ε and `drop=true` it is RED-Drop.

    Signals (`drop`): advantage. Metrics: advantage, clipped; for `drop` also kept.
    """

    name: str
    eps_low: float
    eps_high: float
    drop: bool
    length_normalize: bool

    uses_baseline: ClassVar[bool] = False

    def check(self) -> None:
        base.check_range("eps_low", self.eps_low, "above 0", self.eps_low > 0)
        base.check_range("eps_high", self.eps_high, "above 0", self.eps_high > 0)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"groups", "group_rewards"} if self.drop else {"group_rewards"})

    @property
    def signals(self) -> Callable[[Batch], dict[str, Tensor]] | None:
        return self._signals if self.drop else None

    def _signals(self, batch: Batch) -> dict[str, Tensor]:
        base.check_batch(batch, "group", "sample")
        base.check_complete_groups(batch, self.name)
        keep = self._kept(batch).to(batch.reward.dtype)
        _, count = base.group_sums(batch, keep)
        _, total = base.group_sums(batch, keep * batch.reward)
        return {"advantage": keep * (batch.reward - total / count.clamp(min=1)), "kept": keep}

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        advantage = (
            base.signal(batch, "advantage") if self.drop else base.advantage_of(batch, Advantage.group, self.name)
        )
        delta, sign = base.token_log_ratio(batch).detach(), advantage[:, None]
        low = math.log(1 - self.eps_low) if self.eps_low < 1 else -math.inf
        inside = ((sign >= 0) & (delta <= math.log1p(self.eps_high))) | ((sign <= 0) & (delta >= low))
        total = advantage * base.masked(batch.logp.where(inside, 0.0), batch).sum(1)
        metrics = {"advantage": advantage, "clipped": base.share_of_tokens(~inside, batch)}
        if self.drop:
            metrics["kept"] = base.signal(batch, "kept")
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)

    def _kept(self, batch: Batch) -> Tensor:
        """[B] bool: all positives, and the first negatives of a group, as many as it has positives."""
        assert batch.group is not None
        assert batch.sample is not None
        _, positives = base.group_sums(batch, batch.positive.to(batch.reward.dtype))
        same_group = batch.group[:, None] == batch.group[None, :]
        before = same_group & (batch.sample[None, :] < batch.sample[:, None]) & ~batch.positive[None, :]
        return batch.positive | (before.sum(1) < positives)
