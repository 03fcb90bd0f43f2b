"""What is computed without training: AGRO's bandit, objectives, Table 2's rows, weights by difficulty."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from reproduce.bandit import train_bandits
from reproduce.difficulty import difficulty_of_run, difficulty_weights
from reproduce.figures import fig2
from reproduce.verification import balanced_accuracy
from tests.conftest import read_json

pytestmark = pytest.mark.extended


def test_agro_converges_to_the_optimum_and_kl_pg_does_not():
    curves = train_bandits(updates=400, seeds=2)

    for agro, kl_pg in zip(curves["agro"], curves["kl_pg"], strict=True):
        assert agro[0] == kl_pg[0] > 0.05  # both start at π_ref
        assert agro[-1] < 1e-5
        assert min(kl_pg[100:]) > 0.05  # it goes elsewhere


def test_the_objectives_are_the_papers():
    """TOPR, Equations 6 and 11, with ε = 0.2, b⁺ = 1.2 and b⁻ = 1."""
    computed = fig2.objectives()
    of_right = computed["positive"]
    of_wrong = computed["negative"]

    for i, r in enumerate(computed["ratio"]):
        rising = min(r, 1.2 * (1 + math.log(max(r, 1.2) / 1.2)))
        if r < 1:
            rising = 1 + math.log(r)
        falling = min(r, 1 + math.log(max(r, 1)))
        assert of_right["topr"][i] == pytest.approx(rising), r
        assert of_wrong["topr"][i] == pytest.approx(-falling), r
        assert of_right["ppo"][i] == pytest.approx(min(r, 1.2)), r
        assert of_wrong["ppo"][i] == pytest.approx(-max(r, 0.8)), r


def test_balanced_accuracy_counts_each_kind_of_solution_half():
    right = {"right_on_correct": [1, 0], "right_on_incorrect": [6, 3]}
    verified = {"verified_correct": [2, 2], "verified_incorrect": [6, 6]}

    assert balanced_accuracy(right | verified) == pytest.approx((1 / 4 + 9 / 12) / 2)


def test_difficulty_weights_by_hand():
    """Two problems with 1 of 10 correct, one with 7: p = 0.3.

    With p̃ = 0.3, c = 0 and every completion weighs as much; with 1 and 0, the 9 correct or the 21 incorrect ones alone.
    """
    correct = np.array([1, 1, 7])
    completions = np.array([10, 10, 10])

    weights = difficulty_weights(correct, completions, [0.3, 1.0, 0.0])

    assert weights["positive_share"] == pytest.approx(0.3)
    assert weights["baseline"] == pytest.approx([0, -1, 1])
    assert weights["problems"] == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    share = weights["share"]
    per_problem = weights["per_problem"]
    assert_allclose(share[:, 1], [20 / 30, 2 / 9, 18 / 21])
    assert_allclose(share[:, 7], [10 / 30, 7 / 9, 3 / 21])
    assert_allclose(per_problem[:, 1], share[:, 1] * 3 / 2)
    assert_allclose(per_problem[:, 7], share[:, 7] * 3)
    assert np.isnan(per_problem[:, 0]).all(), "no problem has none correct"


def test_weights_by_difficulty_of_a_run_are_of_what_its_first_iteration_trained_on(finished):
    summary = read_json(finished.folder / "iteration-1/training_set.json")

    weights = difficulty_of_run(finished.folder, [0.1, 0.5])

    assert weights["positive_share"] == pytest.approx(summary["positive_share"])
    assert sum(weights["problems"]) == 8
    for shares in weights["share"]:
        assert sum(shares) == pytest.approx(1, abs=1e-5)
