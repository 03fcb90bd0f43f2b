"""PPO's clipped objective on offline responses (TOPR, Section 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from topr_exp.algorithms import base
from topr_exp.types import LossOutput

if TYPE_CHECKING:
    from topr_exp.types import Batch


class Ratio(Enum):
    """The ratio that is clipped: of the sequence (the paper) or of each token."""

    sequence = "sequence"
    token = "token"


@dataclass(frozen=True)
class PPO(base.Typed):
    """PPO: the reward times the ratio, without gradient once the ratio has left the trust interval for the better.

    objective = min(r R, clip(r, 1 − ε_low, 1 + ε_high) R) / T,   r = π(y|x)/μ(y|x),   R = R0 − c

    TOPR (arXiv 2503.14286), Equation 6; `ratio=token` is (1/T) Σ_t of the same with r_t. With ε_low = 1 and
    ε_high = ∞ nothing is clipped and the gradient is that of `is`.

    Gradient: r R ∇logπ / T, zero where clipped.
    """

    name: str
    eps_low: float
    eps_high: float
    ratio: Ratio
    length_normalize: bool

    needs: ClassVar[frozenset[str]] = frozenset()
    uses_baseline: ClassVar[bool] = True

    def check(self) -> None:
        base.check_clip_range(self.eps_low, self.eps_high)

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        reward = batch.reward - batch.baseline
        if self.ratio is Ratio.token:
            objective, clipped = base.clipped_objective(
                base.token_log_ratio(batch), reward[:, None], self.eps_low, self.eps_high
            )
            total = base.masked(objective, batch).sum(1)
            share = base.share_of_tokens(clipped, batch)
        else:
            total, clipped = base.clipped_objective(base.log_ratio(batch), reward, self.eps_low, self.eps_high)
            share = clipped.to(total.dtype)
        loss = base.reduce_tokens(-total, batch, self.length_normalize)
        return LossOutput(loss, {"objective": total.detach(), "clipped": share})
