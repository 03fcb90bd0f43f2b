"""Metrics of an update: statistics of the log-ratio by sign, and the loss's own metrics averaged by sign."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from topr_exp.runtime import distributed
from topr_exp.training.logprobs import TokenScores
from topr_exp.types import Batch, LossOutput, PairBatch

QUANTILES = (0.05, 0.5, 0.95)
OF_MU = ("log_ratio", "ess", "kl_mu", "spent_share", "weight", "clipped_", "objective")
SPENT = math.log(0.01)  # a negative whose taper min(r, 1) is below 0.01 no longer pushes


@dataclass
class MetricAccumulator:
    """Gathers micro-batches of one update and reduces them to a flat record of numbers."""

    delta: list[Tensor] = field(default_factory=list)
    positive: list[Tensor] = field(default_factory=list)
    ref_delta: list[Tensor] = field(default_factory=list)
    group: list[Tensor] = field(default_factory=list)
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    tokens: int = 0  # of completions
    prompt_tokens: int = 0  # each completion's prompt
    loss: float = 0.0
    entropy: float = 0.0

    def add(self, batch: Batch | PairBatch, out: LossOutput, scores: TokenScores) -> None:
        """Take in one micro-batch; nothing of its graph is kept."""
        sides = (batch.chosen, batch.rejected) if isinstance(batch, PairBatch) else (batch,)
        for side in sides:
            logp = side.logp.detach()
            self.delta.append((logp - side.mu_logp).where(side.mask, 0.0).sum(1))
            self.positive.append(side.positive)
            if side.group is not None:
                self.group.append(side.group)
            self.tokens += int(side.mask.sum())
            if side.ref_logp is not None:
                self.ref_delta.append((logp - side.ref_logp).where(side.mask, 0.0).sum(1))
        if scores.entropy is not None:
            self.entropy += float(scores.entropy.double().sum())
        self.loss += float(out.loss.detach().double().sum())
        for name, value in out.metrics.items():
            self.values.setdefault(name, []).append(value)

    def of_all_processes(self) -> "MetricAccumulator":
        """Gather metrics of all processes of the run, by rank."""
        if distributed.world_size() == 1:
            return self
        merged = MetricAccumulator()
        on_cpu = tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, vars(self))
        for other in distributed.all_gather(on_cpu):
            for name, parts in other.pop("values").items():
                merged.values.setdefault(name, []).extend(parts)
            for name, value in other.items():
                setattr(merged, name, getattr(merged, name) + value)
        return merged

    def record(self, divisor: int, age: NDArray[np.int64] | None = None, *, of_mu: bool = True) -> dict[str, float]:
        """The record of an update; the sum of the losses is divided by `divisor`.

        age: updates, by group. of_mu: with what is measured against μ.
        """
        delta, positive = torch.cat(self.delta).double(), torch.cat(self.positive)
        record = {"loss": self.loss / divisor, "positive_share": float(positive.double().mean())}
        record["ess"] = effective_sample_size(delta)
        if age is not None:
            bound = 2 ** np.floor(np.log2(np.maximum(age, 1))) * (age > 0)  # 0, 1, 2 to 3, 4 to 7, ...
            of_row = torch.from_numpy(bound)[torch.cat(self.group).cpu()].to(delta.device)
            record |= {f"ess_age{low:g}": effective_sample_size(delta[of_row == low]) for low in np.unique(bound)}
        if not positive.all():
            record["spent_share_neg"] = float((delta[~positive] < SPENT).double().mean())
        for sign, chosen in (("pos", positive), ("neg", ~positive)):
            if chosen.any():
                some = delta[chosen]
                record[f"log_ratio_{sign}"] = float(some.mean())
                for q, value in zip(QUANTILES, torch.quantile(some, some.new_tensor(QUANTILES)), strict=True):
                    record[f"log_ratio_q{int(100 * q):02d}_{sign}"] = float(value)
                record[f"ess_{sign}"] = effective_sample_size(some)
        # E_μ[r − 1 − Δ] ≥ 0 estimates KL(μ‖π) with less variance than −E_μ[Δ].
        record["entropy"] = self.entropy / self.tokens
        if self.ref_delta:
            record["kl_ref"] = float(torch.cat(self.ref_delta).double().mean())
        record["kl_mu"] = float((delta.exp() - 1 - delta).mean())
        for name, parts in self.values.items():
            value = torch.cat(parts).double()  # of responses, or of pairs, which have no sign
            halved = len(value) < len(positive)
            by_sign = (("", slice(None)),) if halved else (("_pos", positive), ("_neg", ~positive))
            record |= {f"{name}{sign}": float(value[chosen].mean()) for sign, chosen in by_sign if len(value[chosen])}
        return record if of_mu else {name: value for name, value in record.items() if not name.startswith(OF_MU)}


def effective_sample_size(delta: Tensor) -> float:
    """(Σr)² / (B Σr²) of the ratios r = e^Δ, [B] float64, in (0, 1], formed in log space."""
    return float((2 * delta.logsumexp(0) - (2 * delta).logsumexp(0)).exp() / len(delta))
