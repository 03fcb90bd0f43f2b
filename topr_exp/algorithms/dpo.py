"""DPO: the logistic loss of a correct against an incorrect response to one prompt (TOPR, Section 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from topr_exp.algorithms import base
from topr_exp.types import LossOutput

if TYPE_CHECKING:
    from topr_exp.types import PairBatch


@dataclass(frozen=True)
class DPO(base.Typed):
    """Direct preference optimisation on pairs.

    loss = − log σ(β [Δ(y_w) − Δ(y_l)]),   Δ = logπ(y|x) − logμ(y|x)

    TOPR (arXiv 2503.14286), Section 2.4; Rafailov et al. (arXiv 2305.18290), Equation 7, with μ as the reference. Not
    divided by length.

    Metrics: the margin β[Δ(y_w) − Δ(y_l)], whether it is positive, both log-ratios. Gradient: −β σ(−margin) [∇logπ(y_w)
    − ∇logπ(y_l)].
    """

    name: str
    beta: float

    needs: ClassVar[frozenset[str]] = frozenset({"pairs"})
    uses_baseline: ClassVar[bool] = False

    def check(self) -> None:
        base.check_range("beta", self.beta, "above 0 and finite", 0 < self.beta < float("inf"))

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
