"""Policy gradients that differ in how they hold an update near μ: GSPO, CISPO, VESPO, M2PO and SAPO.

Δ = log π/μ of the response, δ_t that of a token, r_t = e^δ_t; advantages are relative to all n responses to the prompt.
At π = μ each has the gradient of REINFORCE with its advantage (GSPO's and SAPO's divided by T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topr_exp.algorithms import base
from topr_exp.algorithms.base import Advantage, OfGroup
from topr_exp.types import LossOutput

if TYPE_CHECKING:
    from torch import Tensor

    from topr_exp.types import Batch

SAPO_HIGHEST = 20.0  # of δ_t: from there on the gate's gradient is 0 in any precision, and e^δ_t may overflow


@dataclass(frozen=True)
class GSPO(OfGroup):
    """GSPO: PPO's clipping of the ratio's geometric mean over the response, far nearer to 1 than GRPO's.

    loss = − min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),   s = exp(Δ/T),   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2507.18071). `off_policy_mask` as in GRPO.

    Metrics: advantage, clipped; with a mask also masked. Gradient: −s A ∇logπ / T, zero where clipped.
    """

    name: str
    eps_low: float
    eps_high: float
    off_policy_mask: float | None = None

    def __post_init__(self) -> None:
        base.check_clip_range(self.eps_low, self.eps_high)
        base.check_mask_threshold(self.off_policy_mask)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group_std, self.name)
        delta = base.log_ratio(batch) / base.lengths(batch)
        objective, clipped = base.clipped_objective(delta, advantage, self.eps_low, self.eps_high)
        dropped = base.off_policy(advantage, batch, self.off_policy_mask)
        metrics = {"advantage": advantage, "clipped": clipped.to(objective.dtype)}
        if self.off_policy_mask is not None:
            metrics["masked"] = dropped.to(objective.dtype)
        return LossOutput(-objective.masked_fill(dropped, 0.0), metrics)


@dataclass(frozen=True)
class CISPO(OfGroup):
    """CISPO: REINFORCE with token ratios as weights, which a cap holds; every token keeps a gradient.

    loss = − A Σ_t stopgrad(min(r_t, cap)) logπ_t,   A = (r − r̄) / (std + 1e-4)

    MiniMax (arXiv 2506.13585), without a lower limit; ScaleRL (arXiv 2510.13786) for the cap, which is the largest
    ratio itself. Divided by the tokens of the batch (`optim.reduction=tokens`, which the YAML sets).
    """

    name: str
    cap: float
    length_normalize: bool

    def __post_init__(self) -> None:
        base.check_range("cap", self.cap, "above 0", self.cap > 0)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group_std, self.name)
        delta, highest = base.token_log_ratio(batch).detach(), math.log(self.cap)
        total = advantage * base.masked(delta.clamp(max=highest).exp() * batch.logp, batch).sum(1)
        metrics = {"advantage": advantage, "clipped": base.share_of_tokens(delta > highest, batch)}
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)


@dataclass(frozen=True)
class VESPO(OfGroup):
    """VESPO: REINFORCE with a smooth weight of the whole response's ratio, 1 at ratio 1 and 0 far from it.

    loss = − stopgrad(φ) A logπ(y|x),   φ = r^c1 exp(c2 (1 − r)),   r = e^Δ,   A = r − r̄

    arXiv 2602.10693; c1 and c2 by the sign of A, those of positives also at A = 0. Not divided by T (the authors' runs
    with that collapsed) but by the tokens of the batch, as in TRL, which also clamps Δ to [−18.4, 20].

    Metrics: advantage, weight φ.
    """

    name: str
    c1_pos: float
    c2_pos: float
    c1_neg: float
    c2_neg: float
    length_normalize: bool

    def __post_init__(self) -> None:
        for sign in ("pos", "neg"):
            c1, c2 = getattr(self, f"c1_{sign}"), getattr(self, f"c2_{sign}")
            base.check_range(f"c1_{sign}", c1, "at least 0 and finite", 0 <= c1 < math.inf)
            base.check_range(f"c2_{sign}", c2, "above 0 and finite", 0 < c2 < math.inf)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group, self.name)
        delta, positive = base.log_ratio(batch).detach(), advantage >= 0
        c1 = delta.new_full(delta.shape, self.c1_neg).masked_fill(positive, self.c1_pos)
        c2 = delta.new_full(delta.shape, self.c2_neg).masked_fill(positive, self.c2_pos)
        weight = (c1 * delta + c2 * (1 - delta.exp())).exp()
        loss = -weight * advantage * base.log_prob(batch)
        metrics = {"advantage": advantage, "weight": weight}
        return LossOutput(base.reduce_tokens(loss, batch, self.length_normalize), metrics)


@dataclass(frozen=True)
class M2PO(OfGroup):
    """M2PO: token ratios without clipping, after the tokens that are furthest off are dropped from the whole batch.

    loss = − A Σ_t M_t r_t,   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2510.01161). M = 0 for the tokens of the global batch with the largest δ_t², as few as leave the
    rest a mean of δ_t² below τ; equal ones go together. Divided by the tokens of the batch, dropped ones included.

    Signals: limit, the same for all: tokens with δ_t² beyond it are dropped. Metrics: advantage, masked. Gradient: −A
    Σ_t M_t r_t ∇logπ_t.
    """

    name: str
    tau: float
    length_normalize: bool

    def __post_init__(self) -> None:
        base.check_range("tau", self.tau, "above 0", self.tau > 0)

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        base.check_batch(batch)
        square = base.token_log_ratio(batch).detach().square()[batch.mask].sort().values
        below = square.cumsum(0) < self.tau * square.new_ones(len(square)).cumsum(0)
        kept, limit = int(below.sum()), square.new_tensor(math.inf)  # the means of the smallest only grow
        if kept < len(square):  # halfway, so that rounding in another batch doesn't move a token across
            limit = (square[kept] + (square[kept - 1] if kept else 0.0)) / 2
        return {"limit": limit.expand(len(batch.reward))}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group_std, self.name)
        delta = base.token_log_ratio(batch)
        dropped = delta.detach().square() >= base.signal(batch, "limit")[:, None]
        ratio = delta.masked_fill(dropped, 0.0).exp().masked_fill(dropped, 0.0)
        loss = base.reduce_tokens(-advantage * base.masked(ratio, batch).sum(1), batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage, "masked": base.share_of_tokens(dropped, batch)})


@dataclass(frozen=True)
class SAPO(OfGroup):
    """SAPO: a soft gate on token ratios in the place of PPO's clipping.

    loss = − (A/T) Σ_t (4/τ) σ(τ (r_t − 1)),   τ by the sign of A,   A = (r − r̄) / (std + 1e-4)

    arXiv 2511.20347. The gate's gradient is 1 at r_t = 1 and falls to both sides, the faster the larger τ.

    Metrics: advantage, weight (the mean over tokens of r_t times the gate's slope). Gradient: −(A/T) Σ_t 4 σ (1 − σ)
    r_t ∇logπ_t.
    """

    name: str
    tau_pos: float
    tau_neg: float
    length_normalize: bool

    def __post_init__(self) -> None:
        for sign in ("pos", "neg"):
            tau = getattr(self, f"tau_{sign}")
            base.check_range(f"tau_{sign}", tau, "above 0 and finite", 0 < tau < math.inf)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, Advantage.group_std, self.name)
        tau = advantage.new_full(advantage.shape, self.tau_neg).masked_fill(advantage > 0, self.tau_pos)[:, None]
        ratio = base.token_log_ratio(batch).clamp(max=SAPO_HIGHEST).exp()
        gate = (tau * (ratio - 1)).sigmoid()
        total = advantage * base.masked(4 / tau * gate, batch).sum(1)
        slope = (4 * gate * (1 - gate) * ratio).detach()
        metrics = {"advantage": advantage, "weight": base.share_of_tokens(slope, batch)}
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)
