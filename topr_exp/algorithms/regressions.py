"""Losses that fit the log-ratio: DPO to the order of a pair, OAPL and A*-PO to the advantage over the optimal value."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms.base import (
    Loss,
    Paper,
    Positive,
    ZeroOneLoss,
    check_batch,
    check_group_size,
    log_ratio,
    needed,
    ref_log_ratio,
)
from topr_exp.types import Batch, LossOutput, PairBatch

ROUNDING = 1e-3  # two scores of a pair by the same weights differ by less


@dataclass(frozen=True)
class DPO(Loss):
    """Direct preference optimisation on pairs.

    loss = − log σ(β [Δ(y_w) − Δ(y_l)]),   Δ = logπ(y|x) − logμ(y|x)

    TOPR (arXiv 2503.14286), Section 2.4; Rafailov et al. (arXiv 2305.18290), Equation 7, π_ref = μ. Not divided by T.

    Metrics: margin β[Δ(y_w) − Δ(y_l)], accuracy (1 above 0, ½ at 0 but for rounding), both Δ.
    Gradient: −β σ(−margin) ∇[Δ(y_w) − Δ(y_l)].
    """

    beta: Positive  # times the difference of the log-ratios

    papers: ClassVar = {"dpo": Paper("DPO", "2305.18290", "Equation 7")}
    needs = frozenset({"pairs"})
    uses_baseline = False

    def __call__(self, batch: PairBatch) -> LossOutput:
        from torch.nn.functional import logsigmoid

        check_batch(batch.chosen)
        check_batch(batch.rejected)
        assert len(batch.chosen.logp) == len(batch.rejected.logp), "chosen and rejected must have as many rows"
        chosen_log_ratio = log_ratio(batch.chosen)
        rejected_log_ratio = log_ratio(batch.rejected)
        gap = chosen_log_ratio - rejected_log_ratio
        margin = self.beta * gap
        is_tie = gap.detach().abs() <= ROUNDING  # as where the policy is the reference
        metrics = {
            "margin": margin.detach(),
            "accuracy": (margin.detach() > 0).to(margin.dtype).masked_fill(is_tie, 0.5),
            "chosen_log_ratio": chosen_log_ratio.detach(),
            "rejected_log_ratio": rejected_log_ratio.detach(),
        }
        return LossOutput(-logsigmoid(margin), metrics)


VALUE_TEMPERATURE = 0.5  # β_value, as in TRL's a2po


@dataclass(frozen=True)
class OAPL(ZeroOneLoss):
    """Least squares between β times the log-ratio and the advantage over the optimal value of the prompt.

    loss = (β log π(y)/π_ref(y) − (r − V*))²,   V* = β_value log mean_i exp(r_i / β_value)

    OAPL (arXiv 2602.19362), π_ref = μ (`anchor=mu`); A*-PO (arXiv 2505.20686), π_ref the reference (`anchor=ref`). The
    mean is over all n completions to the prompt, trained on or not; A*-PO's are from π_ref, here from μ. No 1/T.

    Metrics: advantage r − V*, residual. Gradient: 2β residual ∇logπ, at π = π_ref 2β times REINFORCE's with r − V*.
    """

    beta: Positive  # weight of the log-ratio; with 1e-3, as in TRL's a2po, steps are small: search optim.lr
    anchor: Literal["mu", "ref"]  # under π in the ratio: the policy that sampled, or model.reference (A*-PO)

    papers: ClassVar = {"oapl": Paper("OAPL", "2602.19362")}
    retired_settings: ClassVar = {"beta_value": VALUE_TEMPERATURE}  # earlier releases' keys, for `identity`

    @property
    def needs(self) -> frozenset[str]:
        if self.anchor == "mu":
            return frozenset({"group_rewards"})
        return frozenset({"group_rewards", "ref_logp"})

    @property
    def needs_mu(self) -> bool:
        return self.anchor == "mu"

    def __call__(self, batch: Batch) -> LossOutput:
        check_batch(batch)
        rewards = needed(batch, "group_rewards")
        size = needed(batch, "group_size")
        check_group_size(size, self.name)
        best = rewards.max(1).values
        scaled_rewards = (rewards - best[:, None]) / VALUE_TEMPERATURE
        total = scaled_rewards.exp().sum(1)
        value = best + VALUE_TEMPERATURE * (total / size).log()  # exactly r where all n rewards are r
        advantage = batch.reward - value
        if self.anchor == "mu":
            delta = log_ratio(batch)
        else:
            delta = ref_log_ratio(batch)
        residual = self.beta * delta - advantage
        return LossOutput(residual.square(), {"advantage": advantage, "residual": residual.detach()})
