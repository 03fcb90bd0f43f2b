"""What is recorded of an update, by hand."""

import math

import pytest
import torch

from topr_exp.training.logprobs import TokenScores
from topr_exp.training.metrics import MetricAccumulator
from topr_exp.types import Batch, LossOutput


def test_effective_sample_size_and_spent_negatives() -> None:
    """Ratios 2, 1, 0.009, 0.011, 0.001; the last three and the second are negatives."""
    ratio = torch.tensor([2.0, 1.0, 0.009, 0.011, 0.001], dtype=torch.float64)
    logp = torch.full((5, 1), -1.0, dtype=torch.float64)
    positive = torch.arange(5) == 0
    batch = Batch(logp, logp - ratio.log()[:, None], torch.ones(5, 1, dtype=torch.bool), torch.ones(5), positive)
    gathered = MetricAccumulator()
    for rows in (slice(0, 2), slice(2, 5)):
        part = Batch(batch.logp[rows], batch.mu_logp[rows], batch.mask[rows], batch.reward[rows], positive[rows])
        gathered.add(part, LossOutput(torch.ones(len(part.reward))), TokenScores(part.logp, None, None))
    record = gathered.record(10)
    assert record["loss"] == pytest.approx(0.5)
    assert record["ess"] == pytest.approx(float(ratio.sum() ** 2 / (5 * ratio.square().sum())))
    assert record["ess_pos"] == pytest.approx(1)
    assert record["spent_share_neg"] == 0.5
    assert math.exp(record["log_ratio_pos"]) == pytest.approx(2)
