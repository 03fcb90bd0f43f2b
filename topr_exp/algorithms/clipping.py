"""Clipping by PPO's rule: PPO, GRPO, GSPO and GMPO, which differ in the ratio that it clips; REC and RED-Drop.

Δ = log π/μ of a completion, δ_t of a token, r_t = e^δ_t. A is R0 − c (PPO), or relative to all n completions to the
prompt.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from topr_exp.algorithms.base import (
    GroupLoss,
    Loss,
    Paper,
    PenalizedLoss,
    PositiveOrInf,
    PositiveOrNull,
    advantage_of,
    check_batch,
    check_complete_groups,
    clipped_objective,
    group_total,
    is_pushed_out,
    lengths,
    log_or_minus_inf,
    log_prob,
    log_ratio,
    mean_over_tokens,
    needed,
    signal,
    sum_over_tokens,
    token_log_ratio,
)
from topr_exp.schema import Range
from topr_exp.types import Batch, LossOutput, Tensor

AtMostOne = Annotated[float, Range("above 0 and at most 1", lambda value: 0 < value <= 1)]


@dataclass(frozen=True)
class Clipped(Loss):
    """Base of a loss that clips ratios by PPO's rule, to limits below and above 1."""

    eps_low: AtMostOne  # the ratio is clipped below 1 − this
    eps_high: PositiveOrInf  # the ratio is clipped above 1 + this

    def clip(self, delta: Tensor, advantage: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """PPO's objective of each completion, [B], and the share of its ratios e^Δ that is clipped, [B].

        delta: [B], a ratio for each completion, or [B, T], one for each token, whose objectives are summed.
        """
        is_by_token = delta.ndim == 2
        if is_by_token:
            advantage = advantage[:, None]
        objective, is_clipped = clipped_objective(delta, advantage, self.eps_low, self.eps_high)
        if is_by_token:
            return sum_over_tokens(objective, batch), mean_over_tokens(is_clipped, batch)
        return objective, is_clipped.to(objective.dtype)


@dataclass(frozen=True)
class PPO(Clipped, PenalizedLoss):
    """PPO: the reward times the ratio, without gradient once the ratio has left the trust interval for the better.

    objective = min(r R, clip(r, 1 − ε_low, 1 + ε_high) R) / T,   r = π(y|x)/μ(y|x),   R = R0 − c

    TOPR (arXiv 2503.14286), Equation 6; `ratio=token`: (1/T) Σ_t with r_t. ε_low = 1, ε_high = ∞: the gradient of `is`.

    Metrics: objective, clipped. Gradient: r R ∇logπ / T, zero where clipped.
    """

    ratio: Literal["sequence", "token"]  # the ratio that is clipped: of the completion (the paper) or of each token
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"ppo": Paper("PPO on completions", "2503.14286", "Equation 6")}
    lowers_negative_rewards_alone = True

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "reward", self.name)  # R
        delta = token_log_ratio(batch)
        if self.ratio == "sequence":
            delta = delta.sum(1)
        objective, clipped_share = self.clip(delta, advantage, batch)
        metrics = {"objective": objective.detach(), "clipped": clipped_share}
        return self.output(-objective, batch, metrics)


@dataclass(frozen=True)
class GRPO(GroupLoss, Clipped, PenalizedLoss):
    """GRPO: PPO's clipping with token ratios and the group's standard score as advantage.

    loss = − Σ_t min(r_t A, clip(r_t, 1 − ε_low, 1 + ε_high) A),   A = (r − r̄) / (std + 1e-4)

    Shao et al. (arXiv 2402.03300), whose KL term is `kl_coef=0.04`; std has n − 1. Dr. GRPO (arXiv 2503.20783) does not
    divide by std (`advantage=group`) or by |y| (`length_normalize=false`, as in the YAML). `off_policy_mask=0.5` leaves
    out completions with A < 0 whose mean of −δ_t is above 0.5 (DeepSeek-V3.2, arXiv 2512.02556).

    Metrics: advantage, clipped; with a mask also masked.
    """

    length_normalize: bool  # divide a completion's loss by its number of tokens
    advantage: Literal["group_std", "group"] = "group_std"  # group: not divided by the standard deviation (Dr. GRPO)
    off_policy_mask: PositiveOrNull = None  # drops completions with A < 0 and mean −log π/μ above it; DeepSeek-V3.2 0.5

    papers: ClassVar = {"grpo": Paper("GRPO", "2402.03300")}

    @property
    def retired_settings(self) -> dict[str, bool]:
        """Earlier releases' keys, for `schema.identity`."""
        return {"normalize_std": self.advantage == "group_std"}

    @property
    def drops_tokens(self) -> bool:
        return self.off_policy_mask is not None

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, self.advantage, self.name)
        objective, clipped_share = self.clip(token_log_ratio(batch), advantage, batch)
        metrics = {"advantage": advantage, "clipped": clipped_share}
        if self.off_policy_mask is not None:
            drift = -log_ratio(batch).detach() / lengths(batch)  # the mean −δ_t
            is_dropped = (advantage < 0) & (drift > self.off_policy_mask)
            objective = objective.masked_fill(is_dropped, 0.0)
            metrics["masked"] = is_dropped.to(objective.dtype)
        return self.output(-objective, batch, metrics)


