"""Losses that fit the log-ratio: DPO to the order of a pair, OAPL and A*-PO to the advantage over the optimal value."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms import base
from topr_exp.types import Batch, LossOutput, PairBatch


@dataclass(frozen=True)
class DPO(base.Named):
    """Direct preference optimisation on pairs.

    loss = − log σ(β [Δ(y_w) − Δ(y_l)]),   Δ = logπ(y|x) − logμ(y|x)

    TOPR (arXiv 2503.14286), Section 2.4; Rafailov et al. (arXiv 2305.18290), Equation 7, π_ref = μ. Not divided by T.

    Metrics: margin β[Δ(y_w) − Δ(y_l)], accuracy (is it above 0), both Δ. Gradient: −β σ(−margin) ∇[Δ(y_w) − Δ(y_l)].
    """

    beta: base.Positive

    needs: ClassVar[frozenset[str]] = frozenset({"pairs"})
    uses_baseline: ClassVar[bool] = False

    def __call__(self, batch: PairBatch) -> LossOutput:
        from torch.nn.functional import logsigmoid

        base.check_batch(batch.chosen)
        base.check_batch(batch.rejected)
        assert len(batch.chosen.logp) == len(batch.rejected.logp), "chosen and rejected must have as many rows"
        chosen, rejected = base.log_ratio(batch.chosen), base.log_ratio(batch.rejected)
        margin = self.beta * (chosen - rejected)
        metrics = {
            "margin": margin.detach(),
            "accuracy": (margin.detach() > 0).to(margin.dtype),
            "chosen_log_ratio": chosen.detach(),
            "rejected_log_ratio": rejected.detach(),
        }
        return LossOutput(-logsigmoid(margin), metrics)


Anchor = Literal["mu", "ref"]  # the ratio's denominator: μ, which sampled (OAPL), or the reference model (A*-PO)


@dataclass(frozen=True)
class OAPL(base.ZeroOne):
    """Least squares between β times the log-ratio and the advantage over the optimal value of the prompt.

    loss = (β log π(y)/π_ref(y) − (r − V*))²,   V* = β_value log mean_i exp(r_i / β_value)

    OAPL (arXiv 2602.19362), π_ref = μ (`anchor=mu`); A*-PO (arXiv 2505.20686), π_ref the reference (`anchor=ref`). The
    mean is over all n responses to the prompt, trained on or not; A*-PO's are from π_ref, here from μ. No 1/T.

    Metrics: advantage r − V*, residual. Gradient: 2β residual ∇logπ, at π = π_ref 2β times REINFORCE's with r − V*.
    """

    beta: base.Positive
    beta_value: base.Positive
    anchor: Anchor

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"group_rewards"} if self.anchor == "mu" else {"group_rewards", "ref_logp"})

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        rewards, size = base.needed(batch, "group_rewards"), base.needed(batch, "group_size")
        base.check_group_size(size, self.name)
        best = rewards.max(1).values
        total = ((rewards - best[:, None]) / self.beta_value).exp().sum(1)
        value = best + self.beta_value * (total / size).log()  # exactly r where all n rewards are r
        advantage = batch.reward - value
        delta = base.log_ratio(batch) if self.anchor == "mu" else base.token_ref_log_ratio(batch).sum(1)
        residual = self.beta * delta - advantage
        return LossOutput(residual.square(), {"advantage": advantage, "residual": residual.detach()})
