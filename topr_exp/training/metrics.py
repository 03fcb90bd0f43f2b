"""Metrics of an update: statistics of the log-ratio and means of the loss's own metrics, by verdict."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from topr_exp.runtime import distributed
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import TokenScores
from topr_exp.types import Batch, LossOutput, PairBatch

QUANTILES = (0.05, 0.5, 0.95)
METRICS_OF_MU = ("log_ratio", "ess", "kl_mu", "spent_share", "weight", "clipped_", "objective")  # prefixes of names
SPENT = math.log(0.01)  # a negative whose taper min(r, 1) is below 0.01 no longer pushes


def zero() -> Tensor:
    """Return a sum of nothing; a sum with it lies on the device of what is added."""
    return torch.zeros((), dtype=torch.float64)


@dataclass
class MetricAccumulator:
    """Gathers micro-batches of one update and reduces them to a flat record of numbers."""

    # One tensor [B] a micro-batch, or a side of it.
    delta: list[Tensor] = field(default_factory=list)  # Δ = log π/μ of completions
    positive: list[Tensor] = field(default_factory=list)  # bool
    ref_delta: list[Tensor] = field(default_factory=list)  # log π/π_ref of completions
    group: list[Tensor] = field(default_factory=list)  # index of each completion's problem
    values: dict[str, list[Tensor]] = field(default_factory=dict)  # the loss's metrics
    tokens: int = 0  # of completions
    prompt_tokens: int = 0  # each completion's prompt
    loss: Tensor = field(default_factory=zero)
    entropy: Tensor = field(default_factory=zero)

    def add(self, batch: Batch | PairBatch, output: LossOutput, scores: TokenScores, *, inputs: Inputs) -> None:
        """Take in one micro-batch without its graph; reads no number of a GPU, which would wait for it."""
        self.tokens += inputs.token_count - inputs.prompt_token_count
        self.prompt_tokens += inputs.prompt_token_count
        if isinstance(batch, PairBatch):
            self._add_side(batch.chosen)
            self._add_side(batch.rejected)
        else:
            self._add_side(batch)
        if scores.entropy is not None:
            self.entropy = self.entropy + scores.entropy.double().sum()
        self.loss = self.loss + output.loss.detach().double().sum()
        for name, value in output.metrics.items():
            self.values.setdefault(name, []).append(value)

    def _add_side(self, side: Batch) -> None:
        logp = side.logp.detach()
        self.delta.append(sum_over_tokens(logp - side.mu_logp, side))
        self.positive.append(side.positive)
        if side.group is not None:
            self.group.append(side.group)
        if side.ref_logp is not None:
            self.ref_delta.append(sum_over_tokens(logp - side.ref_logp, side))

    def of_all_processes(self) -> "MetricAccumulator":
        """Gather metrics of all processes of the run, by rank, in main memory."""
        on_cpu = tree_map_only(Tensor, Tensor.cpu, vars(self))
        merged = MetricAccumulator()
        for metrics in distributed.all_gather(on_cpu):
            merged.extend(MetricAccumulator(**metrics))
        return merged

    def extend(self, metrics: "MetricAccumulator") -> None:
        """Take in the metrics of another process."""
        self.delta += metrics.delta
        self.positive += metrics.positive
        self.ref_delta += metrics.ref_delta
        self.group += metrics.group
        self.tokens += metrics.tokens
        self.prompt_tokens += metrics.prompt_tokens
        self.loss = self.loss + metrics.loss
        self.entropy = self.entropy + metrics.entropy
        for name, values in metrics.values.items():
            self.values.setdefault(name, []).extend(values)

    def record(self, divisor: int, ages: NDArray[np.int64] | None = None, *, has_mu: bool = True) -> dict[str, float]:
        """Make the record of an update; the sum of the losses is divided by `divisor`.

        ages: in updates, by group. has_mu: False leaves out the metrics that compare with μ.
        """
        delta = torch.cat(self.delta).double()
        positive = torch.cat(self.positive)
        record = {
            "loss": float(self.loss) / divisor,
            "positive_share": float(positive.double().mean()),
            "ess": effective_sample_size(delta),
        }
        if ages is not None:
            record |= self._sample_size_by_age(delta, ages)
        if not positive.all():
            is_spent = delta[~positive] < SPENT
            record["spent_share_neg"] = float(is_spent.double().mean())
        for suffix, has_verdict in by_verdict(positive):
            if has_verdict.any():
                record |= log_ratio_metrics(delta[has_verdict], suffix)
        record["entropy"] = float(self.entropy) / self.tokens
        if self.ref_delta:
            ref_delta = torch.cat(self.ref_delta).double()
            record["kl_ref"] = float(ref_delta.mean())
        # E_μ[r − 1 − Δ] ≥ 0 estimates KL(μ‖π) with less variance than −E_μ[Δ].
        kl_terms = delta.exp() - 1 - delta
        record["kl_mu"] = float(kl_terms.mean())
        for name, values in self.values.items():
            record |= means_by_verdict(name, torch.cat(values).double(), positive)
        if not has_mu:
            record = {name: value for name, value in record.items() if not name.startswith(METRICS_OF_MU)}
        return record

    def _sample_size_by_age(self, delta: Tensor, ages: NDArray[np.int64]) -> dict[str, float]:
        """Compute the effective sample size of completions 0, 1, 2 to 3, 4 to 7, ... updates old; ages: by group.

        A range is named by its first age: `ess_age4`.
        """
        exponents = np.floor(np.log2(np.maximum(ages, 1)))
        range_starts = np.where(ages > 0, 2**exponents, 0)  # by group
        range_start_of_completion = torch.from_numpy(range_starts)[torch.cat(self.group)]
        record = {}
        for range_start in np.unique(range_starts):
            is_in_range = range_start_of_completion == range_start
            record[f"ess_age{range_start:g}"] = effective_sample_size(delta[is_in_range])
        return record


def sum_over_tokens(values: Tensor, batch: Batch) -> Tensor:
    """Sum `values` [B, T] over each completion's tokens, [B]."""
    return values.where(batch.mask, 0.0).sum(1)