@dataclass(frozen=True)
class GSPO(GroupLoss, Clipped):
    """GSPO: PPO's clipping of the ratio's geometric mean over the completion, far nearer to 1 than GRPO's.

    loss = − min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),   s = exp(Δ/T),   A = (r − r̄) / (std + 1e-4)

    Zheng et al. (arXiv 2507.18071).

    Metrics: advantage, clipped. Gradient: −s A ∇logπ / T, zero where clipped.
    """

    papers: ClassVar = {"gspo": Paper("GSPO", "2507.18071")}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group_std", self.name)
        log_mean_ratio = log_ratio(batch) / lengths(batch)  # log s
        objective, clipped_share = self.clip(log_mean_ratio, advantage, batch)
        metrics = {"advantage": advantage, "clipped": clipped_share}
        return self.output(-objective, batch, metrics)


@dataclass(frozen=True)
class GMPO(GroupLoss):
    """GMPO: the geometric mean of the token ratios, of which each is clipped by PPO's rule, in log space.

    loss = − A exp((1/T) Σ_t δ'_t),   δ' = min(δ, ε_high) where A > 0, max(δ, −ε_low) where A < 0,   A as in GSPO

    Zhao et al. (arXiv 2507.20673), Equation 4: the ratios' limits are e^−ε_low and e^ε_high.

    Metrics: advantage, clipped. Gradient: −(A/T) exp(mean δ') Σ_t ∇logπ_t over the tokens that are not clipped.
    """

    eps_low: PositiveOrInf  # a token's log-ratio is clipped below −this
    eps_high: PositiveOrInf  # a token's log-ratio is clipped above this

    papers: ClassVar = {"gmpo": Paper("GMPO", "2507.20673", "Equation 4")}

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group_std", self.name)
        delta = token_log_ratio(batch)
        is_clipped = is_pushed_out(delta, advantage[:, None], -self.eps_low, self.eps_high)
        limit = delta.detach().clamp(-self.eps_low, self.eps_high)
        clipped_delta = limit.where(is_clipped, delta)  # δ'
        mean_delta = clipped_delta.sum(1) / lengths(batch)
        mean_ratio = mean_delta.masked_fill(advantage == 0, 0.0).exp()  # else 0 · e^∞ would be NaN
        metrics = {"advantage": advantage, "clipped": mean_over_tokens(is_clipped, batch)}
        return LossOutput(-advantage * mean_ratio, metrics)


@dataclass(frozen=True)
class REC(GroupLoss):
    """REC: group-relative REINFORCE with one-sided clipping.

    loss = − Σ_t 1[(A ≥ 0 and r_t ≤ 1 + ε_high) or (A ≤ 0 and r_t ≥ 1 − ε_low)] A logπ(y_t|x, y_<t),   A = r − r̄

    arXiv 2509.24203, REC-OneSide without importance weight.

    Metrics: advantage, clipped.
    """

    eps_low: PositiveOrInf  # where A < 0, tokens with a ratio below 1 − this have no gradient
    eps_high: PositiveOrInf  # where A > 0, tokens with a ratio above 1 + this have no gradient
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"rec": Paper("REC (one-sided)", "2509.24203")}
    retired_settings: ClassVar = {"drop": False}  # earlier releases' keys, for `schema.identity`

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "group", self.name)
        delta = token_log_ratio(batch).detach()
        low = log_or_minus_inf(1 - self.eps_low)
        high = math.log1p(self.eps_high)
        is_clipped = is_pushed_out(delta, advantage[:, None], low, high)
        kept_logp = batch.logp.masked_fill(is_clipped, 0.0)
        objective = advantage * sum_over_tokens(kept_logp, batch)
        metrics = {"advantage": advantage, "clipped": mean_over_tokens(is_clipped, batch)}
        return self.output(-objective, batch, metrics)


@dataclass(frozen=True)
class REDDrop(GroupLoss):
    """RED-Drop: group-relative REINFORCE after surplus negatives of a group are dropped.

    loss = − A Σ_t logπ(y_t|x, y_<t),   A = r − r̄

    arXiv 2509.24203. Of a group's negatives only as many are kept as it has positives, those with the lowest sample
    index (exchangeable: a random choice, the same in any batch); r̄ is the mean of what is kept, dropped samples have
    loss 0 and stay in the count.

    Signals: advantage, kept. Metrics: advantage, clipped (0: nothing is), kept.
    """

    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"red_drop": Paper("RED-Drop", "2509.24203")}
    needs = frozenset({"groups", "group_rewards"})
    needs_mu = False
    signal_names = frozenset({"advantage", "kept"})
    drops_tokens = True
    retired_settings: ClassVar = {"_target_": "REC", "eps_low": ".inf", "eps_high": ".inf", "drop": True}

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        check_complete_groups(batch, self.name)
        kept_weight = self._is_kept(batch).to(batch.reward.dtype)
        kept_count = group_total(batch, kept_weight).clamp(min=1)
        kept_mean = group_total(batch, kept_weight * batch.reward) / kept_count
        advantage = kept_weight * (batch.reward - kept_mean)
        return {"advantage": advantage, "kept": kept_weight}

    def __call__(self, batch: Batch) -> LossOutput:
        check_batch(batch)
        advantage = signal(batch, "advantage")
        objective = advantage * log_prob(batch)
        metrics = {
            "advantage": advantage,
            "clipped": advantage.new_zeros(advantage.shape),
            "kept": signal(batch, "kept"),
        }
        return self.output(-objective, batch, metrics)

    def _is_kept(self, batch: Batch) -> Tensor:
        """[B] bool: all positives, and the first negatives of a group, as many as it has positives."""
        group = needed(batch, "group")
        sample = needed(batch, "sample")
        positive_count = group_total(batch, batch.positive.to(batch.reward.dtype))
        is_same_group = group[:, None] == group[None, :]
        is_earlier = sample[None, :] < sample[:, None]
        is_earlier_negative = is_same_group & is_earlier & ~batch.positive[None, :]  # [B, B], the others in columns
        return batch.positive | (is_earlier_negative.sum(1) < positive_count)
