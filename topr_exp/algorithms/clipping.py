"""Clipping by PPO's rule: PPO, GRPO, GSPO and GMPO, which differ in the ratio that it clips, and the one-sided REC.

Δ = log π/μ of a response, δ_t of a token, r_t = e^δ_t. A is R0 − c (PPO), or relative to all n responses to the prompt.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from topr_exp.algorithms import base
from topr_exp.schema import Range
from topr_exp.types import Batch, LossOutput, Tensor


@dataclass(frozen=True)
class Clipped(base.Named):
    """Limits of a ratio below and above 1."""

    eps_low: Annotated[float, Range("above 0 and at most 1", lambda eps: 0 < eps <= 1)]
    eps_high: base.PositiveOrInf

    def clip(
        self, delta: Tensor, advantage: Tensor, batch: Batch, threshold: float | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """PPO's objective [B] of the ratios e^Δ, Δ [B] or by token [B, T], whose objectives are summed; its metrics.

        A response with A < 0 whose mean −δ_t is above `threshold` is left out (DeepSeek-V3.2, arXiv 2512.02556).
        """
        by_token = delta.ndim == 2
        weight = advantage[:, None] if by_token else advantage
        objective, clipped = base.clipped_objective(delta, weight, self.eps_low, self.eps_high)
        total = base.masked(objective, batch).sum(1) if by_token else objective
        metrics = {"clipped": base.share_of_tokens(clipped, batch) if by_token else clipped.to(total.dtype)}
        if threshold is not None:
            drift = -base.log_ratio(batch).detach() / base.lengths(batch)
            dropped = (advantage < 0) & (drift > threshold)
            total, metrics["masked"] = total.masked_fill(dropped, 0.0), dropped.to(total.dtype)
        return total, metrics


Ratio = Literal["sequence", "token"]  # the ratio that is clipped: of the sequence (the paper) or of each token


@dataclass(frozen=True)
class PPO(Clipped):
    """PPO: the reward times the ratio, without gradient once the ratio has left the trust interval for the better.

    objective = min(r R, clip(r, 1 − ε_low, 1 + ε_high) R) / T,   r = π(y|x)/μ(y|x),   R = R0 − c

    TOPR (arXiv 2503.14286), Equation 6; `ratio=token`: (1/T) Σ_t with r_t. ε_low = 1, ε_high = ∞: the gradient of `is`.

    Gradient: r R ∇logπ / T, zero where clipped.
    """

    ratio: Ratio
    length_normalize: bool

    needs: ClassVar[frozenset[str]] = frozenset()
    uses_baseline: ClassVar[bool] = True

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        delta = base.token_log_ratio(batch) if self.ratio == "token" else base.log_ratio(batch)
        total, metrics = self.clip(delta, batch.reward - batch.baseline, batch)
        loss = base.reduce_tokens(-total, batch, self.length_normalize)
        return LossOutput(loss, {"objective": total.detach(), **metrics})


@dataclass(frozen=True)
class GRPO(base.OfGroup, Clipped):
    """GRPO: PPO's clipping with token ratios and the group's standard score as advantage.

    loss = − Σ_t min(r_t A, clip(r_t, 1 − ε_low, 1 + ε_high) A),   A = (r − r̄) / (std + 1e-4)

    Shao et al. (arXiv 2402.03300), without its KL term; std has n − 1. Dr. GRPO (arXiv 2503.20783) does not divide by
    std (`normalize_std=false`) or by |y| (`length_normalize=false`, as in the YAML). `off_policy_mask=0.5` leaves out
    responses with A < 0 whose mean of −δ_t is above 0.5 (DeepSeek-V3.2, arXiv 2512.02556).

    Metrics: advantage, clipped; with a mask also masked.
    """

    normalize_std: bool
    length_normalize: bool
    off_policy_mask: base.PositiveOrNull = None

    def __call__(self, batch: Batch) -> LossOutput:
        kind: base.Advantage = "group_std" if self.normalize_std else "group"
        advantage = base.advantage_of(batch, kind, self.name)
        total, metrics = self.clip(base.token_log_ratio(batch), advantage, batch, self.off_policy_mask)
        loss = base.reduce_tokens(-total, batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage, **metrics})


@dataclass(frozen=True)
class GSPO(base.OfGroup, Clipped):
    """GSPO: PPO's clipping of the ratio's geometric mean over the response, far nearer to 1 than GRPO's.

    loss = − min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),   s = exp(Δ/T),   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2507.18071). `off_policy_mask` as in GRPO.

    Metrics: advantage, clipped; with a mask also masked. Gradient: −s A ∇logπ / T, zero where clipped.
    """

    off_policy_mask: base.PositiveOrNull = None

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group_std", self.name)
        delta = base.log_ratio(batch) / base.lengths(batch)
        total, metrics = self.clip(delta, advantage, batch, self.off_policy_mask)
        return LossOutput(-total, {"advantage": advantage, **metrics})


@dataclass(frozen=True)
class GMPO(base.OfGroup, Clipped):
    """GMPO: the geometric mean of the token ratios, of which each is clipped by PPO's rule, in log space.

    loss = − A exp((1/T) Σ_t δ'_t),   δ' = min(δ, ε_high) where A > 0, max(δ, −ε_low) where A < 0,   A as in GSPO

    Zhao et al. (arXiv 2507.20673), Equation 4: the ratios' limits are e^−ε_low and e^ε_high.

    Metrics: advantage, clipped. Gradient: −(A/T) exp(mean δ') Σ_t ∇logπ_t over the tokens that are not clipped.
    """

    eps_low: base.PositiveOrInf

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group_std", self.name)
        delta, sign = base.token_log_ratio(batch), advantage[:, None]
        clipped = ((sign > 0) & (delta > self.eps_high)) | ((sign < 0) & (delta < -self.eps_low))
        limited = delta.where(~clipped, delta.detach().clamp(-self.eps_low, self.eps_high))
        mean = limited.sum(1) / base.lengths(batch)
        loss = -advantage * mean.masked_fill(advantage == 0, 0.0).exp()
        return LossOutput(loss, {"advantage": advantage, "clipped": base.share_of_tokens(clipped, batch)})


@dataclass(frozen=True)
class REC(Clipped):
    """Group-relative REINFORCE with one-sided clipping (REC) or with surplus negatives dropped (RED-Drop).

    loss = − Σ_t 1[(A ≥ 0 and r_t ≤ 1 + ε_high) or (A ≤ 0 and r_t ≥ 1 − ε_low)] A logπ(y_t|x, y_<t),   A = r − r̄

    arXiv 2509.24203, REC-OneSide without importance weight. `drop=true` keeps only as many negatives of a group as it
    has positives, those with the lowest sample index (exchangeable: a random choice, the same in any batch); r̄ is the
    mean of what is kept, dropped samples have loss 0 and stay in the count. With infinite ε it is RED-Drop.

    Signals (`drop`): advantage. Metrics: advantage, clipped; for `drop` also kept.
    """

    eps_low: base.PositiveOrInf
    drop: bool
    length_normalize: bool

    uses_baseline: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"groups", "group_rewards"} if self.drop else {"group_rewards"})

    @property
    def signals(self) -> Callable[[Batch], dict[str, Tensor]] | None:
        return self._signals if self.drop else None

    def _signals(self, batch: Batch) -> dict[str, Tensor]:
        base.check_complete_groups(batch, self.name)
        keep = self._kept(batch).to(batch.reward.dtype)
        _, count = base.group_sums(batch, keep)
        _, total = base.group_sums(batch, keep * batch.reward)
        return {"advantage": keep * (batch.reward - total / count.clamp(min=1)), "kept": keep}

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        advantage = base.signal(batch, "advantage") if self.drop else base.advantage_of(batch, "group", self.name)
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
        group, sample = base.needed(batch, "group"), base.needed(batch, "sample")
        _, positives = base.group_sums(batch, batch.positive.to(batch.reward.dtype))
        same_group = group[:, None] == group[None, :]
        before = same_group & (sample[None, :] < sample[:, None]) & ~batch.positive[None, :]
        return batch.positive | (before.sum(1) < positives)
