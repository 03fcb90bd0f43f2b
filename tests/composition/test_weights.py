import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.composition.weights import baseline_for, difficulty_weights, effective_positive
from topr_exp.types import TOPRError

INSIDE = [0.001, 0.01, 0.1, 0.21, 1 / 3, 0.5, 0.67, 0.9, 0.99, 0.999]


@pytest.mark.parametrize("p", INSIDE)
def test_round_trips_over_a_grid(p):
    for c in np.linspace(-1, 1, 401).tolist():
        assert baseline_for(p, effective_positive(p, c)) == pytest.approx(c, abs=1e-12)
    for share in np.linspace(0, 1, 401).tolist():
        assert effective_positive(p, baseline_for(p, share)) == pytest.approx(share, abs=1e-12)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(-0.999, 0.999))
def test_it_is_equation_12_in_both_of_the_papers_forms(p, c):
    got = effective_positive(p, c)
    assert got == pytest.approx(p * (1 - c) / (1 + (1 - 2 * p) * c), abs=1e-9)
    assert got == pytest.approx(p * (1 - c) / (p * (1 - c) + (1 - p) * (1 + c)), abs=1e-12)


@pytest.mark.parametrize("p", INSIDE)
def test_landmarks(p):
    assert all(-1 <= baseline_for(p, share) <= 1 for share in np.linspace(0, 1, 101))
    assert effective_positive(p, 0) == pytest.approx(p, abs=1e-15)
    assert effective_positive(p, -1) == 1
    assert effective_positive(p, 1) == 0
    assert baseline_for(p, 1) == -1
    assert baseline_for(p, p) == 0
    assert baseline_for(p, 0) == 1


def test_the_papers_ten_percent_set():
    # With p = 0.1, giving positives the weight 1.8 and negatives 0.2 makes both halves equal.
    assert effective_positive(0.1, -0.8) == pytest.approx(0.5)
    assert baseline_for(0.1, 0.5) == pytest.approx(-0.8)


@pytest.mark.parametrize(("p", "kind"), [(0.0, "incorrect"), (1.0, "correct")])
def test_a_set_of_one_kind_has_no_baseline_for_a_proportion(p, kind):
    with pytest.raises(TOPRError, match=f"effective_positive=0.2 .* all completions .* are {kind}") as error:
        baseline_for(p, 0.2)
    assert "\n" not in str(error.value)
    assert effective_positive(p, 0.3) == p  # the other direction is fine
    with pytest.raises(TOPRError, match=f"all completions of the training set are {kind}"):
        difficulty_weights(np.array([8 * int(p), 8 * int(p)]), 8, [0.1])


@pytest.mark.parametrize(("p", "c"), [(0.0, -1.0), (1.0, 1.0)])
def test_a_baseline_that_silences_every_example_is_refused(p, c):
    with pytest.raises(TOPRError, match=f"baseline={c:g} gives every example the weight 0"):
        effective_positive(p, c)


def test_difficulty_weights_by_hand():
    # Three problems of 10 completions with 1, 1 and 7 correct: p = 0.3. p~ = 0.3 is c = 0, p~ = 1 is c = -1.
    found = difficulty_weights(np.array([1, 1, 7]), 10, [0.3, 1.0, 0.0])
    assert found["positive_share"] == pytest.approx(0.3)
    assert found["baseline"] == pytest.approx([0, -1, 1])
    assert found["problems"] == [0, 2, 0, 0, 0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(found["share"][:, [1, 7]], [[2 / 3, 1 / 3], [2 / 9, 7 / 9], [18 / 21, 3 / 21]])
    np.testing.assert_allclose(found["per_problem"][:, [1, 7]], [[1, 1], [1 / 3, 7 / 3], [9 / 7, 3 / 7]])
    assert np.isnan(found["per_problem"][:, 0]).all()


def test_difficulty_weights_equal_a_count_completion_by_completion():
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


def test_a_smaller_effective_proportion_gives_hard_problems_more_weight():
    # The claim of Figure 9.
    rng = np.random.default_rng(1)
    correct = rng.binomial(128, rng.beta(1, 1, 2000))
    found = difficulty_weights(correct, 128, [0.01, 0.1, 0.2, 0.5, 0.8, 1.0])
    np.testing.assert_allclose(found["share"].sum(axis=1), 1)
    assert (np.diff(found["share"][:, 0]) < 0).all()
    assert (np.diff(found["share"][:, 9]) > 0).all()
    assert (np.diff(found["per_problem"][0]) < 0).all()
    assert (np.diff(found["per_problem"][5]) > 0).all()
