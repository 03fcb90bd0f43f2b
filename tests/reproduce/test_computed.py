"""What is computed without training: AGRO's bandit, objectives, Table 2's rows, weights by difficulty, gradients."""

import json
from pathlib import Path

import numpy as np
import pytest

from reproduce.bandit import train_bandits
from reproduce.difficulty import difficulty_of_run, difficulty_weights
from reproduce.figures import fig2
from reproduce.verification import compute_tallies, selection_of, tallies_by_row
from tests.reproduce.test_worlds import PPO, TOPR, objectives, verifier
from tests.reproduce.worlds import World, group
from topr_exp.config.settings import Config
from topr_exp.report import summarise


def test_agro_converges_to_the_optimum_and_kl_pg_does_not() -> None:
    curves = train_bandits(updates=400, seeds=3)
    for agro, kl_pg in zip(curves["agro"], curves["kl_pg"], strict=True):
        assert agro[0] == kl_pg[0] > 0.05  # both start at π_ref
        assert agro[-1] < 1e-5
        assert min(kl_pg[100:]) > 0.05  # it goes elsewhere


def test_the_objectives_are_the_papers() -> None:
    computed, expected = fig2.objectives(), objectives(TOPR, PPO)
    assert computed["ratio"] == expected["ratio"]
    for sign in ("positive", "negative"):
        for name in ("topr", "ppo"):
            assert computed[sign][name] == pytest.approx(expected[sign][name])


def test_the_slopes_are_those_of_the_curves() -> None:
    """1.2 / r at r = 3 for R = +1, and 1 for R = −1."""
    claims = [claim.evidence for claim in World("fig2", "", [], "", extra=objectives()).claims()]
    assert claims[1::2] == [f"largest slope of PPO 0, least of TOPR {slope}" for slope in ("0.4", "1")]


def test_ratios_are_those_of_the_last_updates() -> None:
    levels = {"q05_pos": -1.0, "q50_pos": 0.5, "q95_pos": 2.0}
    runs = World("fig2", "", [group("topr", 60, metrics={f"log_ratio_{name}": [9.0] * 19 + [value]
                                                         for name, value in levels.items()})], "").runs()  # fmt: skip
    assert fig2.log_ratio_quantiles(runs, "positive") == pytest.approx([-1.0, 0.5, 2.0])


def test_before_is_the_base_and_after_the_last_iteration(tmp_path: Path) -> None:
    steps = {str(step): {"right": [float(step), 2.0 * step]} for step in (0, 1, 2, 10)}
    noted = {"iterations": steps, "problems": ["a", "b"], "solutions": 4, "verifications": 2}
    (tmp_path / "verification.json").write_text(json.dumps(noted))
    (tally,) = compute_tallies([({"settings": {"algo.name": "topr", "seed": 1}}, tmp_path)]).items()
    assert tally == (
        '{"algo.name": "topr", "seed": 1}',
        {"before": {"right": [0.0, 0.0]}, "after": {"right": [10.0, 20.0]}, "problems": ["a", "b"], "solutions": 4,
         "verifications": 2},
    )  # fmt: skip


def test_rows_are_means_over_the_runs() -> None:
    world = World("table2", "", verifier((60, 40, 30, 35, 45), (70, 80, 8, 60, 45)), "")
    rows = tallies_by_row(world.runs(), world.numbers())
    figures = {kind: summarise(row, resamples=2) for kind, row in rows.items()}
    assert [*rows] == ["none", "base", "topr", "oracle"]
    expected = {"none": 0.45, "base": 0.35, "topr": 0.6, "oracle": 0.8}
    assert {kind: figure[selection_of(kind)]["value"] for kind, figure in figures.items()} == pytest.approx(
        expected, abs=0.01
    )
    assert figures["base"]["accuracy"]["value"] == pytest.approx((60 + 3 * 40) / 400, abs=0.003)
    assert figures["topr"]["invalid"]["value"] == pytest.approx(0.08, abs=0.003)


# ---- Figure 9's statistic: by hand, by counting, and from a run's folder


def test_difficulty_weights_by_hand() -> None:
    # Three problems of 10 completions with 1, 1 and 7 correct: p = 0.3. p~ = 0.3 is c = 0, p~ = 1 is c = -1.
    weights = difficulty_weights(np.array([1, 1, 7]), np.array([10, 10, 10]), [0.3, 1.0, 0.0])
    assert weights["positive_share"] == pytest.approx(0.3)
    assert weights["baseline"] == pytest.approx([0, -1, 1])
    assert weights["problems"] == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(weights["share"][:, [1, 7]], [[2 / 3, 1 / 3], [2 / 9, 7 / 9], [18 / 21, 3 / 21]])
    np.testing.assert_allclose(weights["per_problem"][:, [1, 7]], [[1, 1], [1 / 3, 7 / 3], [9 / 7, 3 / 7]])
    assert np.isnan(weights["per_problem"][:, 0]).all()


def test_difficulty_weights_equal_a_count_completion_by_completion() -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(1, 20, 80)
    correct = rng.binomial(samples, rng.beta(0.7, 0.7, 80))
    weights = difficulty_weights(correct, samples, [0.05, 0.5, 0.9])
    for row, (share, c) in enumerate(zip([0.05, 0.5, 0.9], weights["baseline"], strict=True)):
        weight_of_tenth, positive = [0.0] * 10, 0.0
        for good, n in zip(correct.tolist(), samples.tolist(), strict=True):
            for i in range(n):
                weight_of_tenth[min(10 * good // n, 9)] += 1 - c if i < good else 1 + c
                positive += 1 - c if i < good else 0
        np.testing.assert_allclose(weights["share"][row], np.array(weight_of_tenth) / sum(weight_of_tenth))
        assert positive / sum(weight_of_tenth) == pytest.approx(share)  # which is what p~ means


def test_weights_by_difficulty_of_a_run(finished: Config) -> None:
    """Of what its first iteration was trained on."""
    summary = json.loads((finished.folder / "iteration-1" / "training_set.json").read_text())
    weights = difficulty_of_run(finished.folder, [0.1, 0.5])
    assert weights["positive_share"] == pytest.approx(summary["positive_share"])
    assert sum(weights["problems"]) == 8
    for row in weights["share"]:
        assert sum(row) == pytest.approx(1, abs=1e-5)
