"""Policy gradients relative to a prompt's responses that clip nothing: OPMD, AsymRE, CISPO, VESPO, M2PO and SAPO.

Advantages are relative to r̄, the mean reward of all n responses to the prompt, before any subsampling. Δ = log π/μ of
the response, δ_t of a token, r_t = e^δ_t. At π = μ each gradient is REINFORCE's with that advantage (SAPO's over T).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms import base
from topr_exp.types import Batch, LossOutput, Tensor

SAPO_HIGHEST = 20.0  # of δ_t: from there on the gate's gradient is 0 in any precision, and e^δ_t may overflow


@dataclass(frozen=True)
class OPMD(base.OfGroup):
    """Online policy mirror descent of Kimi k1.5: REINFORCE with a squared penalty on the log-ratio.

    loss = − (r − r̄) logπ(y|x) + (τ/2) Δ²,   Δ = log π(y|x)/μ(y|x)

    Kimi Team (arXiv 2501.12599), Section 2.3.2; as a regularised loss in arXiv 2509.24203.

    Metrics: advantage. Gradient: −(r − r̄ − τΔ) ∇logπ.
    """

    tau: base.NotNegative
    length_normalize: bool

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group", self.name)
        loss = self.tau / 2 * base.log_ratio(batch).square() - advantage * base.log_prob(batch)
        return LossOutput(base.reduce_tokens(loss, batch, self.length_normalize), {"advantage": advantage})


@dataclass(frozen=True)
class AsymRE(base.OfGroup):
    """Asymmetric REINFORCE: the group mean, shifted, as baseline.

    loss = − (r − (r̄ + δV)) logπ(y|x)

    Arnal et al. (arXiv 2506.20520), also in arXiv 2509.24203. δV < 0 leans on positives; unlike c it is relative to r̄.
    """

    delta_v: base.Finite
    length_normalize: bool

    needs_mu: ClassVar[bool] = False

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group", self.name) - self.delta_v
        loss = base.reduce_tokens(-advantage * base.log_prob(batch), batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage})


@dataclass(frozen=True)
class CISPO(base.OfGroup):
    """CISPO: REINFORCE with token ratios as weights, which a cap holds; every token keeps a gradient.

    loss = − A Σ_t stopgrad(min(r_t, cap)) logπ_t,   A = (r − r̄) / (std + 1e-4)

    MiniMax (arXiv 2506.13585), without a lower limit; ScaleRL (arXiv 2510.13786) for the cap, which is the largest
    ratio itself. Divided by the tokens of the batch (`optim.reduction=tokens`, which the YAML sets).
    """

    cap: base.PositiveOrInf
    length_normalize: bool

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group_std", self.name)
        delta, highest = base.token_log_ratio(batch).detach(), math.log(self.cap)
        total = advantage * base.masked(delta.clamp(max=highest).exp() * batch.logp, batch).sum(1)
        metrics = {"advantage": advantage, "clipped": base.share_of_tokens(delta > highest, batch)}
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)


@dataclass(frozen=True)
class VESPO(base.OfGroup):
    """VESPO: REINFORCE with a smooth weight of the whole response's ratio, 1 at ratio 1 and 0 far from it.

    loss = − stopgrad(φ) A logπ(y|x),   φ = r^c1 exp(c2 (1 − r)),   r = e^Δ,   A = r − r̄

    arXiv 2602.10693; the released recipe has `advantage=group_std`. c1 and c2 by the sign of A, positives' also at 0.
    Divided by the batch's tokens as in TRL, which also clamps Δ to [−18.4, 20], not by T: the authors' runs collapsed.

    Metrics: advantage, weight φ.
    """

    c1_pos: base.NotNegative
    c2_pos: base.Positive
    c1_neg: base.NotNegative
    c2_neg: base.Positive
    length_normalize: bool
    advantage: base.Advantage = "group"

    def check(self) -> None:
        kind, of_group = self.advantage, "group, group_std or leave_one_out"
        base.check_range("advantage", kind, of_group, kind != "reward")

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, self.advantage, self.name)
        delta, positive = base.log_ratio(batch).detach(), advantage >= 0
        c1 = delta.new_full(delta.shape, self.c1_neg).masked_fill(positive, self.c1_pos)
        c2 = delta.new_full(delta.shape, self.c2_neg).masked_fill(positive, self.c2_pos)
        weight = (c1 * delta + c2 * (1 - delta.exp())).exp()
        loss = -weight * advantage * base.log_prob(batch)
        metrics = {"advantage": advantage, "weight": weight}
        return LossOutput(base.reduce_tokens(loss, batch, self.length_normalize), metrics)


Form = Literal["paper", "released"]  # a paper's algorithm, or that of its authors' released code, where they differ


@dataclass(frozen=True)
class M2PO(base.OfGroup):
    """M2PO: token ratios without clipping, after the tokens that are furthest off are dropped from the whole batch.

    loss = − A Σ_t M_t r_t,   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2510.01161). M = 0 for the tokens of the global batch with the largest δ_t², as few as leave the
    rest a mean of δ_t² below τ; equal ones go together. Divided by the tokens of the batch, dropped ones included.

    `form=released` (Infini-AI-Lab/M2PO, 2025-10) is PPO's rule for token ratios with limits e^±l, at least [0.7, 1.5]:
    l is the largest |δ| at which capping the harmful tokens (A δ > 0) leaves them a mean of δ² below τ.

    Signals: limit of δ_t² (or l²), for all. Metrics: advantage, masked or clipped. Gradient: −A Σ_t M_t r_t ∇logπ_t.
    """

    tau: base.PositiveOrInf
    length_normalize: bool
    form: Form = "paper"

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        delta = base.token_log_ratio(batch).detach()
        find, chosen = self._largest_kept, batch.mask
        if self.form == "released":
            harmful = delta * base.advantage_of(batch, "group_std", self.name)[:, None] > 0
            find, chosen = self._largest_cap, batch.mask & harmful
        return {"limit": find(delta.square()[chosen].sort().values).expand(len(batch.reward))}

    def _largest_kept(self, square: Tensor) -> Tensor:
        """The limit that the smallest of `square`, sorted, stay below: as many as have a mean below τ."""
        below = square.cumsum(0) < self.tau * square.new_ones(len(square)).cumsum(0)
        kept = int(below.sum())  # the means of the smallest only grow
        if kept == len(square):
            return square.new_tensor(math.inf)
        # Halfway, so that rounding in another batch doesn't move a token across.
        return (square[kept] + (square[kept - 1] if kept else 0.0)) / 2

    def _largest_cap(self, square: Tensor) -> Tensor:
        """The largest of `square`, sorted, at which a cap on all gives them a mean below τ; 0: none, ∞: no need."""
        if len(square) == 0 or float(square.mean()) <= self.tau:
            return square.new_tensor(math.inf)
        later = len(square) - square.new_ones(len(square)).cumsum(0)
        capped = square.cumsum(0) + later * square
        found = int((capped < self.tau * len(square)).sum())
        return square[found - 1] if found else square.new_tensor(0.0)

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group_std", self.name)
        delta, limit = base.token_log_ratio(batch), base.signal(batch, "limit")
        if self.form == "released":
            cap = limit[:1].sqrt()
            eps_low, eps_high = max(0.3, float(-(-cap).expm1())), max(0.5, float(cap.expm1()))
            total, clipped = base.clipped_objective(delta, advantage[:, None], eps_low, eps_high)
            loss, metrics = -base.masked(total, batch).sum(1), {"clipped": base.share_of_tokens(clipped, batch)}
        else:
            dropped = delta.detach().square() >= limit[:, None]
            ratio = delta.masked_fill(dropped, 0.0).exp().masked_fill(dropped, 0.0)
            loss = -advantage * base.masked(ratio, batch).sum(1)
            metrics = {"masked": base.share_of_tokens(dropped, batch)}
        return LossOutput(base.reduce_tokens(loss, batch, self.length_normalize), {"advantage": advantage, **metrics})


@dataclass(frozen=True)
class SAPO(base.OfGroup):
    """SAPO: a soft gate on token ratios in the place of PPO's clipping.

    loss = − (A/T) Σ_t (4/τ) σ(τ (r_t − 1)),   τ by the sign of A,   A = (r − r̄) / (std + 1e-4)

    arXiv 2511.20347. The gate's gradient is 1 at r_t = 1 and falls to both sides, the faster the larger τ.

    Metrics: advantage, weight (mean of r_t times the gate's slope). Gradient: −(A/T) Σ_t 4 σ (1 − σ) r_t ∇logπ_t.
    """

    tau_pos: base.Positive
    tau_neg: base.Positive
    length_normalize: bool

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "group_std", self.name)
        tau = advantage.new_full(advantage.shape, self.tau_neg).masked_fill(advantage > 0, self.tau_pos)[:, None]
        ratio = base.token_log_ratio(batch).clamp(max=SAPO_HIGHEST).exp()
        gate = (tau * (ratio - 1)).sigmoid()
        total = advantage * base.masked(4 / tau * gate, batch).sum(1)
        slope = (4 * gate * (1 - gate) * ratio).detach()
        metrics = {"advantage": advantage, "weight": base.share_of_tokens(slope, batch)}
        return LossOutput(base.reduce_tokens(-total, batch, self.length_normalize), metrics)