def by_verdict(positive: Tensor) -> list[tuple[str, Tensor]]:
    """Pair the ends of metrics' names with masks [B]: pos of the correct completions, neg of the others."""
    return [("pos", positive), ("neg", ~positive)]


def log_ratio_metrics(delta: Tensor, suffix: str) -> dict[str, float]:
    """Compute mean, quantiles and effective sample size of the log-ratios [B] of one verdict."""
    record = {f"log_ratio_{suffix}": float(delta.mean())}
    quantiles = torch.quantile(delta, delta.new_tensor(QUANTILES))
    for share, quantile in zip(QUANTILES, quantiles, strict=True):
        percent = int(100 * share)
        record[f"log_ratio_q{percent:02d}_{suffix}"] = float(quantile)
    record[f"ess_{suffix}"] = effective_sample_size(delta)
    return record


def means_by_verdict(name: str, values: Tensor, positive: Tensor) -> dict[str, float]:
    """Average a metric over the correct completions and over the others; of pairs, which have both, over all."""
    is_of_pairs = len(values) < len(positive)
    if is_of_pairs:
        return {name: float(values.mean())}
    record = {}
    for suffix, has_verdict in by_verdict(positive):
        if has_verdict.any():
            record[f"{name}_{suffix}"] = float(values[has_verdict].mean())
    return record


def effective_sample_size(delta: Tensor) -> float:
    """Compute (Σr)² / (B Σr²), in (0, 1], of the ratios r = e^Δ, in log space; delta: [B] float64."""
    log_square_of_sum = 2 * delta.logsumexp(0)
    log_sum_of_squares = (2 * delta).logsumexp(0)
    ratio = (log_square_of_sum - log_sum_of_squares).exp()
    return float(ratio / len(delta))
