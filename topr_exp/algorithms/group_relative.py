"""Policy gradients relative to a prompt's completions that clip nothing: OPMD, AsymRE, CISPO, VESPO, M2PO and SAPO.

Advantages are relative to r̄, the mean reward of all n completions to the prompt, before any subsampling. Δ = log π/μ of
the completion, δ_t of a token, r_t = e^δ_t. At π = μ each gradient is REINFORCE's with that advantage (SAPO's over T).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from topr_exp.algorithms.base import (
    Advantage,
    Finite,
    GroupLoss,
    NotNegative,
    Paper,
    PenalizedLoss,
    Positive,
    PositiveOrInf,
    advantage_of,
    by_sign,
    log_prob,
    log_ratio,
    mean_over_tokens,
    signal,
    sum_over_tokens,
    token_log_ratio,
)
from topr_exp.schema import Rule
from topr_exp.types import Batch, LossOutput, Tensor

ROUNDING = 1e-5  # of δ_t in float32
SAPO_HIGHEST = 20.0  # of δ_t: from there on the gate's gradient is 0 in any precision, and e^δ_t may overflow


@dataclass(frozen=True)
class OPMD(GroupLoss):
    """Online policy mirror descent of Kimi k1.5: REINFORCE with a squared penalty on the log-ratio.

    loss = − (r − r̄) logπ(y|x) + (τ/2) Δ²,   Δ = log π(y|x)/μ(y|x)

    Kimi Team (arXiv 2501.12599), Section 2.3.2; as a regularised loss in arXiv 2509.24203.

    Metrics: advantage. Gradient: −(r − r̄ − τΔ) ∇logπ.
    """

    tau: NotNegative  # weight of the penalty, which is on the whole completion
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"opmd": Paper("OPMD, Kimi k1.5", "2501.12599", "Section 2.3.2")}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group", self.name)
        penalty = self.tau / 2 * log_ratio(batch).square()
        loss = penalty - advantage * log_prob(batch)
        return self.output(loss, batch, {"advantage": advantage})


@dataclass(frozen=True)
class AsymRE(GroupLoss):
    """Asymmetric REINFORCE: the group mean, shifted, as baseline.

    loss = − (r − (r̄ + δV)) logπ(y|x)

    Arnal et al. (arXiv 2506.20520), also in arXiv 2509.24203. δV < 0 leans on positives; unlike c it is relative to r̄.

    Metrics: advantage r − r̄ − δV.
    """

    delta_v: Finite  # added to the group mean
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"asymre": Paper("AsymRE", "2506.20520")}
    needs_mu = False

    @property
    def needs_unequal_rewards(self) -> bool:
        return self.delta_v == 0

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group", self.name) - self.delta_v
        loss = -advantage * log_prob(batch)
        return self.output(loss, batch, {"advantage": advantage})


@dataclass(frozen=True)
class CISPO(GroupLoss, PenalizedLoss):
    """CISPO: REINFORCE with token ratios as weights, which a cap holds; every token keeps a gradient.

    loss = − A Σ_t stopgrad(min(r_t, cap)) logπ_t,   A = (r − r̄) / (std + 1e-4)

    MiniMax (arXiv 2506.13585), without a lower limit; ScaleRL (arXiv 2510.13786) for the cap, which is the largest
    ratio itself. Divided by the tokens of the batch (`optim.reduction=tokens`, which the YAML sets).

    Metrics: advantage, clipped. Gradient: −A Σ_t min(r_t, cap) ∇logπ_t.
    """

    cap: PositiveOrInf  # largest weight of a token
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"cispo": Paper("CISPO", "2506.13585")}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group_std", self.name)
        delta = token_log_ratio(batch).detach()
        log_cap = math.log(self.cap)
        weight = delta.clamp(max=log_cap).exp()
        objective = advantage * sum_over_tokens(weight * batch.logp, batch)
        metrics = {"advantage": advantage, "clipped": mean_over_tokens(delta > log_cap, batch)}
        return self.output(-objective, batch, metrics)


@dataclass(frozen=True)
class VESPO(GroupLoss, PenalizedLoss):
    """VESPO: REINFORCE with a smooth weight of the whole completion's ratio, 1 at ratio 1 and 0 far from it.

    loss = − stopgrad(φ) A logπ(y|x),   φ = r^c1 exp(c2 (1 − r)),   r = e^Δ,   A = r − r̄

    arXiv 2602.10693; the released recipe has `advantage=group_std`. c1 and c2 by the sign of A; A = 0 takes those of
    positives. Not divided by T, with which the authors' runs collapsed, but by the batch's tokens, as in TRL, which
    also clamps Δ to [−18.4, 20].

    Metrics: advantage, weight φ.
    """

    c1_pos: NotNegative  # power of the ratio in the weight of a positive
    c2_pos: Positive  # exponential decay of the weight of a positive
    c1_neg: NotNegative  # power of the ratio in the weight of a negative
    c2_neg: Positive  # exponential decay of the weight of a negative
    length_normalize: bool  # divide a completion's loss by its number of tokens
    advantage: Advantage = "group"  # group, group_std (the released recipe) or leave_one_out

    papers: ClassVar = {"vespo": Paper("VESPO", "2602.10693")}

    def check(self) -> Iterator[Rule]:
        yield from super().check()
        yield "advantage", self.advantage != "reward", "group, group_std or leave_one_out"

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, self.advantage, self.name)
        delta = log_ratio(batch).detach()
        is_positive = advantage >= 0
        c1 = by_sign(self.c1_pos, self.c1_neg, is_positive, batch)
        c2 = by_sign(self.c2_pos, self.c2_neg, is_positive, batch)
        log_weight = c1 * delta + c2 * (1 - delta.exp())
        weight = log_weight.exp()
        loss = -weight * advantage * log_prob(batch)
        metrics = {"advantage": advantage, "weight": weight}
        return self.output(loss, batch, metrics)


@dataclass(frozen=True)
class M2PO(GroupLoss, PenalizedLoss):
    """M2PO: token ratios without clipping, after the tokens that are furthest off are dropped from the whole batch.

    loss = − A Σ_t M_t r_t,   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2510.01161). M = 0 for the tokens of the global batch with the largest δ_t², as few as leave the
    others a mean of δ_t² below τ; equal ones go together. Divided by the tokens of the batch, dropped ones included.

    Signals: limit of δ_t², the same for all completions. Metrics: advantage, masked.
    Gradient: −A Σ_t M_t r_t ∇logπ_t.
    """

    tau: PositiveOrInf  # largest mean square of the kept tokens' log-ratios
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"m2po": Paper("M2PO", "2510.01161")}
    signal_names = frozenset({"limit"})
    drops_tokens = True

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        delta = token_log_ratio(batch).detach()
        squares = delta[batch.mask].square()
        limit = self._limit(squares.sort().values)
        return {"limit": limit.expand(len(batch.reward))}

    def _limit(self, squares: Tensor) -> Tensor:
        """The limit below which the smallest of `squares`, sorted, stay: as many as have a mean below τ."""
        # The mean of the first k is below τ where their sum is below k τ.
        running_limit = self.tau * squares.new_ones(len(squares)).cumsum(0)
        is_mean_below = squares.cumsum(0) < running_limit
        kept_count = int(is_mean_below.sum())  # the means of the smallest only grow
        if kept_count == len(squares):
            return squares.new_tensor(math.inf)
        smallest_dropped = squares[kept_count]
        # Completions to a prompt share tokens at their start, which their micro-batches may round differently.
        kept_squares = squares[squares.sqrt() < smallest_dropped.sqrt() - ROUNDING]
        largest_kept = kept_squares[-1] if len(kept_squares) else 0.0
        # Halfway, so that rounding in another batch doesn't move a token across.
        return (smallest_dropped + largest_kept) / 2

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group_std", self.name)
        delta = token_log_ratio(batch)
        limit = signal(batch, "limit")
        is_dropped = delta.detach().square() >= limit[:, None]
        kept_delta = delta.masked_fill(is_dropped, 0.0)  # so that no dropped ratio overflows
        kept_ratio = kept_delta.exp().masked_fill(is_dropped, 0.0)  # M r
        loss = -advantage * sum_over_tokens(kept_ratio, batch)
        metrics = {"advantage": advantage, "masked": mean_over_tokens(is_dropped, batch)}
        return self.output(loss, batch, metrics)


@dataclass(frozen=True)
class SAPO(GroupLoss, PenalizedLoss):
    """SAPO: a soft gate on token ratios in the place of PPO's clipping.

    loss = − (A/T) Σ_t (4/τ) σ(τ (r_t − 1)),   τ by the sign of A,   A = (r − r̄) / (std + 1e-4)

    arXiv 2511.20347. The gate's gradient is 1 at r_t = 1 and falls to both sides, the faster the larger τ.

    Metrics: advantage, weight (mean of r_t times the gate's slope). Gradient: −(A/T) Σ_t 4 σ (1 − σ) r_t ∇logπ_t.
    """

    tau_pos: Positive  # sharpness of the gate for advantages above 0
    tau_neg: Positive  # sharpness of the gate for advantages up to 0
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"sapo": Paper("SAPO", "2511.20347")}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group_std", self.name)
        tau = by_sign(self.tau_pos, self.tau_neg, advantage[:, None] > 0, batch)
        ratio = token_log_ratio(batch).clamp(max=SAPO_HIGHEST).exp()
        sigmoid = (tau * (ratio - 1)).sigmoid()
        gate = 4 / tau * sigmoid
        objective = advantage * sum_over_tokens(gate, batch)
        weight = 4 * sigmoid * (1 - sigmoid) * ratio  # the gate's slope times r
        metrics = {"advantage": advantage, "weight": mean_over_tokens(weight.detach(), batch)}
        return self.output(-objective, batch, metrics)
