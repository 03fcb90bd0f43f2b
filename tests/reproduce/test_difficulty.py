"""Figure 9's statistic: by hand, by counting, and from a run's folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reproduce.difficulty import difficulty_of_run, difficulty_weights
from topr_exp.config.settings import Config


def test_difficulty_weights_by_hand() -> None:
    # Three problems of 10 completions with 1, 1 and 7 correct: p = 0.3. p~ = 0.3 is c = 0, p~ = 1 is c = -1.
    found = difficulty_weights(np.array([1, 1, 7]), np.array([10, 10, 10]), [0.3, 1.0, 0.0])
    assert found["positive_share"] == pytest.approx(0.3)
    assert found["baseline"] == pytest.approx([0, -1, 1])
    assert found["problems"] == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(found["share"][:, [1, 7]], [[2 / 3, 1 / 3], [2 / 9, 7 / 9], [18 / 21, 3 / 21]])
    np.testing.assert_allclose(found["per_problem"][:, [1, 7]], [[1, 1], [1 / 3, 7 / 3], [9 / 7, 3 / 7]])
    assert np.isnan(found["per_problem"][:, 0]).all()


def test_difficulty_weights_equal_a_count_completion_by_completion() -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(1, 20, 80)
    correct = rng.binomial(samples, rng.beta(0.7, 0.7, 80))
    found = difficulty_weights(correct, samples, [0.05, 0.5, 0.9])
    for row, (share, c) in enumerate(zip([0.05, 0.5, 0.9], found["baseline"], strict=True)):
        weight, positive = [0.0] * 10, 0.0
        for good, n in zip(correct.tolist(), samples.tolist(), strict=True):
            for i in range(n):
                weight[min(10 * good // n, 9)] += 1 - c if i < good else 1 + c
                positive += 1 - c if i < good else 0
        np.testing.assert_allclose(found["share"][row], np.array(weight) / sum(weight))
        assert positive / sum(weight) == pytest.approx(share)  # which is what p~ means


def test_weights_by_difficulty_of_a_run(finished: Config) -> None:
    """Of what its first iteration was trained on."""
    summary = json.loads((finished.folder / "iteration-1" / "training_set.json").read_text())
    found = difficulty_of_run(finished.folder, [0.1, 0.5])
    assert found["positive_share"] == pytest.approx(summary["positive_share"])
    assert sum(found["problems"]) == 8
    for row in found["share"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
